//! The errors of this crate.

use tallow_ir::{DType, Dim, GraphError, Shape, TensorType};

/// Result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a tensor could not be built, compiled or computed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Operands of one op have different element types.
    #[error("dtype mismatch in {op}, lhs: {lhs}, rhs: {rhs}")]
    DTypeMismatch {
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
    ShapeMismatch {
        /// The op.
        op: &'static str,
        /// Shape on the left.
        lhs: Shape,
        /// Shape on the right.
        rhs: Shape,
    },
    /// A shape cannot be repeated into another one.
    #[error("cannot broadcast {from} to {to} in {op}")]
    BroadcastIncompatible {
        /// The op.
        op: &'static str,
        /// The shape that there is.
        from: Shape,
        /// The shape that was asked for.
        to: Shape,
    },
    /// An axis that the tensor does not have.
    #[error("dim {dim} out of range in {op} for shape {shape}")]
    DimOutOfRange {
        /// The op.
        op: &'static str,
        /// The axis as it was given.
        dim: String,
        /// The tensor's shape.
        shape: Shape,
    },
    /// One axis named twice.
    #[error("duplicate dim in {op}, shape: {shape}, dims: {dims:?}")]
    DuplicateDim {
        /// The op.
        op: &'static str,
        /// The tensor's shape.
        shape: Shape,
        /// The axes.
        dims: Vec<usize>,
    },
    /// A tensor of another rank was expected.
    #[error("unexpected rank, expected: {expected}, got: {got} ({shape})")]
    UnexpectedRank {
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
    /// Arguments of an op that contradict each other or the tensor.
    #[error("invalid arguments for {op}: {why}")]
    InvalidArgument {
        /// The op.
        op: &'static str,
        /// What is wrong.
        why: String,
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
    /// Operands of one op live on different devices.
    #[error("device mismatch in {op}, lhs: {lhs}, rhs: {rhs}")]
    DeviceMismatch {
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
    /// A symbol's value beyond its maximum.
    #[error("symbol {name:?} is {value}, its maximum is {max}")]
    SymbolRange {
        /// The symbol.
        name: String,
        /// The value given.
        value: u64,
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
    /// The device or the compiler for it refused.
    #[error("device: {0}")]
    Device(
        /// What it said.
        String,
    ),
}
