//! Kernels that a user writes, in GLSL or SPIR-V, as ops of a graph.

mod backward;

use std::sync::Arc;

use tallow_ir::{Custom, CustomCode, CustomKernel as Definition, DType, Dim, Op, PushType, PushValue, Shape};
use tallow_reference::{Array, CustomArguments, register_custom};

use crate::element::WithDType;
use crate::error::{Error, Result};
use crate::shape::IntoShape;
use crate::tensor::Tensor;

use backward::BackwardFunction;
pub use backward::CustomBackward;
pub(crate) use backward::custom_backward;

/// A compute shader with typed inputs, outputs and push constants, checked once and used like any op.
///
/// The shader is a whole one, with `#version` and `main`. Its buffers are bindings of set 0: the inputs from binding 0
/// on, marked `readonly`, then the outputs. All are row-major; an output holds anything before the shader writes it.
/// Push constants are one block of 32-bit members. They may depend on symbols: Tallow hands them over in a buffer, so
/// that a graph stays recorded once and is replayed with other values.
///
/// A shader must stay within its buffers, whatever they hold.
///
/// ```
/// use tallow::{CustomKernel, CustomOutput, DType, Device, Tensor};
///
/// let scale = CustomKernel::glsl("scale", "#version 450
///     layout(local_size_x = 64) in;
///     layout(set = 0, binding = 0) readonly buffer X { float x[]; };
///     layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };
///     layout(push_constant) uniform Push { uint n; float by; };
///     void main() {
///         uint i = gl_GlobalInvocationID.x;
///         if (i < n) { y[i] = by * x[i]; }
///     }")
///     .input(DType::F32)
///     .output(DType::F32)
///     .push_int()
///     .push_float()
///     .workgroup([64, 1, 1])
///     .on_cpu(|a| {
///         let by = a.push_float(1)?;
///         Ok(vec![CustomOutput::new(a.input::<f32>(0)?.iter().map(|x| by * x).collect())])
///     })
///     .build()?;
///
/// let x = Tensor::new([1f32, 2.0, 3.0], &Device::Cpu)?; // or a Vulkan device
/// let n = x.shape().numel();
/// let y = scale.call(&[&x]).push(n.clone()).push(0.5).output(x.shape()).invocations([n, 1.into(), 1.into()]).one()?;
/// assert_eq!(y.to_vec1::<f32>()?, [0.5, 1.0, 1.5]);
/// # Ok::<(), tallow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CustomKernel(Arc<Definition>);

impl CustomKernel {
    /// A kernel in GLSL; `name` is for messages and plans.
    pub fn glsl(name: &str, text: &str) -> CustomKernelBuilder {
        CustomKernelBuilder::new(name, CustomCode::Glsl(text.into()))
    }

    /// A kernel in SPIR-V, which must be valid (`spirv-val`): drivers do not check it.
    pub fn spirv(name: &str, words: &[u32]) -> CustomKernelBuilder {
        CustomKernelBuilder::new(name, CustomCode::Spirv(words.into()))
    }

    /// Applies the kernel to tensors of one device.
    pub fn call(&self, inputs: &[&Tensor]) -> CustomCall {
        CustomCall {
            kernel: self.0.clone(),
            inputs: inputs.iter().map(|t| (*t).clone()).collect(),
            shapes: vec![],
            push: vec![],
            invocations: [Dim::one(), Dim::one(), Dim::one()],
        }
    }
}

/// What a kernel is, piece by piece.
#[must_use = "a kernel is made by build()"]
pub struct CustomKernelBuilder {
    definition: Definition,
    cpu: Option<Box<CpuFunction>>,
    backward: Option<Arc<BackwardFunction>>,
}

type CpuFunction = dyn Fn(&CustomInputs<'_>) -> Result<Vec<CustomOutput>> + Send + Sync;

impl CustomKernelBuilder {
    fn new(name: &str, code: CustomCode) -> Self {
        let definition = Definition {
            name: name.into(),
            code,
            inputs: vec![],
            outputs: vec![],
            push: vec![],
            workgroup: [1, 1, 1],
        };
        CustomKernelBuilder { definition, cpu: None, backward: None }
    }

    /// The next input: the next binding.
    pub fn input(mut self, dtype: DType) -> Self {
        self.definition.inputs.push(dtype);
        self
    }

    /// The next output: the next binding after all inputs.
    pub fn output(mut self, dtype: DType) -> Self {
        self.definition.outputs.push(dtype);
        self
    }

    /// The next push constant: an `int` or `uint`.
    pub fn push_int(mut self) -> Self {
        self.definition.push.push(PushType::Int);
        self
    }

    /// The next push constant: a `float`.
    pub fn push_float(mut self) -> Self {
        self.definition.push.push(PushType::Float);
        self
    }

    /// The workgroup (`local_size`) that the shader declares; 1 by 1 by 1 if nothing is said.
    pub fn workgroup(mut self, extents: [u32; 3]) -> Self {
        self.definition.workgroup = extents;
        self
    }

    /// What computes the same where there is no Vulkan device. Without it, the kernel is an error there.
    pub fn on_cpu(
        mut self,
        function: impl Fn(&CustomInputs<'_>) -> Result<Vec<CustomOutput>> + Send + Sync + 'static,
    ) -> Self {
        self.cpu = Some(Box::new(function));
        self
    }

    /// The gradients of its inputs, as expressions of its inputs, its outputs and their gradients: one for each input, of
    /// its type and shape, or `None` where it has none. [`Tensor::backward`] and [`crate::train_step`] use it; other
    /// kernels may have a part in it. Of kernels that are defined equally, the last function counts.
    ///
    /// The function is called for each use of the kernel, while the graph of the gradients is built. Its tensors have no
    /// values then.
    pub fn backward(
        mut self,
        function: impl Fn(&CustomBackward<'_>) -> Result<Vec<Option<Tensor>>> + Send + Sync + 'static,
    ) -> Self {
        self.backward = Some(Arc::new(function));
        self
    }

    /// The kernel. Its shader is compiled and compared with what was said here.
    ///
    /// # Errors
    /// When the shader does not compile, or its bindings, element types, push constants or workgroup are others.
    /// Without the feature `vulkan` nothing is compiled.
    pub fn build(self) -> Result<CustomKernel> {
        let definition = self.definition;
        if definition.outputs.is_empty() {
            let why = format!("kernel '{}' has no output", definition.name);
            return Err(Error::InvalidArgument { op: "custom", why });
        }
        #[cfg(feature = "vulkan")]
        tallow_codegen::check_custom(&definition).map_err(|e| {
            let why = e.to_string();
            Error::InvalidArgument { op: "custom", why }
        })?;
        if let Some(cpu) = self.cpu {
            register_custom(&definition, Arc::new(move |a: &CustomArguments<'_>| on_cpu(&*cpu, a)));
        }
        if let Some(function) = self.backward {
            backward::register(&definition, function);
        }
        Ok(CustomKernel(Arc::new(definition)))
    }
}

fn on_cpu(cpu: &CpuFunction, a: &CustomArguments<'_>) -> Result<Vec<Array>, String> {
    let outputs = cpu(&CustomInputs(a)).map_err(|e| e.to_string())?;
    let array = |(output, shape): (&CustomOutput, &Vec<usize>)| {
        Array::from_bytes(output.dtype, shape, &output.bytes).map_err(|e| e.to_string())
    };
    if outputs.len() != a.shapes.len() {
        return Err(format!("its function gave {} outputs instead of {}", outputs.len(), a.shapes.len()));
    }
    outputs.iter().zip(a.shapes).map(array).collect()
}

/// What the function for the CPU computes from.
pub struct CustomInputs<'a>(&'a CustomArguments<'a>);

impl CustomInputs<'_> {
    fn missing(what: &str, i: usize) -> Error {
        Error::InvalidArgument { op: "custom", why: format!("there is no {what} {i}") }
    }

    fn array(&self, i: usize) -> Result<&Array> {
        self.0.inputs.get(i).ok_or_else(|| Self::missing("input", i))
    }

    /// The elements of an input, row-major.
    ///
    /// # Errors
    /// When there is no such input, or its elements are of another type.
    pub fn input<T: WithDType>(&self, i: usize) -> Result<Vec<T>> {
        let array = self.array(i)?;
        if array.ty != T::DTYPE {
            let expected = T::DTYPE.to_string();
            return Err(Error::UnexpectedDType { op: "custom", expected, got: array.ty });
        }
        Ok(array.to_bytes().chunks_exact(size_of::<T>()).map(T::read).collect())
    }

    /// The extents of an input.
    ///
    /// # Errors
    /// When there is no such input.
    pub fn shape(&self, i: usize) -> Result<&[usize]> {
        self.array(i).map(|a| a.shape.as_slice())
    }

    /// The extents of an output.
    ///
    /// # Errors
    /// When there is no such output.
    pub fn output_shape(&self, i: usize) -> Result<&[usize]> {
        self.0.shapes.get(i).map(Vec::as_slice).ok_or_else(|| Self::missing("output", i))
    }

    /// A push constant that is an integer.
    ///
    /// # Errors
    /// When there is no such push constant.
    pub fn push_int(&self, i: usize) -> Result<u32> {
        self.0.push.get(i).copied().ok_or_else(|| Self::missing("push constant", i))
    }

    /// A push constant that is a float.
    ///
    /// # Errors
    /// When there is no such push constant.
    pub fn push_float(&self, i: usize) -> Result<f32> {
        self.push_int(i).map(f32::from_bits)
    }
}

/// The elements of an output, row-major.
pub struct CustomOutput {
    dtype: DType,
    bytes: Vec<u8>,
}

impl CustomOutput {
    /// An output of these elements.
    pub fn new<T: WithDType>(elements: Vec<T>) -> CustomOutput {
        let mut bytes = Vec::with_capacity(size_of_val(elements.as_slice()));
        elements.into_iter().for_each(|x| x.write(&mut bytes));
        CustomOutput { dtype: T::DTYPE, bytes }
    }
}

/// A kernel about to be applied.
#[must_use = "nothing is applied before one() or all()"]
pub struct CustomCall {
    kernel: Arc<Definition>,
    inputs: Vec<Tensor>,
    shapes: Vec<Shape>,
    push: Vec<Push>,
    invocations: [Dim; 3],
}

/// A push constant: a float, or an integer that may be an extent.
#[derive(Clone, Debug)]
pub struct Push(PushValue);

impl From<f32> for Push {
    fn from(x: f32) -> Push {
        Push(PushValue::float(x))
    }
}

impl From<Dim> for Push {
    fn from(x: Dim) -> Push {
        Push(PushValue::Int(x))
    }
}

impl From<&Dim> for Push {
    fn from(x: &Dim) -> Push {
        Push(PushValue::Int(x.clone()))
    }
}

impl From<usize> for Push {
    fn from(x: usize) -> Push {
        Push(PushValue::Int(x.into()))
    }
}

impl From<u32> for Push {
    fn from(x: u32) -> Push {
        Push(PushValue::Int(i64::from(x).into()))
    }
}

impl From<i32> for Push {
    fn from(x: i32) -> Push {
        Push(PushValue::Int(i64::from(x).into()))
    }
}

impl CustomCall {
    /// The shape of the next output.
    pub fn output(mut self, shape: impl IntoShape) -> Self {
        self.shapes.push(shape.into_shape());
        self
    }

    /// The next push constant.
    pub fn push(mut self, value: impl Into<Push>) -> Self {
        self.push.push(value.into());
        self
    }

    /// Invocations along x, y and z; as many workgroups run as hold them.
    pub fn invocations(mut self, invocations: [Dim; 3]) -> Self {
        self.invocations = invocations;
        self
    }

    /// All outputs. They are computed together where [`crate::eval`] asks for all of them.
    ///
    /// # Errors
    /// When inputs, shapes or push constants are not those of the kernel, or the inputs are on several devices.
    pub fn all(self) -> Result<Vec<Tensor>> {
        let Some(first) = self.inputs.first() else {
            let why = format!("kernel '{}' takes no input, so it has no device", self.kernel.name);
            return Err(Error::InvalidArgument { op: "custom", why });
        };
        let device = first.device().clone();
        let push = self.push.into_iter().map(|p| p.0).collect();
        let custom =
            Custom { kernel: self.kernel.clone(), shapes: self.shapes, push, invocations: self.invocations };
        let op = Op::Custom(Box::new(custom));
        let inputs: Vec<&Tensor> = self.inputs.iter().collect();
        Tensor::all_of_op(op, &inputs, &device)
    }

    /// The output of a kernel that has one.
    ///
    /// # Errors
    /// As [`CustomCall::all`], and when there are several.
    pub fn one(self) -> Result<Tensor> {
        let name = self.kernel.name.clone();
        let mut all = self.all()?;
        match (all.pop(), all.len()) {
            (Some(only), 0) => Ok(only),
            (_, rest) => {
                let why = format!("kernel '{name}' has {} outputs", rest + 1);
                Err(Error::InvalidArgument { op: "custom", why })
            }
        }
    }
}
