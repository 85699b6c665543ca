//! The primitive ops. Everything users know by name (softmax, norms, rope, activations) is composed of
//! these in the frontend; the fuser makes one kernel of it again without knowing the name.

use crate::attention::{Attention, AttentionSide};
use crate::custom::Custom;
use crate::dim::{Dim, Symbol};
use crate::dtype::{DType, Format};
use crate::elementwise::ElementwiseOp;
use crate::fusion::Fusion;
use crate::scalar::Scalar;
use crate::shape::{Shape, TensorType};
use crate::sort::SortSpan;

/// How a reduction combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReduceKind {
    /// Sum; 0 if empty.
    Sum,
    /// Product; 1 if empty.
    Prod,
    /// Largest; NaN if any is NaN; the lowest value of the type if empty.
    Max,
    /// Smallest; NaN if any is NaN; the highest value of the type if empty.
    Min,
    /// Row-major index (u32) of the first largest element within the reduced axes; 0 if empty.
    ArgMax,
    /// Row-major index (u32) of the first smallest element within the reduced axes; 0 if empty.
    ArgMin,
}

impl ReduceKind {
    /// Every kind.
    pub const ALL: [ReduceKind; 6] = [
        ReduceKind::Sum,
        ReduceKind::Prod,
        ReduceKind::Max,
        ReduceKind::Min,
        ReduceKind::ArgMax,
        ReduceKind::ArgMin,
    ];

    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            ReduceKind::Sum => "reduce_sum",
            ReduceKind::Prod => "reduce_prod",
            ReduceKind::Max => "reduce_max",
            ReduceKind::Min => "reduce_min",
            ReduceKind::ArgMax => "reduce_argmax",
            ReduceKind::ArgMin => "reduce_argmin",
        }
    }

    /// True if the result is an index instead of a value.
    pub fn is_arg(self) -> bool {
        matches!(self, ReduceKind::ArgMax | ReduceKind::ArgMin)
    }
}

/// How a scan combines an element with those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScanKind {
    /// Running sum.
    Sum,
    /// Running product.
    Prod,
    /// Linear recurrence of two operands: `h[0] = b[0]` and `h[i] = a[i] * h[i-1] + b[i]`. Floats only.
    Linear,
}

impl ScanKind {
    /// Every kind.
    pub const ALL: [ScanKind; 3] = [ScanKind::Sum, ScanKind::Prod, ScanKind::Linear];

    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            ScanKind::Sum => "scan_sum",
            ScanKind::Prod => "scan_prod",
            ScanKind::Linear => "scan_linear",
        }
    }

    /// How many tensors it scans: `a`, or `a` and `b` of a linear recurrence.
    pub fn operands(self) -> usize {
        match self {
            ScanKind::Sum | ScanKind::Prod => 1,
            ScanKind::Linear => 2,
        }
    }
}

/// How a scatter combines what arrives at one element. Both give the same whatever the order of arrival,
/// up to the rounding of float sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScatterKind {
    /// Adds to what is there.
    Add,
    /// Keeps the largest, of integers.
    Max,
}

impl ScatterKind {
    /// Every kind.
    pub const ALL: [ScatterKind; 2] = [ScatterKind::Add, ScatterKind::Max];

    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            ScatterKind::Add => "scatter_add",
            ScatterKind::Max => "scatter_max",
        }
    }
}

/// What a node computes. Operands are listed in the comments in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// `()`: a tensor given at each run.
    Input {
        /// Unique name.
        name: String,
        /// Its type.
        ty: TensorType,
    },
    /// `()`: a constant tensor, resident on the device.
    Weight {
        /// Unique name.
        name: String,
        /// Its type; the only leaf that may hold blocks.
        ty: TensorType,
    },
    /// `()`: a tensor that outlives runs; `state_update` makes new versions of it in place.
    State {
        /// Unique name.
        name: String,
        /// Its type.
        ty: TensorType,
    },
    /// `()`: operand `index` of the fusion whose body this is. Only in bodies.
    Param {
        /// Which operand.
        index: u32,
        /// Its type.
        ty: TensorType,
    },
    /// `()`: a rank-0 constant.
    Const(Scalar),
    /// `()`: `0, 1, .. len-1`, one axis.
    Iota {
        /// Extent.
        len: Dim,
        /// Integer or float type.
        dtype: DType,
    },
    /// `()`: rank 0, the value of an extent, e.g. of a symbol.
    DimValue {
        /// The expression.
        dim: Dim,
        /// Integer or float type.
        dtype: DType,
    },
    /// `()`: rank 0, a number that each run gives: the float whose 32 bits are the value of a symbol, rounded to `dtype`.
    Scalar {
        /// The symbol; its maximum is `u32::MAX`.
        symbol: Symbol,
        /// Float type.
        dtype: DType,
    },
    /// `(a, ..)`: applied to each element; all operands have the result's shape.
    Elementwise(ElementwiseOp),
    /// `(a)`: converts: floats round to nearest even, float to int truncates and saturates (NaN is 0),
    /// int to int wraps.
    Cast(DType),
    /// `(a)`: the same row-major elements in another shape.
    Reshape(Shape),
    /// `(a)`: axes are aligned at the end; extents of 1 (and missing leading axes) repeat.
    Broadcast(Shape),
    /// `(a)`: axis `i` of the result is axis `axes[i]` of the operand.
    Permute(Vec<usize>),
    /// `(a)`: `len` elements of `axis` from `start`.
    Slice {
        /// Axis.
        axis: usize,
        /// First element.
        start: Dim,
        /// Number of elements.
        len: Dim,
    },
    /// `(a)`: reversed along `axis`.
    Flip {
        /// Axis.
        axis: usize,
    },
    /// `(a)`: windows that slide along `axis`, which becomes two: `(windows, size)`. Element `(o, k)` of them is
    /// element `o * stride + k * dilation` of the axis; there are as many windows as fit.
    Window {
        /// Axis.
        axis: usize,
        /// Elements of a window.
        size: usize,
        /// From the first element of a window to that of the next.
        stride: usize,
        /// From one element of a window to the next.
        dilation: usize,
    },
    /// `(a)`: `value` added before and after along `axis`.
    Pad {
        /// Axis.
        axis: usize,
        /// Elements before.
        before: Dim,
        /// Elements after.
        after: Dim,
        /// What they hold.
        value: Scalar,
    },
    /// `(a, b, ..)`: one after the other along `axis`.
    Concat {
        /// Axis.
        axis: usize,
    },
    /// `(a)`: combines all elements along `axes` (ascending); the axes disappear.
    Reduce {
        /// How.
        kind: ReduceKind,
        /// Which axes, ascending.
        axes: Vec<usize>,
    },
    /// `(a: [.., M, K], b: [.., K, N])` -> `[.., M, N]`; leading axes are equal or 1.
    /// Accumulates in f32 or wider and rounds once to the operands' dtype.
    Matmul,
    /// `(src, indices: u32)` -> `src[..axis] ++ indices ++ src[axis+1..]`; indices are clamped to the axis.
    Gather {
        /// Axis of `src`.
        axis: usize,
    },
    /// `(a)`: element `i` along `axis` combines elements `0 ..= i`; sums and products of 16-bit floats are kept
    /// wider and rounded once an element.
    ///
    /// `(a, b)` of one type for [`ScanKind::Linear`], which has no parts.
    ///
    /// `(a, before)` if the axis is divided into parts: each is scanned alone and starts from its element of `before`,
    /// which is f32 for 16-bit floats.
    Scan {
        /// How.
        kind: ScanKind,
        /// Axis.
        axis: usize,
        /// Elements of a part; the last part may be shorter.
        part: Option<usize>,
    },
    /// `(a)` -> `u32`: the positions along `axis` in the order of the elements there. Equal elements (0 and -0 too)
    /// keep their order; NaN is above every number.
    ArgSort {
        /// Axis.
        axis: usize,
        /// Largest first.
        descending: bool,
        /// Which elements.
        span: SortSpan,
    },
    /// `(a, order: u32)` -> `u32`: merges adjacent sorted runs. `order` lists, for each run of `run` elements along
    /// `axis`, their positions in order; the result does so for runs of twice as many. Equal elements are ordered by
    /// position. Positions beyond the axis are read as its last; runs that are not sorted leave the order open.
    MergeRuns {
        /// Axis.
        axis: usize,
        /// Largest first.
        descending: bool,
        /// Elements of a run of `order`, a power of two and at least 16; the last run may be shorter.
        run: u32,
    },
    /// `(dst: [M], indices: u32[N], src: [N])` -> `[M]`: `dst` with `src[i]` combined into element
    /// `indices[i]`; an index beyond `dst` writes nothing. Sums of narrow floats are rounded from f32 once.
    Scatter(ScatterKind),
    /// `(dst: [O, R, C], indices: u32[N], src: [O, N, C])` -> `[O, R, C]`: `dst[o, r, c]` plus `src[o, i, c]` for each `i`
    /// with `indices[i] == r`; an index beyond `dst` adds nothing. Terms are added one after another in the order of `i`,
    /// beginning with `dst`, so a float sum has one meaning. It is rounded to f32 after each term, or to f64 for f64; at
    /// the end narrow types are rounded once.
    IndexAdd,
    /// `(w: blocks)`: the values that the blocks mean.
    Dequantize(DType),
    /// `(a: f32)`: rows as blocks of the format, one of [`Op::QUANTIZED`], as [`tallow_quant::quantize`] makes them.
    Quantize(Format),
    /// `(q: [H, S, D], k: [G, T, D], v: [G, T, E], bias: [H|1, S|1, T|1], sinks: [H])` -> `[H, S, E]`, `H` a multiple of
    /// `G`; the bias may be left out, and there are sinks where the attributes say so. `softmax(scale * q k^T + bias) v`
    /// per head, head `h` using key head `h / (H/G)`.
    Attention(Attention),
    /// The gradient of [`Op::Attention`] by the operands of one side, from the gradient `g: [H, S, E]` of its result `o`.
    /// With its weights `p` and scores `x`, `dp = g v^T` and `dx = p (dp - means)`, where `means: [H, S]` are the sums of
    /// `g o` over the last axis (those of `p dp` over the keys):
    ///
    /// - Queries: `(q, k, v, g, means, bias)` -> `dq: [H, S, D]`, and `sums: [H, S]`, the logarithms of the sums of
    ///   `exp(x)` over the keys that a query sees; infinity if it sees none. `dq = scale dx k`.
    /// - Keys: `(q, k, v, g, means, sums, bias)` -> `dk: [G, T, D]` and `dv: [G, T, E]`. `p = exp(x - sums)`,
    ///   `dk = scale dx^T q` and `dv = p^T g`, summed over the query heads that share the key head.
    ///
    /// With a softcap, the slope of `cap * tanh` is a further factor of `dx`. The bias may be left out. `means` and `sums`
    /// are f32, or f64 if an operand is. If `g` has 16 bits, `p` and `dx` may be rounded to its type before they meet other
    /// matrices.
    AttentionGrad(Attention, AttentionSide),
    /// `(state, src)`: the next version of `state`, with `src` written at `offsets`. To a state of blocks, only what
    /// `quantize` made is written, and to whole blocks.
    ///
    /// `(state, src, indices: u32[N])` if an index chooses the rows: row `i` of the `N` of `src` along that axis is
    /// written at position `indices[i]`, the other axes at their offsets. An index beyond the state writes nothing. Of
    /// rows with equal indices any may win, element by element; where several elements share a 32-bit word (blocks,
    /// and types below 32 bits on devices that cannot store them alone), what such rows leave is undefined.
    StateUpdate {
        /// Start of the written box, one per axis; 0 along the axis of the chosen rows.
        offsets: Vec<Dim>,
        /// The axis whose rows `indices` chooses: any, but the innermost one of blocks.
        rows: Option<usize>,
    },
    /// `(inputs, ..)`: a kernel that the user wrote, with a result per output.
    Custom(Box<Custom>),
    /// `(params, ..)`: one kernel, see [`Fusion`].
    Fusion(Box<Fusion>),
}

impl Op {
    /// The formats that [`Op::Quantize`] rounds to; all have blocks of 32 elements.
    pub const QUANTIZED: [Format; 7] =
        [Format::Q4_0, Format::Q4_1, Format::Q5_0, Format::Q5_1, Format::Q8_0, Format::Q8_1, Format::IQ4_NL];

    /// The name in the text form and in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input { .. } => "input",
            Op::Weight { .. } => "weight",
            Op::State { .. } => "state",
            Op::Param { .. } => "param",
            Op::Const(_) => "const",
            Op::Iota { .. } => "iota",
            Op::DimValue { .. } => "dim_value",
            Op::Scalar { .. } => "scalar",
            Op::Elementwise(op) => op.name(),
            Op::Cast(_) => "cast",
            Op::Reshape(_) => "reshape",
            Op::Broadcast(_) => "broadcast",
            Op::Permute(_) => "permute",
            Op::Slice { .. } => "slice",
            Op::Flip { .. } => "flip",
            Op::Window { .. } => "window",
            Op::Pad { .. } => "pad",
            Op::Concat { .. } => "concat",
            Op::Reduce { kind, .. } => kind.name(),
            Op::Matmul => "matmul",
            Op::Gather { .. } => "gather",
            Op::Scan { kind, .. } => kind.name(),
            Op::ArgSort { .. } => "argsort",
            Op::MergeRuns { .. } => "merge_runs",
            Op::Scatter(kind) => kind.name(),
            Op::IndexAdd => "index_add",
            Op::Dequantize(_) => "dequantize",
            Op::Quantize(_) => "quantize",
            Op::Attention(_) => "attention",
            Op::AttentionGrad(_, AttentionSide::Queries) => "attention_grad_queries",
            Op::AttentionGrad(_, AttentionSide::Keys) => "attention_grad_keys",
            Op::StateUpdate { rows: None, .. } => "state_update",
            Op::StateUpdate { rows: Some(_), .. } => "state_update_rows",
            Op::Custom(_) => "custom",
            Op::Fusion(_) => "fusion",
        }
    }

    /// The symbols that it names itself; those of its results' extents may be others.
    pub fn symbols(&self) -> Vec<Symbol> {
        match self {
            Op::DimValue { dim, .. } => dim.symbols(),
            Op::Scalar { symbol, .. } => vec![symbol.clone()],
            Op::Slice { start, .. } => start.symbols(),
            Op::StateUpdate { offsets, .. } => offsets.iter().flat_map(Dim::symbols).collect(),
            Op::Custom(custom) => custom.symbols(),
            Op::Fusion(fusion) => fusion.body.symbols().cloned().collect(),
            Op::Input { .. }
            | Op::Weight { .. }
            | Op::State { .. }
            | Op::Param { .. }
            | Op::Const(_)
            | Op::Iota { .. }
            | Op::Elementwise(_)
            | Op::Cast(_)
            | Op::Reshape(_)
            | Op::Broadcast(_)
            | Op::Permute(_)
            | Op::Flip { .. }
            | Op::Window { .. }
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Reduce { .. }
            | Op::Matmul
            | Op::Gather { .. }
            | Op::Scan { .. }
            | Op::ArgSort { .. }
            | Op::MergeRuns { .. }
            | Op::Scatter(_)
            | Op::IndexAdd
            | Op::Dequantize(_)
            | Op::Quantize(_)
            | Op::Attention(_)
            | Op::AttentionGrad(..) => vec![],
        }
    }

    /// True for nodes without operands.
    pub fn is_leaf(&self) -> bool {
        match self {
            Op::Input { .. }
            | Op::Weight { .. }
            | Op::State { .. }
            | Op::Param { .. }
            | Op::Const(_)
            | Op::Iota { .. }
            | Op::DimValue { .. }
            | Op::Scalar { .. } => true,
            Op::Elementwise(_)
            | Op::Cast(_)
            | Op::Reshape(_)
            | Op::Broadcast(_)
            | Op::Permute(_)
            | Op::Slice { .. }
            | Op::Flip { .. }
            | Op::Window { .. }
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Reduce { .. }
            | Op::Matmul
            | Op::Gather { .. }
            | Op::Scan { .. }
            | Op::ArgSort { .. }
            | Op::MergeRuns { .. }
            | Op::Scatter(_)
            | Op::IndexAdd
            | Op::Dequantize(_)
            | Op::Quantize(_)
            | Op::Attention(_)
            | Op::AttentionGrad(..)
            | Op::StateUpdate { .. }
            | Op::Custom(_)
            | Op::Fusion(_) => false,
        }
    }

    /// True for ops that only say where an element is read: no arithmetic, and no copy unless a kernel needs one.
    pub fn is_view(&self) -> bool {
        match self {
            Op::Reshape(_)
            | Op::Broadcast(_)
            | Op::Permute(_)
            | Op::Slice { .. }
            | Op::Flip { .. }
            | Op::Window { .. }
            | Op::Pad { .. }
            | Op::Concat { .. } => true,
            Op::Input { .. }
            | Op::Weight { .. }
            | Op::State { .. }
            | Op::Param { .. }
            | Op::Const(_)
            | Op::Iota { .. }
            | Op::DimValue { .. }
            | Op::Scalar { .. }
            | Op::Elementwise(_)
            | Op::Cast(_)
            | Op::Reduce { .. }
            | Op::Matmul
            | Op::Gather { .. }
            | Op::Scan { .. }
            | Op::ArgSort { .. }
            | Op::MergeRuns { .. }
            | Op::Scatter(_)
            | Op::IndexAdd
            | Op::Dequantize(_)
            | Op::Quantize(_)
            | Op::Attention(_)
            | Op::AttentionGrad(..)
            | Op::Custom(_)
            | Op::StateUpdate { .. }
            | Op::Fusion(_) => false,
        }
    }
}
