//! Compiled functions as Candle's custom ops.

use std::sync::Arc;

use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, InplaceOp1, InplaceOp2, InplaceOp3, Layout, Shape,
};
use tallow::{Device, Input};

use crate::error::fail;
use crate::graphs::{Build, Extents, Graphs, Operand};
use crate::storage;

/// What a function that is compiled may give: a tensor, or several.
pub trait Results {
    /// The tensors.
    fn into_tensors(self) -> Vec<tallow::Tensor>;
}

impl Results for tallow::Tensor {
    fn into_tensors(self) -> Vec<tallow::Tensor> {
        vec![self]
    }
}

impl Results for Vec<tallow::Tensor> {
    fn into_tensors(self) -> Vec<tallow::Tensor> {
        self
    }
}

impl<const M: usize> Results for [tallow::Tensor; M] {
    fn into_tensors(self) -> Vec<tallow::Tensor> {
        self.into()
    }
}

/// A function of `N` tensors that runs on a Vulkan device; [`compile`] makes one. Clones share what was compiled.
///
/// With one result and up to three operands it is a `CustomOp1`, `CustomOp2` or `CustomOp3` for `Tensor::apply_op1`, ..,
/// and, if the result has the first operand's type and shape, an `InplaceOp1`, `InplaceOp2` or `InplaceOp3` for
/// `Tensor::inplace_op1`, ... [`CompiledOp::call`] takes any number of operands and gives any number of results.
#[derive(Clone)]
pub struct CompiledOp<const N: usize> {
    name: &'static str,
    forward: Arc<Graphs>,
    backward: Option<Arc<Graphs>>,
}

/// A function of tensors as an op for Candle's tensors, on [`crate::device`].
///
/// `build` writes the function with Tallow's tensors, whose methods have Candle's names. It is called, and its graph
/// compiled and recorded, when the op first sees operands of some types and shapes; after that they are replayed.
/// [`CompiledOp::with_inputs`] compiles one graph for many shapes instead. Tensors that `build` captures are constants:
/// make them with [`crate::to_resident`], so that every graph shares one copy on the device.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let op = tallow_candle::compile(|[x, y]| x.silu()?.mul(y)).named("swiglu").on(&tallow::Device::Cpu);
/// let x = Tensor::new(&[[1f32, 2.0], [3.0, 4.0]], &Device::Cpu)?;
/// let y = x.t()?.apply_op2(&x, op)?; // any strides
/// assert_eq!(y.dims(), [2, 2]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn compile<const N: usize, R: Results>(
    build: impl Fn(&[tallow::Tensor; N]) -> tallow::Result<R> + Send + Sync + 'static,
) -> CompiledOp<N> {
    let build: Arc<Build> = Arc::new(move |operands| {
        let results = build(exactly(operands)?)?.into_tensors();
        Ok(results.into_iter().map(Some).collect())
    });
    let forward = Arc::new(Graphs::new(build, Extents::Exact));
    CompiledOp { name: "tallow", forward, backward: None }
}

fn exactly<const N: usize>(operands: &[tallow::Tensor]) -> tallow::Result<&[tallow::Tensor; N]> {
    let count = operands.len();
    operands.try_into().map_err(|_| tallow::Error::msg(format!("the op takes {N} tensors, got {count}")))
}

impl<const N: usize> CompiledOp<N> {
    /// The name in Candle's messages.
    pub fn named(self, name: &'static str) -> Self {
        CompiledOp { name, ..self }
    }

    /// The same op on another device.
    pub fn on(self, device: &Device) -> Self {
        let move_to = |graphs: &Graphs| Arc::new(graphs.on(device));
        let backward = self.backward.as_deref().map(move_to);
        CompiledOp { name: self.name, forward: move_to(&self.forward), backward }
    }

    /// The same op, compiled now and once, for operands of declared types. Extents may be symbols, which stand for any
    /// number up to their maximum and take those of the operands of each call.
    ///
    /// ```
    /// use tallow::{DType, Input, Symbol};
    /// let rows = Symbol::new("rows", 4096);
    /// let op = tallow_candle::compile(|[x]| x.sum(1))
    ///     .on(&tallow::Device::Cpu)
    ///     .with_inputs([Input::new("x", DType::F32, (rows, 2))])?;
    /// let x = candle_core::Tensor::new(&[[1f32, 2.0], [3.0, 4.0], [5.0, 6.0]], &candle_core::Device::Cpu)?;
    /// assert_eq!(x.apply_op1(op)?.to_vec1::<f32>()?, [3.0, 7.0, 11.0]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the graph cannot be built or compiled.
    pub fn with_inputs(self, inputs: [Input; N]) -> candle_core::Result<Self> {
        let forward = self.forward.of(Extents::Declared(inputs.into()));
        forward.prepare()?;
        Ok(CompiledOp { forward: Arc::new(forward), ..self })
    }

    /// The gradients of the operands as a function of the operands, the result and its gradient: one for each operand,
    /// of its type and shape, or `None` where there is none. With them the op takes part in Candle's `backward`.
    pub fn with_backward(
        self,
        backward: impl Fn(
            &[tallow::Tensor; N],
            &tallow::Tensor,
            &tallow::Tensor,
        ) -> tallow::Result<[Option<tallow::Tensor>; N]>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let build: Arc<Build> = Arc::new(move |all| match all {
            [operands @ .., result, gradient] => Ok(backward(exactly(operands)?, result, gradient)?.into()),
            _ => {
                Err(tallow::Error::msg("a backward function takes the operands, the result and its gradient"))
            }
        });
        let backward = Some(Arc::new(self.forward.beside(build)));
        CompiledOp { backward, ..self }
    }

    /// The results for operands of any strides. They are not part of Candle's graph for gradients, as those of
    /// `Tensor::apply_op1` and its like are.
    ///
    /// # Errors
    /// When the operands are not those that the function takes, or the device fails.
    pub fn call(&self, operands: &[&candle_core::Tensor]) -> candle_core::Result<Vec<candle_core::Tensor>> {
        if operands.len() != N {
            return fail(format!("{} takes {N} tensors, got {}", self.name, operands.len()));
        }
        let operands: Vec<Operand> = operands.iter().map(|tensor| Operand::tensor(tensor)).collect();
        let results = self.forward.results(&operands)?;
        results.into_iter().flatten().map(|(values, dims)| storage::tensor(values, &dims)).collect()
    }

    /// The device that it runs on.
    pub fn device(&self) -> &Device {
        self.forward.device()
    }

    /// Graphs compiled so far, gradients not counted.
    pub fn compiled_graphs(&self) -> usize {
        self.forward.count()
    }

    /// The one result.
    fn forward(&self, operands: &[Operand]) -> candle_core::Result<(CpuStorage, Shape)> {
        let mut results = self.forward.results(operands)?;
        match (results.pop(), results.len()) {
            (Some(Some((values, dims))), 0) => Ok((values, Shape::from(dims))),
            (_, others) => {
                fail(format!("{} gives {} tensors, a Candle op gives one; use `call`", self.name, others + 1))
            }
        }
    }

    /// Writes the one result over the first operand.
    fn inplace(
        &self,
        results: (CpuStorage, Shape),
        to: &mut CpuStorage,
        layout: &Layout,
    ) -> candle_core::Result<()> {
        let (values, shape) = results;
        if shape != *layout.shape() {
            return Err(candle_core::Error::UnexpectedShape {
                msg: format!("{} in place", self.name),
                expected: layout.shape().clone(),
                got: shape,
            });
        }
        let (expected, got) = (storage::dtype_of(to)?, storage::dtype_of(&values)?);
        if expected != got {
            return fail(format!("{} in place gives {got}, the tensor has {expected}", self.name));
        }
        let bytes = storage::bytes(&values, &Layout::contiguous(shape))?;
        storage::replace(to, layout, &bytes)
    }

    fn backward(
        &self,
        operands: [&candle_core::Tensor; N],
        result: &candle_core::Tensor,
        gradient: &candle_core::Tensor,
    ) -> candle_core::Result<[Option<candle_core::Tensor>; N]> {
        let Some(graphs) = &self.backward else {
            return Err(candle_core::Error::BackwardNotSupported { op: self.name });
        };
        let all: Vec<Operand> =
            operands.iter().copied().chain([result, gradient]).map(Operand::tensor).collect();
        let mut gradients = graphs.results(&all)?;
        gradients.resize_with(N, || None);
        let mut tensors = [const { None }; N];
        for ((to, found), operand) in tensors.iter_mut().zip(gradients).zip(operands) {
            let Some((values, dims)) = found else { continue };
            let tensor = storage::tensor(values, &dims)?;
            if tensor.shape() != operand.shape() || tensor.dtype() != operand.dtype() {
                return fail(format!(
                    "a gradient of {} is {:?}{:?}, its operand is {:?}{:?}",
                    self.name,
                    tensor.dtype(),
                    tensor.dims(),
                    operand.dtype(),
                    operand.dims()
                ));
            }
            *to = Some(tensor);
        }
        Ok(tensors)
    }
}

impl<const N: usize> std::fmt::Debug for CompiledOp<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CompiledOp<{N}>({:?} on {})", self.name, self.device())
    }
}

type Tensor = candle_core::Tensor;

impl CustomOp1 for CompiledOp<1> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        self.forward(&[Operand::storage(s1, l1)])
    }

    fn bwd(&self, arg: &Tensor, res: &Tensor, grad_res: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let [gradient] = self.backward([arg], res, grad_res)?;
        Ok(gradient)
    }
}

impl CustomOp2 for CompiledOp<2> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        self.forward(&[Operand::storage(s1, l1), Operand::storage(s2, l2)])
    }

    fn bwd(
        &self,
        arg1: &Tensor,
        arg2: &Tensor,
        res: &Tensor,
        grad_res: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let [first, second] = self.backward([arg1, arg2], res, grad_res)?;
        Ok((first, second))
    }
}

impl CustomOp3 for CompiledOp<3> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        self.forward(&[Operand::storage(s1, l1), Operand::storage(s2, l2), Operand::storage(s3, l3)])
    }

    fn bwd(
        &self,
        arg1: &Tensor,
        arg2: &Tensor,
        arg3: &Tensor,
        res: &Tensor,
        grad_res: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [first, second, third] = self.backward([arg1, arg2, arg3], res, grad_res)?;
        Ok((first, second, third))
    }
}

impl InplaceOp1 for CompiledOp<1> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, s1: &mut CpuStorage, l1: &Layout) -> candle_core::Result<()> {
        let result = self.forward(&[Operand::storage(s1, l1)])?;
        self.inplace(result, s1, l1)
    }
}

impl InplaceOp2 for CompiledOp<2> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        s1: &mut CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> candle_core::Result<()> {
        let result = self.forward(&[Operand::storage(s1, l1), Operand::storage(s2, l2)])?;
        self.inplace(result, s1, l1)
    }
}

impl InplaceOp3 for CompiledOp<3> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        s1: &mut CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> candle_core::Result<()> {
        let operands = [Operand::storage(s1, l1), Operand::storage(s2, l2), Operand::storage(s3, l3)];
        let result = self.forward(&operands)?;
        self.inplace(result, s1, l1)
    }
}
