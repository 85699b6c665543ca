//! Ten blocks drawn by seed, and how many dispatches each needs by DESIGN's rules, counted by hand before the compiler
//! was asked.
//!
//! The rules, with the letters that the counts name:
//!
//! - **S** Matmuls of one left operand are one kernel, whatever comes after each of them (several outputs, segments of
//!   columns). So are those of both sublayers where these read one norm.
//! - **E** What follows a matmul element by element is its epilogue: bias, activation, product of two of its segments,
//!   gate, residual, rope, cast and write to the cache. A reduction, too, while it stays within a tile of columns, as
//!   that of a head does.
//! - **P** With one row, each workgroup of a matvec can compute that row's norm again: no kernel. With 64 rows that
//!   would be once for each tile of columns, so a norm is a kernel of its own.
//! - **A** Attention is one kernel. A workgroup has one head (and some queries), so that a norm over all heads is not
//!   its epilogue: by P it is free before a projection of one row, and a kernel with 64.
//! - **D** Matmuls of different left operands are different kernels; a sum of two is the epilogue of the later one.
//! - **N** A norm of a matmul's result needs all columns, which no tile has: one kernel with the elementwise work and
//!   the residual after it. Since others than one matvec read that, P does not remove it.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use tallow_ir::caps::profile;
use tallow_tests::blocks::Block;

/// Seed, the block that it draws, and dispatches.
const COUNTED: [(u64, &str, usize); 10] = [
    // Norm (P: 64 rows); q, k, v, gate, up (S), with biases, rope, cache writes and silu(gate) * up (E); attention (A);
    // output projection (D); down, which adds that projection, scales and adds the stream (E).
    (1, "64 rows, parallel, Rms, attention rope, Swiglu biases, Scaled", 5),
    // Norm in front of q, k, v, up and the gate's matrix (P, S); attention (A); the inner norm before the output
    // projection (P); down with sum, gate and residual (D, E).
    (2, "1 row, parallel, Layer, attention inner-norm, SquaredRelu biases, Gated", 4),
    // Norm (P); q, k, v (S); attention (A); output projection with residual (E); norm (P); up with gelu (E); down with
    // residual (E).
    (3, "64 rows, sequential, Layer, attention, Gelu, Plain", 7),
    // Norm, q, k, v, up (P, S); attention (A); output projection (D); down with sum, scale, residual (E).
    (4, "1 row, parallel, Layer, attention rope, SquaredRelu, Scaled", 4),
    // Norm, q, k, v, gate (P, S); attention (A); output projection; its norm with gate and residual (N); norm, gate, up
    // and the other gate's matrix (P, S); down; its norm with gate and residual (N).
    (5, "1 row, sequential, Layer before and after, attention rope, Swiglu, Gated", 7),
    // Norm, q, k, v, gate, up (P, S), with norms of heads and rope in the epilogue (E); attention (A); output
    // projection (D); down with the sum (E); the norm of that with scale and residual (N).
    (6, "1 row, parallel, Rms before and after, attention head-norm rope, Swiglu, Scaled", 5),
    // Norm (P); q, k, v, gate, up and the residual's gate (S); attention (A); inner norm (A); output projection (D);
    // down with the sum (E); its norm with gate and residual (N).
    (7, "64 rows, parallel, Rms before and after, attention inner-norm, Swiglu, Gated", 7),
    // As 4, the norms of heads being epilogue (E).
    (8, "1 row, parallel, Layer, attention head-norm, Swiglu biases, Scaled", 4),
    // The same: norm and all projections of it (P, S, E); attention (A); output projection (D); down (E).
    (9, "1 row, parallel, Rms, attention head-norm rope, Gelu biases, Plain", 4),
    // The same.
    (10, "1 row, parallel, Layer, attention rope, SquaredRelu biases, Scaled", 4),
];

#[test]
fn blocks_take_the_dispatches_that_a_person_counts() {
    let caps = profile("h200").unwrap();
    for (seed, text, counted) in COUNTED {
        let block = Block::draw(seed);
        assert_eq!(block.to_string(), text, "seed {seed}");
        let module = tallow_codegen::compile(&block.graph().unwrap(), &caps).unwrap();
        let dispatches = module.program.dispatches.len();
        println!("{seed:>2}: {dispatches} dispatches for {counted}: {text}");
        assert!(dispatches <= counted + 1, "seed {seed}: {dispatches} for {counted}");
    }
}
