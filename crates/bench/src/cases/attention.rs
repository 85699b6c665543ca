//! Attention: one query over a cache, and prefill with and without a causal mask.

use tallow::{DType, Format, Tensor, nn};

use super::{full, sampled};
use crate::case::{Bound, Case, F16_LIMIT, F32_LIMIT, Operand};

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let (keys, queries) = if quick { (160, 48) } else { (4096, 2048) };
    let (groups, per_group) = if quick { (2, 3) } else { (8, 4) };
    let heads = if quick { 3 } else { 32 };
    let d = if quick { 32 } else { 128 };
    let f16 = DType::F16;
    let decode = |name: &str, cache| {
        let name = format!("attention/{name}/{}x{d}-{keys}", groups * per_group);
        case(&name, [groups, per_group, 1, keys, d], false, cache)
    };
    vec![
        decode("decode", f16),
        decode("decode-q8_0", DType::Block(Format::Q8_0)),
        decode("decode-q4_0", DType::Block(Format::Q4_0)),
        case(&format!("attention/full/{heads}x{queries}x{d}"), [heads, 1, queries, queries, d], false, f16),
        case(&format!("attention/causal/{heads}x{queries}x{d}"), [heads, 1, queries, queries, d], true, f16),
    ]
}

/// `[groups, per_group, queries, d]` over keys and values `[groups, keys, d]`: all f16, or f32 over blocks.
fn case(name: &str, [groups, per_group, queries, keys, d]: [usize; 5], causal: bool, cache: DType) -> Case {
    let (computed, limit) = match cache {
        DType::Block(_) => (DType::F32, F32_LIMIT),
        scalar => (scalar, F16_LIMIT),
    };
    let cached = |name| Operand { stored: cache, ..Operand::new(name, computed, &["g", "t", "d"]) };
    // What a causal mask leaves.
    let pairs = if causal { queries * (queries + 1) / 2 } else { queries * keys };
    Case {
        name: name.into(),
        axes: vec![
            // A head of many queries takes the interpreter seconds.
            sampled("g", groups, if queries == 1 { 8 } else { 1 }),
            full("r", per_group),
            full("s", queries),
            full("t", keys),
            full("d", d),
        ],
        operands: vec![Operand::new("q", computed, &["g", "r", "s", "d"]), cached("k"), cached("v")],
        result: vec!["g", "r", "s", "d"],
        body: if causal { causal_attention } else { full_attention },
        chained: false,
        flops: 4 * (groups * per_group * pairs * d) as u64,
        bound: if queries == 1 { Bound::Read } else { Bound::Matrix },
        limit,
    }
}

fn full_attention(tensors: &[Tensor]) -> tallow::Result<Tensor> {
    attention(tensors, false)
}

fn causal_attention(tensors: &[Tensor]) -> tallow::Result<Tensor> {
    attention(tensors, true)
}

fn attention(tensors: &[Tensor], causal: bool) -> tallow::Result<Tensor> {
    let [q, k, v] = [&tensors[0], &tensors[1], &tensors[2]];
    let (g, r, s, d) = q.dims4()?;
    let options = nn::AttentionOptions::default().causal(causal);
    nn::attention(&q.reshape((g * r, s, d))?, k, v, &options)?.reshape((g, r, s, d))
}
