//! The errors of this crate.

use tallow_ir::{DType, Dim, GraphError, Shape, TensorType};

/// Result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a tensor could not be built, compiled or computed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Operands of one op have different element types.
    #[error("dtype mismatch in {op}, lhs: {lhs}, rhs: {rhs}")]
    DTypeMismatchBinaryOp {
        /// The op.
        op: &'static str,
        /// Element type on the left.
        lhs: DType,
        /// Element type on the right.
        rhs: DType,
    },
    /// An op or a read does not take this element type.
    #[error("unexpected dtype in {op}, expected: {expected}, got: {got}")]
    UnexpectedDType {
        /// The op.
        op: &'static str,
        /// What it takes.
        expected: String,
        /// What it was given.
        got: DType,
    },
    /// Operands of one op have different shapes.
    #[error("shape mismatch in {op}, lhs: {lhs}, rhs: {rhs}")]
    ShapeMismatchBinaryOp {
        /// The op.
        op: &'static str,
        /// Shape on the left.
        lhs: Shape,
        /// Shape on the right.
        rhs: Shape,
    },
    /// Tensors to put one after the other differ outside of that axis.
    #[error(
        "shape mismatch in cat for dim {dim}, shape for arg 1: {first_shape}, shape for arg {n}: {nth_shape}"
    )]
    ShapeMismatchCat {
        /// The axis in which they differ.
        dim: usize,
        /// Shape of the first tensor.
        first_shape: Shape,
        /// Which tensor differs, counted from 1.
        n: usize,
        /// Its shape.
        nth_shape: Shape,
    },
    /// Data has another number of elements than a shape.
    #[error("shape mismatch in {op}, {buffer_size} elements do not fill shape {shape}")]
    ShapeMismatch {
        /// The op.
        op: &'static str,
        /// Number of elements.
        buffer_size: usize,
        /// The shape.
        shape: Shape,
    },
    /// A shape cannot be repeated into another one.
    #[error("cannot broadcast {src_shape} to {dst_shape} in {op}")]
    BroadcastIncompatibleShapes {
        /// The op.
        op: &'static str,
        /// The shape that there is.
        src_shape: Shape,
        /// The shape that was asked for.
        dst_shape: Shape,
    },
    /// A part of an axis that reaches beyond it.
    #[error("narrow invalid args {msg}: {shape}, dim: {dim}, start: {start}, len: {len}")]
    NarrowInvalidArgs {
        /// The tensor's shape.
        shape: Shape,
        /// The axis.
        dim: usize,
        /// Where the part starts.
        start: Dim,
        /// How long it is.
        len: Dim,
        /// What is wrong.
        msg: &'static str,
    },
    /// The largest or smallest element of nothing.
    #[error("empty tensor for {op}, shape: {shape}")]
    EmptyTensor {
        /// The op.
        op: &'static str,
        /// The tensor's shape.
        shape: Shape,
    },
    /// An index beyond its axis, where the host knows the index.
    #[error("{op}: invalid index {index} with dim size {size}, shape: {shape}")]
    InvalidIndex {
        /// The op.
        op: &'static str,
        /// The index.
        index: usize,
        /// The extent of the axis.
        size: usize,
        /// The tensor's shape.
        shape: Shape,
    },
    /// A list of tensors is empty.
    #[error("{op} expects at least one tensor")]
    OpRequiresAtLeastOneTensor {
        /// The op.
        op: &'static str,
    },
    /// A list of tensors has less than two.
    #[error("{op} expects at least two tensors")]
    OpRequiresAtLeastTwoTensors {
        /// The op.
        op: &'static str,
    },
    /// An axis that the tensor does not have.
    #[error("dim {dim} out of range in {op} for shape {shape}")]
    DimOutOfRange {
        /// The op.
        op: &'static str,
        /// The axis as it was given; -1 is the last one.
        dim: i64,
        /// The tensor's shape.
        shape: Shape,
    },
    /// One axis named twice.
    #[error("duplicate dim in {op}, shape: {shape}, dims: {dims:?}")]
    DuplicateDimIndex {
        /// The op.
        op: &'static str,
        /// The tensor's shape.
        shape: Shape,
        /// The axes.
        dims: Vec<usize>,
    },
    /// A tensor of another rank was expected.
    #[error("unexpected rank in {op}, expected: {expected}, got: {got} ({shape})")]
    UnexpectedNumberOfDims {
        /// The op.
        op: &'static str,
        /// The rank that was expected.
        expected: usize,
        /// The rank that there is.
        got: usize,
        /// The tensor's shape.
        shape: Shape,
    },
    /// An extent is asked for as a number, but only a run knows it.
    #[error("shape {shape} is symbolic, its extents are known only when it runs (sym_dims gives them)")]
    SymbolicShape {
        /// The shape.
        shape: Shape,
    },
    /// A function that is being compiled read an extent as a number, but only a run knows it.
    #[error(
        "{method}() read the extent of axis {axis} of shape {shape} as a number, but it is symbolic while the function is \
         compiled: sym_dims() gives extents as expressions"
    )]
    SymbolicExtent {
        /// The method that read it.
        method: &'static str,
        /// The axis: the first symbolic one where the method reads all.
        axis: usize,
        /// The shape.
        shape: Shape,
    },
    /// Arguments of an op that contradict each other or the tensor.
    #[error("invalid arguments for {op}: {why}")]
    InvalidArgument {
        /// The op.
        op: &'static str,
        /// What is wrong.
        why: String,
    },
    /// A named tensor has another shape than was asked for.
    #[error("{msg}, expected: {expected}, got: {got}")]
    UnexpectedShape {
        /// What is wrong, with the tensor's name.
        msg: String,
        /// The shape that was expected.
        expected: Shape,
        /// The shape that there is.
        got: Shape,
    },
    /// A convolution along one axis whose channels do not fit.
    #[error("conv1d invalid args {msg}: inp: {inp_shape}, k: {k_shape}, pad: {padding}, stride: {stride}")]
    Conv1dInvalidArgs {
        /// Shape of the input.
        inp_shape: Shape,
        /// Shape of the kernel.
        k_shape: Shape,
        /// Zeros on either side.
        padding: usize,
        /// From one window to the next.
        stride: usize,
        /// What is wrong.
        msg: &'static str,
    },
    /// Operands of one op live on different devices, which may be one GPU that was opened twice.
    #[error("device mismatch in {op}, lhs: {lhs}, rhs: {rhs}")]
    DeviceMismatchBinaryOp {
        /// The op.
        op: &'static str,
        /// Device on the left.
        lhs: String,
        /// Device on the right.
        rhs: String,
    },
    /// The value of an input of [`crate::compile`] was asked for while the graph is being built.
    #[error("{op}: the value depends on input {input:?}, which has none until the compiled graph runs")]
    NoValue {
        /// What asked.
        op: &'static str,
        /// Name of the input.
        input: String,
    },
    /// A node that the IR does not accept.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// There is no gradient.
    #[error(transparent)]
    Gradient(#[from] tallow_ir::GradientError),
    /// A graph that breaks an invariant of the IR.
    #[error("graph {graph:?} is not valid: {why}")]
    Invalid {
        /// The graph's name.
        graph: String,
        /// What the verifier found.
        why: String,
    },
    /// Data of the wrong size.
    #[error("{what} {name:?} of type {ty} takes {expected} bytes, got {got}")]
    ByteCount {
        /// "weight", "state" or "input".
        what: &'static str,
        /// Its name.
        name: String,
        /// Its type.
        ty: Box<TensorType>,
        /// Bytes of that type.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// The graph needs something that was not given.
    #[error("graph {graph:?} needs {what} {name:?}, which was not given")]
    Missing {
        /// The graph's name.
        graph: String,
        /// "weight", "state", "input" or "symbol".
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// Something was given that the graph does not have.
    #[error("graph {graph:?} has no {what} {name:?}")]
    Unknown {
        /// The graph's name.
        graph: String,
        /// "input" or "symbol".
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A weight or state of another type than the graph's.
    #[error("{what} {name:?} is {got}, the graph wants {expected}")]
    TypeMismatch {
        /// "weight" or "state".
        what: &'static str,
        /// Its name.
        name: String,
        /// The type in the graph.
        expected: Box<TensorType>,
        /// The type given.
        got: Box<TensorType>,
    },
    /// A weight or state that lives on another device than the executable.
    #[error("{what} {name:?} is not on device {device}")]
    WrongDevice {
        /// "weight" or "state".
        what: &'static str,
        /// Its name.
        name: String,
        /// The executable's device.
        device: String,
    },
    /// A symbol's value out of its range.
    #[error("symbol {name:?} is {value}, its range is {min}..={max}")]
    SymbolRange {
        /// The symbol.
        name: String,
        /// The value given.
        value: u64,
        /// The smallest value allowed.
        min: u32,
        /// The largest value allowed.
        max: u32,
    },
    /// A slice or a state update would reach past an extent under these symbol values.
    #[error("{end} = {end_value} exceeds {extent} = {extent_value} under these symbol values")]
    OutOfBounds {
        /// Where the access ends.
        end: Dim,
        /// Its value.
        end_value: i64,
        /// The extent.
        extent: Dim,
        /// Its value.
        extent_value: i64,
    },
    /// A file has no tensor of that name.
    #[error("cannot find tensor {path}")]
    CannotFindTensor {
        /// The name.
        path: String,
    },
    /// A `.npy` or `.npz` file that is not one, or that holds what no tensor can.
    #[error("npy/npz error: {0}")]
    Npy(
        /// What is wrong.
        String,
    ),
    /// A safetensors file that is not one, or that holds what no tensor can.
    #[error("safetensors error: {0}")]
    SafeTensor(
        /// What is wrong.
        String,
    ),
    /// A file could not be read or written.
    #[error("{path}: {why}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        why: String,
    },
    /// What a [`crate::Module`] or a caller's own check says, made by [`Error::msg`] or [`crate::bail`].
    #[error("{0}")]
    Msg(
        /// The message.
        String,
    ),
    /// An error with what was being done when it happened.
    #[error("{context}\n{inner}")]
    Context {
        /// The error.
        inner: Box<Error>,
        /// What was being done.
        context: String,
    },
    /// The build has no Vulkan.
    #[error("this build of Tallow has no Vulkan (cargo feature `vulkan`)")]
    NotCompiledWithVulkan,
    /// There is no Vulkan device that can be used.
    #[error("no Vulkan device: {0}")]
    NoVulkan(
        /// Why not.
        String,
    ),
    /// The interpreter refused.
    #[error("interpreter: {0}")]
    Interpreter(
        /// What it said.
        String,
    ),
    /// The device's memory does not suffice, also after what was kept for later was given back. Nothing that was computed
    /// is lost.
    #[error("out of memory for {what} ({bytes} bytes): {reason}")]
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// Bytes asked for, or 0 where the driver did not say.
        bytes: u64,
        /// Which memory, and how much is in use.
        reason: String,
    },
    /// The device or the compiler for it refused.
    #[error("device: {0}")]
    Device(
        /// What it said.
        String,
    ),
}

/// The error of an evaluation after which a tensor has no value.
pub(crate) fn no_value(op: &str) -> Error {
    Error::Invalid { graph: op.into(), why: "it gave no value".into() }
}

impl Error {
    /// An error of the caller's own words.
    pub fn msg(message: impl std::fmt::Display) -> Error {
        Error::Msg(message.to_string())
    }

    /// This error with what was being done when it happened.
    pub fn context(self, context: impl std::fmt::Display) -> Error {
        Error::Context { inner: Box::new(self), context: context.to_string() }
    }

    pub(crate) fn io(path: &std::path::Path, error: &std::io::Error) -> Error {
        Error::Io { path: path.display().to_string(), why: error.to_string() }
    }
}

/// Returns [`Error::Msg`] with a message as `format!` takes it.
///
/// ```
/// fn check(n: usize) -> tallow::Result<()> {
///     if n > 3 {
///         tallow::bail!("{n} is too large");
///     }
///     Ok(())
/// }
/// assert_eq!(check(4).unwrap_err().to_string(), "4 is too large");
/// ```
#[macro_export]
macro_rules! bail {
    ($($message:tt)*) => {
        return Err($crate::Error::msg(format!($($message)*)))
    };
}
