//! Kernels that a user wrote: GLSL or SPIR-V with typed inputs, outputs and push constants.
//!
//! To the graph such a kernel is one op with one result per output. Its operands are whole buffers, row-major; no
//! pass looks inside, and nothing is fused into it. Plain data: the function that stands in for it where there is
//! no Vulkan device is known to the interpreter, not to the graph.
//!
//! Nothing checks at run time that such a kernel stays within its buffers: what lies beyond them is not defined, as in any
//! Vulkan program that does not ask for robust access.

use std::fmt;
use std::sync::Arc;

use crate::dim::{Bindings, Dim, Symbol};
use crate::dtype::DType;
use crate::shape::{Shape, TensorType};

/// The text or module of a kernel: a whole compute shader with the entry point `main`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum CustomCode {
    /// GLSL, beginning with `#version`.
    Glsl(String),
    /// A SPIR-V module, which must be valid.
    Spirv(Vec<u32>),
}

impl fmt::Debug for CustomCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CustomCode::Glsl(text) => write!(f, "{} bytes of GLSL", text.len()),
            CustomCode::Spirv(words) => write!(f, "{} words of SPIR-V", words.len()),
        }
    }
}

/// The type of a push constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PushType {
    /// `uint` or `int`: an extent, or a number.
    Int,
    /// `float`.
    Float,
}

/// The value of a push constant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PushValue {
    /// An integer of 32 bits, that may depend on symbols.
    Int(Dim),
    /// The bits of an f32.
    Float(u32),
}

impl PushValue {
    /// A float.
    pub fn float(value: f32) -> Self {
        PushValue::Float(value.to_bits())
    }

    /// Its type.
    pub fn ty(&self) -> PushType {
        match self {
            PushValue::Int(_) => PushType::Int,
            PushValue::Float(_) => PushType::Float,
        }
    }

    /// The 32 bits that the kernel reads, as an expression.
    pub fn bits(&self) -> Dim {
        match self {
            PushValue::Int(dim) => dim.clone(),
            PushValue::Float(bits) => Dim::from(i64::from(*bits)),
        }
    }

    /// The 32 bits under `bindings`; integers wrap. `None` for an unbound symbol.
    pub fn eval(&self, bindings: &Bindings) -> Option<u32> {
        self.bits().eval(bindings).map(|x| x as u32)
    }
}

impl fmt::Display for PushValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PushValue::Int(dim) => write!(f, "{dim}"),
            PushValue::Float(bits) => write!(f, "float:{:?}", f32::from_bits(*bits)),
        }
    }
}

/// What a kernel is, whatever it is applied to.
///
/// Buffers are bindings of descriptor set 0: the inputs from binding 0 on, then the outputs; inputs are `readonly`.
/// Push constants are a block of 32-bit members, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CustomKernel {
    /// Name in messages and plans.
    pub name: String,
    /// The shader.
    pub code: CustomCode,
    /// Element types of the inputs.
    pub inputs: Vec<DType>,
    /// Element types of the outputs.
    pub outputs: Vec<DType>,
    /// Types of the push constants.
    pub push: Vec<PushType>,
    /// The workgroup that the shader declares.
    pub workgroup: [u32; 3],
}

/// A kernel applied to operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Custom {
    /// The kernel.
    pub kernel: Arc<CustomKernel>,
    /// Shapes of the outputs.
    pub shapes: Vec<Shape>,
    /// Values of the push constants.
    pub push: Vec<PushValue>,
    /// Invocations along x, y and z: as many workgroups run as hold them, so the last may have more.
    pub invocations: [Dim; 3],
}

impl Custom {
    /// Symbols in push constants and invocations.
    pub fn symbols(&self) -> Vec<Symbol> {
        let push = self.push.iter().flat_map(|p| p.bits().symbols());
        push.chain(self.invocations.iter().flat_map(Dim::symbols)).collect()
    }

    /// The types of the outputs.
    ///
    /// # Errors
    /// When operands, shapes, push constants or the workgroup are not what the kernel states.
    pub fn types(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let kernel = &*self.kernel;
        let name = &kernel.name;
        let given: Vec<DType> = operands.iter().map(|t| t.dtype).collect();
        if given != kernel.inputs {
            return Err(format!("kernel '{name}' takes {:?}, got {given:?}", kernel.inputs));
        }
        if let Some(blocks) = given.iter().chain(&kernel.outputs).find(|d| matches!(d, DType::Block(_))) {
            return Err(format!("kernel '{name}' cannot take or give {blocks} blocks"));
        }
        if kernel.outputs.is_empty() || self.shapes.len() != kernel.outputs.len() {
            let (want, got) = (kernel.outputs.len(), self.shapes.len());
            return Err(format!("kernel '{name}' has {want} outputs, got shapes for {got}"));
        }
        let types: Vec<PushType> = self.push.iter().map(PushValue::ty).collect();
        if types != kernel.push {
            return Err(format!("kernel '{name}' has push constants {:?}, got {types:?}", kernel.push));
        }
        if kernel.workgroup.contains(&0) {
            return Err(format!("kernel '{name}' has an empty workgroup {:?}", kernel.workgroup));
        }
        if let Some(bad) = self.invocations.iter().find(|n| !n.is_nonnegative()) {
            return Err(format!("kernel '{name}' cannot run {bad} invocations"));
        }
        let outputs = kernel.outputs.iter().zip(&self.shapes);
        Ok(outputs.map(|(dtype, shape)| TensorType { dtype: *dtype, shape: shape.clone() }).collect())
    }
}
