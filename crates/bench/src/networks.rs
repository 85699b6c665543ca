//! Blocks of real networks, drawn by a seed and described as data.
//!
//! A [`Network`] is a straight-line program of named ops. Its JSON is all that `scripts/sweep_torch.py` reads, so
//! that Tallow and PyTorch run the same network. [`build`] makes the graph with the methods that a user would call.

mod build;
mod builder;
mod check;
mod describe;
mod draw;
mod families;
mod generate;
mod operands;
mod seeds;

#[cfg(feature = "vulkan")]
mod measure;
#[cfg(feature = "vulkan")]
mod on_device;

use serde::{Serialize, Serializer};
use tallow::DType;
use tallow_quant::Format;

pub use build::build;
pub use builder::{Builder, Var};
pub use check::{expected, flops, graph, limit};
pub use describe::describe;
pub use draw::{Draw, Scale};
pub use generate::{FAMILIES, Family, PROGRAMS, Source, generate, generate_family};
#[cfg(feature = "vulkan")]
pub use measure::run;
#[cfg(feature = "vulkan")]
pub use on_device::{Comparison, compare};
pub use operands::operand;
pub use seeds::parse_seeds;

/// A straight-line program in SSA form. Values are numbered: the inputs first, then the result of each step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Network {
    /// `network/<family>/<seed>` or `program/<name>`.
    pub name: String,
    /// The seed that drew it; 0 for programs, which draw nothing.
    pub seed: u64,
    /// What it reads.
    pub inputs: Vec<TensorSpec>,
    /// What it computes, in order.
    pub steps: Vec<Step>,
    /// The values that it returns.
    pub outputs: Vec<usize>,
}

/// An input of a network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorSpec {
    /// Unique name.
    pub name: String,
    /// Element type.
    #[serde(serialize_with = "dtype_name")]
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Root mean square of its values, if they are floats.
    pub scale: f32,
    /// What it is for.
    pub kind: Kind,
    /// The format of its blocks, which are dequantized to `dtype`, if it is stored in blocks along its last axis.
    #[serde(skip)]
    pub blocks: Option<Format>,
}

/// The role of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Differs from call to call.
    Activation,
    /// The same in every call.
    Weight,
    /// Integers from 0 to below this number.
    IntegerBelow(usize),
    /// The same in ascending order, evenly spread.
    SortedBelow(usize),
}

/// One op, and the values that it reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// The op.
    #[serde(flatten)]
    pub call: Call,
    /// Its arguments.
    pub args: Vec<usize>,
}

/// An op with its attributes. Arguments are listed in the comments in order; those in brackets may be left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Call {
    /// `(a, b)`: the product of matrices, batched over leading axes.
    Matmul {
        /// Read `a` transposed.
        transpose_a: bool,
        /// Read `b` transposed.
        transpose_b: bool,
    },
    /// `(x, weight: [out, in], [bias])`.
    Linear,
    /// `(x: [N, C, L], kernel, [bias])`.
    Conv1d(Conv),
    /// `(x: [N, C, H, W], kernel, [bias])`.
    Conv2d(Conv),
    /// `(a, b)`, with broadcasting.
    Binary {
        /// The function.
        function: Binary,
    },
    /// `(x)`.
    Unary {
        /// The function.
        function: Unary,
    },
    /// `(condition, a, b)`, all of one shape.
    Where,
    /// `(a, [b])`: compares with `b`, or with a number.
    Compare {
        /// The relation.
        relation: Relation,
        /// The number, without `b`.
        value: Option<f64>,
    },
    /// `(x)`: `x * mul + add`.
    Affine {
        /// The factor.
        mul: f64,
        /// The summand.
        add: f64,
    },
    /// `(x)`: this number, in the type and shape of `x`.
    FullLike {
        /// The number.
        value: f64,
    },
    /// `(x)`.
    Softmax {
        /// Axis.
        axis: usize,
    },
    /// `(x)`.
    LogSoftmax {
        /// Axis.
        axis: usize,
    },
    /// `(x)`.
    Reduce {
        /// How elements are combined.
        kind: Reduction,
        /// The axes that are reduced, ascending.
        axes: Vec<usize>,
        /// Keep them with extent 1.
        keepdim: bool,
    },
    /// `(x)`: the index of the first largest element.
    Argmax {
        /// Axis.
        axis: usize,
    },
    /// `(x)`: the index of the first smallest element.
    Argmin {
        /// Axis.
        axis: usize,
    },
    /// `(x, weight)`, over the last axis.
    RmsNorm {
        /// Added to the mean square.
        epsilon: f64,
    },
    /// `(x, weight, bias)`, over the last axis.
    LayerNorm {
        /// Added to the variance.
        epsilon: f64,
    },
    /// `(x, weight, bias)`, over groups of channels.
    GroupNorm {
        /// Number of groups.
        groups: usize,
        /// Added to the variance.
        epsilon: f64,
    },
    /// `(x)`.
    Reshape {
        /// The new extents.
        shape: Vec<usize>,
    },
    /// `(x)`: axis `i` of the result is axis `order[i]` of `x`.
    Permute {
        /// The order.
        order: Vec<usize>,
    },
    /// `(x)`.
    Broadcast {
        /// The new extents.
        shape: Vec<usize>,
    },
    /// `(x)`.
    Slice {
        /// Axis.
        axis: usize,
        /// First element.
        start: usize,
        /// Number of elements.
        len: usize,
    },
    /// `(a, b, ..)`.
    Concat {
        /// Axis.
        axis: usize,
    },
    /// `(x, indices)`: for each index the element at its own place, but at the index along the axis.
    Gather {
        /// Axis.
        axis: usize,
    },
    /// `(x, indices: [n])`.
    IndexSelect {
        /// Axis.
        axis: usize,
    },
    /// `(table: [n, width], indices)`.
    Embedding,
    /// `(base, indices: [n], source)`.
    IndexAdd {
        /// Axis.
        axis: usize,
    },
    /// `(x)`.
    Cumsum {
        /// Axis.
        axis: usize,
    },
    /// `(x: [B, H, S, D], cos: [S, D / 2], sin)`: element `i` of a head rotates against element `i + D / 2`.
    Rope,
    /// `(q: [B, H, S, D], k: [B, G, T, D], v)`: scaled dot product attention; `H` is a multiple of `G`.
    Attention {
        /// Hide later keys. Queries and keys are then equally many.
        causal: bool,
    },
    /// `(x)`: the positions of elements along the last axis in ascending order of the elements.
    Argsort,
    /// `(x)`: random numbers in the shape of `x`, evenly from 0 to 1 or of the normal distribution.
    RandomLike {
        /// Of the normal distribution.
        normal: bool,
    },
    /// `(x)`: the largest elements along the last axis, largest first.
    Topk {
        /// How many.
        k: usize,
    },
    /// `(x)`.
    Cast {
        /// The new element type.
        #[serde(serialize_with = "dtype_name")]
        dtype: DType,
    },
    /// `(x)`: zeros added along an axis.
    Pad {
        /// Axis.
        axis: usize,
        /// Elements before.
        before: usize,
        /// Elements after.
        after: usize,
    },
    /// `(x: [N, C, H, W])`.
    AvgPool2d {
        /// Side of a window.
        size: usize,
        /// Distance of windows.
        stride: usize,
    },
    /// `(x: [N, C, H, W])`: the largest of each window.
    MaxPool2d {
        /// Side of a window.
        size: usize,
        /// Distance of windows.
        stride: usize,
    },
    /// `(x: [N, C, H, W])`: nearest neighbour.
    Upsample {
        /// How many times larger height and width become.
        factor: usize,
    },
}

/// Attributes of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Conv {
    /// Distance of windows.
    pub stride: usize,
    /// Zeros added at both ends of each axis.
    pub padding: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Distance of the elements of a window.
    pub dilation: usize,
}

/// Functions of two tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is what its name says")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Maximum,
}

/// Functions of one tensor. `Gelu` is the tanh form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is what its name says")]
pub enum Unary {
    Relu,
    Gelu,
    GeluErf,
    Silu,
    Sigmoid,
    Tanh,
    Exp,
    Log,
    Sqrt,
    Abs,
    Neg,
    Square,
}

/// Relations of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is what its name says")]
pub enum Relation {
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
}

/// How a reduction combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is what its name says")]
pub enum Reduction {
    Sum,
    Mean,
    Max,
}

/// Says that there is nothing to measure without Vulkan.
///
/// # Errors
/// Always.
#[cfg(not(feature = "vulkan"))]
pub fn run(
    _sources: &[Source],
    _options: &crate::Options,
    _out: &mut dyn std::io::Write,
) -> crate::Result<usize> {
    Err(crate::BenchError::NoDevice("this build has no Vulkan".into()))
}

/// Serializes an element type as its name.
fn dtype_name<S: Serializer>(dtype: &DType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(dtype.name())
}
