//! Cooperative matrices (tensor cores): which matmuls can multiply f16 or bf16 tiles at subgroup scope.
//!
//! The product of two f16 or of two bf16 is exact in f32, unless that of bf16 is beyond its range, and the accumulators
//! are f32. Such a kernel therefore computes what an f32 FMA kernel would, provided that every element of both operands *is* of that type: it has it, was cast
//! from it, or is a weight stored in it. The graph decides this ([`is_exact`]), so kernels never round silently. Where
//! callers accept rounding to f16, [`round_operands`] writes it into the graph as casts.

use crate::access::vectors_along_k;
use crate::attention::Attention;
use crate::caps::{DeviceCaps, MatrixElement, MatrixShape};
use crate::cost;
use crate::dim::Dim;
use crate::dot;
use crate::dtype::{DType, Format};
use crate::form::{ContractionForm, MATVEC_MAX_ROWS, are_few};
use crate::graph::{Graph, GraphError, Node, Value};
use crate::op::Op;
use crate::rewrite::rebuild;

/// Supported cooperative matrix sizes (m = n = k), preferred first. Mesa's software device has the smaller one, which
/// allows tests.
const COOPMAT_SIZES: [u32; 2] = [16, 8];

/// Elements along K that kernels load as one vector.
const K_VECTOR: i64 = 8;

/// The element type of the operands of cooperative matrices. Accumulators are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixOperand {
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
}

impl MatrixOperand {
    /// Both types, preferred first: values of 8 bits are exact in either.
    pub const ALL: [MatrixOperand; 2] = [MatrixOperand::F16, MatrixOperand::Bf16];

    /// The element type of tensors.
    pub fn dtype(self) -> DType {
        match self {
            MatrixOperand::F16 => DType::F16,
            MatrixOperand::Bf16 => DType::BF16,
        }
    }

    /// The format of weights.
    fn format(self) -> Format {
        match self {
            MatrixOperand::F16 => Format::F16,
            MatrixOperand::Bf16 => Format::BF16,
        }
    }

    /// The element type of matrix shapes.
    fn element(self) -> MatrixElement {
        match self {
            MatrixOperand::F16 => MatrixElement::F16,
            MatrixOperand::Bf16 => MatrixElement::Bf16,
        }
    }
}

/// The m = n = k of the device's cooperative matrices with operands of this type and f32 accumulators. `None` if the
/// device lacks them, or other features that the kernels need. (glslang declares the capability `Float16` for bf16, too.)
pub fn coopmat_size(caps: &DeviceCaps, operand: MatrixOperand) -> Option<u32> {
    let element = operand.element();
    let has = |size: &u32| {
        let is_square = |s: &MatrixShape| {
            (s.m, s.n, s.k) == (*size, *size, *size)
                && (s.a, s.b, s.c) == (element, element, MatrixElement::F32)
        };
        caps.cooperative_matrix.iter().any(is_square)
    };
    let has_type = match operand {
        MatrixOperand::F16 => caps.f16,
        MatrixOperand::Bf16 => caps.f16 && caps.bf16,
    };
    let has_features = has_type && caps.storage_16bit && caps.memory_model && caps.has_fixed_subgroup_size();
    COOPMAT_SIZES.into_iter().find(|size| has_features && has(size))
}

/// Whether the device multiplies cooperative matrices with operands of this type.
pub fn has_instructions(caps: &DeviceCaps, operand: MatrixOperand) -> bool {
    coopmat_size(caps, operand).is_some()
}

/// Whether the device multiplies cooperative matrices with operands of the type that both tensors have.
pub fn multiplies_tensors(graph: &Graph, caps: &DeviceCaps, operands: [Value; 2]) -> bool {
    let has = |operand: &MatrixOperand| {
        has_instructions(caps, *operand) && operands.iter().all(|v| graph.ty(*v).dtype == operand.dtype())
    };
    MatrixOperand::ALL.iter().any(has)
}

/// Whether the device multiplies cooperative matrices with the queries, keys and values of an attention, once they lie in memory.
pub fn multiplies_attention(graph: &Graph, caps: &DeviceCaps, node: &Node) -> bool {
    let fits = |operand: &MatrixOperand| {
        let Some(side) = coopmat_size(caps, *operand).map(i64::from) else { return false };
        let is_one = |v: &Value| {
            let divides = |width: &Dim| width.as_const().is_some_and(|n| n % side == 0);
            is_exact(graph, *v, *operand) && graph.ty(*v).shape.dims().last().is_some_and(divides)
        };
        holds_weights(graph, node, *operand) && node.operands.iter().take(3).all(is_one)
    };
    MatrixOperand::ALL.iter().any(fits)
}

/// Whether softmax weights are exact enough in matrices of this type for the results of an attention.
///
/// Weights that must not be rounded are two f16, which hold 22 bits of the larger weights, and nothing of those below 2^-30. A
/// result in f16 does not show this, one in f32 may consist of such weights alone. Two bf16 would hold 16 bits; weights of
/// values that are f32 may be rounded to f16, not to bf16.
pub fn holds_weights(graph: &Graph, node: &Node, operand: MatrixOperand) -> bool {
    let Op::Attention(attention) = node.op else { return false };
    let result = node.types[0].dtype;
    match operand {
        MatrixOperand::F16 => attention.round_weights || result == DType::F16,
        MatrixOperand::Bf16 => attention.round_weights && graph.ty(node.operands[2]).dtype == DType::BF16,
    }
}

/// Whether every element of `value` is exact in the type of `operand`.
pub fn is_exact(graph: &Graph, value: Value, operand: MatrixOperand) -> bool {
    let mut value = value;
    loop {
        if graph.ty(value).dtype == operand.dtype() {
            return true;
        }
        let node = graph.node(value.node);
        value = match &node.op {
            // Both have at most 8 significant bits, as many as a bf16, and no wider range than an f16.
            Op::Cast(DType::F32) if matches!(graph.ty(node.operands[0]).dtype, DType::F8E4M3 | DType::U8) => {
                return true;
            }
            Op::Cast(DType::F32) if graph.ty(node.operands[0]).dtype == operand.dtype() => return true,
            Op::Dequantize(_) => return graph.ty(node.operands[0]).dtype == DType::Block(operand.format()),
            Op::Reshape(_)
            | Op::Broadcast(_)
            | Op::Permute(_)
            | Op::Slice { .. }
            | Op::Flip { .. }
            | Op::Window { .. }
            | Op::Gather { .. } => node.operands[0],
            _ => return false,
        };
    }
}

/// Whether kernels read the elements of `value` from memory and compute nothing: what they read is exact in the type of
/// `operand`. (A computed value of that type is rounded only when it is stored.)
pub fn is_read(graph: &Graph, value: Value, operand: MatrixOperand) -> bool {
    let mut value = value;
    loop {
        let node = graph.node(value.node);
        value = match &node.op {
            Op::Param { ty, .. } => {
                return ty.dtype == operand.dtype() || matches!(ty.dtype, DType::F8E4M3 | DType::U8);
            }
            Op::Cast(to) if *to == DType::F32 || *to == operand.dtype() => node.operands[0],
            Op::Dequantize(_) => return graph.ty(node.operands[0]).dtype == DType::Block(operand.format()),
            Op::Reshape(_)
            | Op::Broadcast(_)
            | Op::Permute(_)
            | Op::Slice { .. }
            | Op::Flip { .. }
            | Op::Window { .. }
            | Op::Gather { .. } => node.operands[0],
            // The padding is a value of the type.
            Op::Pad { .. } if node.types[0].dtype == operand.dtype() => node.operands[0],
            _ => return false,
        };
    }
}

/// The type of operands with which the device's cooperative matrices compute a contraction: all operands are exact in it,
/// and results have it or are f32. `None` if there is none.
pub fn supported(body: &Graph, form: &ContractionForm, caps: &DeviceCaps) -> Option<MatrixOperand> {
    let anchors = || form.segments.iter().flat_map(|s| &s.anchors).map(|id| body.node(*id));
    let fits = |operand: &MatrixOperand| {
        has_instructions(caps, *operand)
            && is_exact(body, form.lhs, *operand)
            && anchors().all(|node| {
                let result = node.types[0].dtype;
                (result == DType::F32 || result == operand.dtype())
                    && is_exact(body, node.operands[1], *operand)
            })
    };
    MatrixOperand::ALL.into_iter().find(|operand| form.prologue.is_empty() && fits(operand))
}

/// The value that `value` rounds to the type of `operand`, if it does nothing else: `cast(x, f16)` and
/// `cast(cast(x, f16), f32)` are `x` rounded to f16.
pub fn rounded(graph: &Graph, value: Value, operand: MatrixOperand) -> Option<Value> {
    let outer = graph.node(value.node);
    let narrow = match outer.op {
        Op::Cast(DType::F32) => *outer.operands.first()?,
        _ => value,
    };
    let inner = graph.node(narrow.node);
    let wide = *inner.operands.first()?;
    let casts = inner.op == Op::Cast(operand.dtype()) && graph.ty(wide).dtype == DType::F32;
    casts.then_some(wide)
}

/// Whether a matmul's right operand is a weight that may be rounded, read in vectors along K.
fn reads_weight(graph: &Graph, rhs: Value) -> bool {
    let Some(leaf) = vectors_along_k(graph, rhs, K_VECTOR) else { return false };
    // An f32 weight is meant to keep its precision, and bf16 has a wider range than f16.
    let narrow = match graph.ty(leaf).dtype {
        DType::Block(f) => !matches!(f, Format::F32 | Format::F64 | Format::BF16 | Format::I64 | Format::I32),
        other => other == DType::F16,
    };
    narrow && matches!(graph.op(leaf), Op::Weight { .. } | Op::Param { .. })
}

/// Maximum rows of a matvec that unpacks its weights to f32. More rows take the tile of 16 rows instead, if both operands may be
/// rounded. (H200, 4096 x 4096, us, 8 rows and a tile of 16: Q4_0 14.0 and 11.0, Q4_K 17.1 and 11.8, Q8_0 13.9 and 11.7.)
const UNPACKING_MATVEC_ROWS: i64 = 4;

/// Whether the right operand of a matmul is a weight in blocks that kernels unpack.
fn unpacks(graph: &Graph, rhs: Value) -> bool {
    let leaf = vectors_along_k(graph, rhs, K_VECTOR).map(|leaf| graph.ty(leaf).dtype);
    matches!(leaf, Some(DType::Block(format)) if !format.is_plain())
}

/// Whether a matmul of so many rows is faster with a tile of cooperative matrices than as a matvec of f32.
fn gains_from_tiles(graph: &Graph, rows: i64, rhs: Value) -> bool {
    rows > UNPACKING_MATVEC_ROWS && unpacks(graph, rhs)
}

/// Whether [`round_operands`] rounded the operands of a matmul although it has so few rows that a matvec could compute it.
pub fn rounds_few_rows(graph: &Graph, rows: i64, rhs: Value) -> bool {
    let source = rounded(graph, rhs, MatrixOperand::F16);
    rows <= MATVEC_MAX_ROWS && source.is_some_and(|source| gains_from_tiles(graph, rows, source))
}

/// An f32 value rounded to f16 and cast back to f32.
fn round(graph: &mut Graph, value: Value) -> Result<Value, GraphError> {
    let narrow = graph.add(Op::Cast(DType::F16), &[value])?;
    graph.add(Op::Cast(DType::F32), &[narrow])
}

/// A value rounded to f16. The casts move above reshapes and permutes: into the kernel that produces activations, or into
/// one that unpacks a weight in the order in which it is stored.
fn round_at_source(graph: &mut Graph, value: Value) -> Result<Value, GraphError> {
    let (mut source, mut views) = (value, vec![]);
    while let op @ (Op::Reshape(_) | Op::Permute(_)) = graph.op(source) {
        views.push(op.clone());
        source = graph.node(source.node).operands[0];
    }
    let rounded = round(graph, source)?;
    views.into_iter().rev().try_fold(rounded, |value, view| graph.add(view, &[value]))
}

/// Whether a weight is unpacked to f16 once, by a kernel of its own, instead of by each tile of `rows` rows of a matmul. Both
/// compute the same. Only for a number of rows that is known: where there may be few of them, tiles unpack.
fn unpacks_once(graph: &Graph, weight: Value, rows: &Dim, caps: &DeviceCaps) -> bool {
    let Some(leaf) = vectors_along_k(graph, weight, K_VECTOR) else { return false };
    let (Some(rows), DType::Block(format)) = (rows.as_const(), graph.ty(leaf).dtype) else { return false };
    if format.is_plain() {
        return false;
    }
    let (weights, halves) = (graph.ty(weight).shape.max_numel(), DType::F16.size().unwrap_or(2) as u64);
    let inside = cost::unpacking_us(caps, weights.saturating_mul(cost::matmul_tiles(rows)));
    let bytes = graph.ty(leaf).max_bytes() + weights.saturating_mul(halves);
    inside > cost::map_us(caps, bytes) + cost::unpacking_us(caps, weights)
}

/// Rounds the softmax weights of a prefill attention over keys and values in f16 or in blocks, its f32 queries, and what
/// blocks mean. `None` elsewhere.
///
/// Blocks are unpacked to f16 in memory, by a kernel of its own: each tile of queries would unpack them again.
fn round_attention(
    graph: &mut Graph,
    attention: Attention,
    operands: &[Value],
) -> Result<Option<Value>, GraphError> {
    let ty = graph.ty(operands[0]);
    let few = ty.shape.dims()[1].as_const().is_some_and(|s| s <= MATVEC_MAX_ROWS);
    let is_narrow = |v: &Value| is_exact(graph, *v, MatrixOperand::F16) || unpacked(graph, *v).is_some();
    let narrow = operands[1..3].iter().all(is_narrow);
    if few || !narrow || !(is_exact(graph, operands[0], MatrixOperand::F16) || ty.dtype == DType::F32) {
        return Ok(None);
    }
    let mut operands = operands.to_vec();
    for operand in &mut operands[..3] {
        if !is_exact(graph, *operand, MatrixOperand::F16) {
            *operand = round_at_source(graph, *operand)?;
        }
    }
    graph.add(Op::Attention(attention.round_weights(true)), &operands).map(Some)
}

/// The blocks that a value is what they mean of, through views.
fn unpacked(graph: &Graph, value: Value) -> Option<Value> {
    let mut value = value;
    while matches!(graph.op(value), Op::Reshape(_) | Op::Permute(_) | Op::Slice { .. }) {
        value = graph.node(value.node).operands[0];
    }
    let node = graph.node(value.node);
    let of = *node.operands.first()?;
    let is_packed = matches!(graph.ty(of).dtype, DType::Block(format) if !format.is_plain());
    (node.op == Op::Dequantize(DType::F32) && is_packed).then_some(of)
}

/// Whether a matmul's right operand is a weight in blocks that lie across K, after a permute of its rows. Tiles load no such blocks.
fn has_blocks_across_k(graph: &Graph, rhs: Value) -> bool {
    let leaf = unpacked(graph, rhs).filter(|_| !reads_weight(graph, rhs));
    leaf.is_some_and(|leaf| matches!(graph.op(leaf), Op::Weight { .. } | Op::Param { .. }))
}

/// Rounds operands of f32 matmuls to f16, so that cooperative matrices can multiply them.
///
/// Rounds both operands of matmuls with more than [`MATVEC_MAX_ROWS`] rows and a quantized or f16 weight, which may
/// have its blocks along K or across, and of those with
/// five rows or more whose weight is quantized and whose activations are not. For attention
/// over keys and values in f16 or in blocks, rounds the queries and the softmax weights, and what blocks mean. The
/// graph stays unchanged on devices without f16 cooperative matrices, or where these are no faster than f32 FMAs.
///
/// Not one of the passes, because it changes results: callers decide. The relative error of each operand is at most
/// 2^-11 (an NMSE of products of about 5e-8), and activations beyond 65504 become infinite.
///
/// # Errors
/// If the graph is invalid.
pub fn round_operands(graph: &Graph, caps: &DeviceCaps) -> Result<Graph, GraphError> {
    if !has_instructions(caps, MatrixOperand::F16) || !cost::matrices_are_faster(caps) {
        return Ok(graph.clone());
    }
    rebuild(graph, |new, node, operands| {
        if let Op::Attention(attention) = node.op {
            return round_attention(new, attention, operands);
        }
        if !matches!(node.op, Op::Matmul) {
            return Ok(None);
        }
        let ty = new.ty(operands[0]).clone();
        let [.., m, k] = ty.shape.dims() else { return Ok(None) };
        // Rows of a symbolic number are folded with those of batches.
        let folded = ty.shape.dims()[..ty.shape.rank() - 1].iter().fold(Dim::one(), |n, dim| &n * dim);
        let few = are_few(if m.as_const().is_some() { m } else { &folded });
        // Those whose activations are quantized are multiplied as integers.
        let tiled = gains_from_tiles(new, m.max_value(), operands[1]);
        let integers = dot::is_quantized(new, operands[0]);
        let is_multiple_of_vector = k.as_const().is_some_and(|k| k > 0 && k % K_VECTOR == 0);
        let across = !few && has_blocks_across_k(new, operands[1]);
        if few && (!tiled || integers)
            || !is_multiple_of_vector
            || ty.dtype != DType::F32
            || !(across || reads_weight(new, operands[1]))
        {
            return Ok(None);
        }
        let [left, right] = [operands[0], operands[1]];
        let is_f16 = |graph: &Graph, value| is_exact(graph, value, MatrixOperand::F16);
        let left = if is_f16(new, left) { left } else { round_at_source(new, left)? };
        let right = match is_f16(new, right) {
            true => right,
            false if across || unpacks_once(new, right, m, caps) => round_at_source(new, right)?,
            false => round(new, right)?,
        };
        new.add(Op::Matmul, &[left, right]).map(Some)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TensorType;
    use crate::caps::{self, OptionalFeature};
    use crate::graph::Node;

    /// A matmul of `rows` rows with a weight in `format`.
    fn linear(rows: i64, format: Format) -> Graph {
        let mut graph = Graph::new("linear");
        let x = graph.input("x", DType::F32, [rows, 256]).expect("a type");
        let w = graph.weight("w", DType::Block(format), [16, 256]).expect("whole blocks");
        let w = graph.add(Op::Dequantize(DType::F32), &[w]).expect("blocks");
        let w = graph.permute(w, &[1, 0]).expect("a matrix");
        let y = graph.add(Op::Matmul, &[x, w]).expect("fits");
        graph.output("y", y).expect("new");
        graph
    }

    #[test]
    fn operands_are_rounded_where_matrices_multiply_them() {
        let casts = |graph: &Graph, caps: &DeviceCaps| {
            let found = round_operands(graph, caps).expect("valid");
            found.nodes().filter(|(_, n)| matches!(n.op, Op::Cast(DType::F16))).count()
        };
        let h200 = caps::h200();
        assert_eq!(casts(&linear(9, Format::Q4_0), &h200), 2);
        // Weights that are f16 need no rounding.
        assert_eq!(casts(&linear(512, Format::F16), &h200), 1);
        // Some rows, unless integers are multiplied.
        assert_eq!(casts(&linear(8, Format::Q4_0), &h200), 2);
        let integers = dot::quantize_activations(&linear(8, Format::Q4_0), &h200).expect("valid");
        assert_eq!(casts(&integers, &h200), 0);
        // Few rows, or weights that need no unpacking; weights with more bits or range; no cooperative matrices.
        assert_eq!(casts(&linear(4, Format::Q4_0), &h200), 0);
        assert_eq!(casts(&linear(8, Format::F16), &h200), 0);
        assert_eq!(casts(&linear(512, Format::F32), &h200), 0);
        assert_eq!(casts(&linear(512, Format::BF16), &h200), 0);
        assert_eq!(casts(&linear(512, Format::Q4_0), &caps::lavapipe()), 0);
    }

    /// Weights are rounded above their transposition if a kernel of its own unpacks them in the order of their memory.
    #[test]
    fn blocks_are_unpacked_once_for_many_rows() {
        let unpacks_once = |rows: Dim, format| {
            let mut graph = Graph::new("many");
            let x = graph.input("x", DType::F32, [rows, Dim::constant(4096)]).expect("a type");
            let w = graph.weight("w", DType::Block(format), [4096, 4096]).expect("whole blocks");
            let w = graph.add(Op::Dequantize(DType::F32), &[w]).expect("blocks");
            let w = graph.permute(w, &[1, 0]).expect("a matrix");
            let y = graph.add(Op::Matmul, &[x, w]).expect("fits");
            graph.output("y", y).expect("new");
            let found = round_operands(&graph, &caps::h200()).expect("valid");
            let rounds = |n: &Node| {
                n.op == Op::Cast(DType::F16) && matches!(found.op(n.operands[0]), Op::Dequantize(_))
            };
            found.nodes().any(|(_, n)| rounds(n))
        };
        let rows = Dim::constant;
        assert!(unpacks_once(rows(2048), Format::Q4_K));
        assert!(!unpacks_once(rows(64), Format::Q4_K));
        // A row is read as it is.
        assert!(!unpacks_once(rows(2048), Format::F16));
        // There may be one row.
        assert!(!unpacks_once(crate::Symbol::new("seq", 2048).into(), Format::Q4_K));
    }

    /// Blocks along the columns of the right operand: a kernel of its own unpacks them, also for a number of rows that is not
    /// known.
    #[test]
    fn blocks_across_k_are_unpacked_in_memory() {
        let casts = |rows: Dim| {
            let mut graph = Graph::new("across");
            let x =
                graph.input("x", DType::F32, [Dim::constant(4), rows, Dim::constant(64)]).expect("a type");
            let w = graph.weight("w", DType::Block(Format::Q8_0), [4, 64, 32]).expect("whole blocks");
            let w = graph.add(Op::Dequantize(DType::F32), &[w]).expect("blocks");
            let y = graph.add(Op::Matmul, &[x, w]).expect("fits");
            graph.output("y", y).expect("new");
            let found = round_operands(&graph, &caps::h200()).expect("valid");
            found.nodes().filter(|(_, n)| n.op == Op::Cast(DType::F16)).count()
        };
        assert_eq!(casts(Dim::constant(8)), 0);
        assert_eq!(casts(Dim::constant(64)), 2);
        assert_eq!(casts(crate::Symbol::new("seq", 64).into()), 2);
    }

    /// Keys and values in blocks are unpacked where queries are many, those that the slice of a cache has.
    #[test]
    fn blocks_of_a_cache_are_unpacked_for_many_queries() {
        let casts = |queries: i64, format| {
            let mut graph = Graph::new("attention");
            let q = graph.input("q", DType::F32, [2, queries, 32]).expect("a type");
            let rows = graph.state("rows", DType::Block(format), [40, 32]).expect("whole blocks");
            let rows = graph.add(Op::Dequantize(DType::F32), &[rows]).expect("blocks");
            let (start, len) = (Dim::zero(), Dim::constant(24));
            let seen = graph.add(Op::Slice { axis: 0, start, len }, &[rows]).expect("inside");
            let k = graph.reshape(seen, [1, 24, 32]).expect("as many");
            let y = graph.add(Op::Attention(Attention::new(0.25)), &[q, k, k]).expect("fits");
            graph.output("y", y).expect("new");
            let found = round_operands(&graph, &caps::h200()).expect("valid");
            let of_slices = |n: &Node| {
                n.op == Op::Cast(DType::F16) && matches!(found.op(n.operands[0]), Op::Slice { .. })
            };
            found.nodes().filter(|(_, n)| of_slices(n)).count()
        };
        assert!(casts(9, Format::Q8_0) > 0);
        assert!(casts(9, Format::Q4_0) > 0);
        assert_eq!(casts(8, Format::Q8_0), 0);
        assert_eq!(casts(9, Format::F32), 0);
    }

    #[test]
    fn weights_are_rounded_where_queries_are_many() {
        let casts = |queries: i64, caps: &DeviceCaps| {
            let mut graph = Graph::new("attention");
            let q = graph.input("q", DType::F32, [2, queries, 16]).expect("a type");
            let k = graph.input("k", DType::F16, [1, 40, 16]).expect("a type");
            let y = graph.add(Op::Attention(Attention::new(0.25)), &[q, k, k]).expect("fits");
            graph.output("y", y).expect("new");
            let found = round_operands(&graph, caps).expect("valid");
            let casts = found.nodes().filter(|(_, n)| matches!(n.op, Op::Cast(DType::F16))).count();
            let weights = found.nodes().any(|(_, n)| matches!(n.op, Op::Attention(a) if a.round_weights));
            (casts, weights)
        };
        assert_eq!(casts(9, &caps::h200()), (1, true));
        assert_eq!(casts(8, &caps::h200()), (0, false));
        assert_eq!(casts(512, &caps::lavapipe()), (0, false));
    }

    #[test]
    fn exact_values_are_those_that_had_the_type() {
        for operand in MatrixOperand::ALL {
            let mut graph = Graph::new("exact");
            let x = graph.input("x", DType::F32, [4, 8]).expect("a type");
            let narrow = graph.add(Op::Cast(operand.dtype()), &[x]).expect("a float");
            let wide = graph.add(Op::Cast(DType::F32), &[narrow]).expect("a float");
            let view = graph.permute(wide, &[1, 0]).expect("a matrix");
            let sum = graph.elementwise(crate::ElementwiseOp::Add, &[wide, wide]).expect("same shapes");
            let exact = |value| MatrixOperand::ALL.map(|operand| is_exact(&graph, value, operand));
            let only = MatrixOperand::ALL.map(|other| other == operand);
            assert_eq!([narrow, wide, view].map(exact), [only; 3]);
            assert_eq!([x, sum].map(exact), [[false; 2]; 2]);
            assert_eq!([narrow, wide, view].map(|v| rounded(&graph, v, operand)), [Some(x), Some(x), None]);
            let other = MatrixOperand::ALL.into_iter().find(|other| *other != operand).expect("two types");
            assert_eq!(rounded(&graph, wide, other), None);
        }
    }

    #[test]
    fn only_values_in_memory_are_read() {
        let mut body = Graph::new("read");
        let bf16 = MatrixOperand::Bf16;
        let mut param = |dtype| {
            let index = body.params().len() as u32;
            let ty = TensorType::new(dtype, [4, 8]);
            body.add(Op::Param { index, ty }, &[]).expect("a type")
        };
        let [x, wide, bytes] = [DType::BF16, DType::F32, DType::U8].map(&mut param);
        let rounded = body.add(Op::Cast(DType::BF16), &[wide]).expect("a float");
        let computed = body.elementwise(crate::ElementwiseOp::Tanh, &[x]).expect("a float");
        let view = body.permute(x, &[1, 0]).expect("a matrix");
        let cast = body.add(Op::Cast(DType::F32), &[view]).expect("a float");
        let widened = body.add(Op::Cast(DType::F32), &[bytes]).expect("a number");
        assert_eq!([x, view, cast, widened].map(|v| is_read(&body, v, bf16)), [true; 4]);
        // Each is of type bf16 or f32, but kernels have more bits of it.
        assert_eq!([wide, rounded, computed].map(|v| is_read(&body, v, bf16)), [false; 3]);
        assert!(is_exact(&body, rounded, bf16) && is_exact(&body, computed, bf16));
    }

    #[test]
    fn devices_multiply_the_types_that_they_list() {
        let sizes = |caps: &DeviceCaps| MatrixOperand::ALL.map(|operand| coopmat_size(caps, operand));
        assert_eq!(sizes(&caps::h200()), [Some(16); 2]);
        assert_eq!(sizes(&caps::rdna3()), [Some(16), None]);
        assert_eq!(sizes(&caps::lavapipe()), [None; 2]);
        let without = |feature| {
            let mut caps = caps::h200();
            caps.without(feature);
            sizes(&caps)
        };
        assert_eq!(without(OptionalFeature::Bf16), [Some(16), None]);
        assert_eq!(without(OptionalFeature::F16), [None; 2]);
        assert_eq!(without(OptionalFeature::Coopmat), [None; 2]);
    }
}
