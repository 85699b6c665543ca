//! A function of tensors, compiled for each type of its operands when they are first seen.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use candle_core::{CpuStorage, Layout};
use tallow::{DType, Device, Function, Input, OutputView, Symbol, Tensor};

use crate::convert::with_storage;
use crate::dtype::dtype;
use crate::error::{fail, unwrap, wrap};
use crate::storage;

/// Builds the results of a function from its operands; a result that is `None` is none.
pub(crate) type Build = dyn Fn(&[Tensor]) -> tallow::Result<Vec<Option<Tensor>>> + Send + Sync;

/// A result: its elements and extents.
pub(crate) type Computed = (CpuStorage, Vec<usize>);

/// Compiled forms that are kept; the one unused for longest makes room.
const MAX_COMPILED: usize = 64;

/// Up to so many rows a product is a matvec, whose kernel is made for their number.
const EXACT_ROWS: usize = tallow_ir::form::MATVEC_MAX_ROWS as usize;

/// Which extents a compiled form is for.
#[derive(Clone)]
pub(crate) enum Extents {
    /// Those of the operands.
    Exact,
    /// Those declared, where symbols stand for any number up to their maximum.
    Declared(Vec<Input>),
    /// Those of the operands, but for the first axis of the first one, its rows: beyond a few they are a symbol, whose
    /// maximum is the next power of two.
    Rows,
}

/// Where an operand's elements are.
pub(crate) enum Source<'a> {
    /// In storage that Candle has locked.
    Storage(&'a CpuStorage, &'a Layout),
    /// In a tensor, which is locked while it is copied.
    Tensor(&'a candle_core::Tensor),
    /// In a slice.
    Floats(&'a [f32]),
}

/// An operand of a run: its elements and the extents by which they are read, row-major.
pub(crate) struct Operand<'a> {
    pub source: Source<'a>,
    pub dims: Vec<usize>,
}

impl<'a> Operand<'a> {
    pub fn storage(storage: &'a CpuStorage, layout: &'a Layout) -> Self {
        Operand { dims: layout.dims().to_vec(), source: Source::Storage(storage, layout) }
    }

    pub fn tensor(tensor: &'a candle_core::Tensor) -> Self {
        Operand { dims: tensor.dims().to_vec(), source: Source::Tensor(tensor) }
    }

    pub fn floats(values: &'a [f32], dims: Vec<usize>) -> Self {
        Operand { dims, source: Source::Floats(values) }
    }

    fn dtype(&self) -> candle_core::Result<DType> {
        match self.source {
            Source::Storage(storage, _) => storage::dtype_of(storage),
            Source::Tensor(tensor) => dtype(tensor.dtype()),
            Source::Floats(_) => Ok(DType::F32),
        }
    }

    fn write_to(&self, bytes: &mut [u8]) -> candle_core::Result<()> {
        // The layout must be of so many elements; what the graph makes of symbols is its own affair.
        let size = self.dtype()?.size().unwrap_or(1);
        let have = self.dims.iter().product::<usize>() * size;
        if have != bytes.len() {
            return fail(format!("an operand has {have} bytes, the graph takes {}", bytes.len()));
        }
        match self.source {
            Source::Storage(storage, layout) => storage::write_to(storage, layout, bytes),
            Source::Tensor(tensor) => {
                with_storage(tensor, |storage, layout| storage::write_to(storage, layout, bytes))
            }
            Source::Floats(values) => {
                let layout = Layout::contiguous(values.len());
                storage::write_floats(values, &layout, bytes)
            }
        }
    }
}

/// One compiled form.
struct Compiled {
    /// Held while it runs: there is one set of input and output memory.
    function: Mutex<Function>,
    /// Which results there are.
    present: Vec<bool>,
}

/// A function of tensors and its compiled forms.
pub(crate) struct Graphs {
    /// [`crate::device`] unless another one is asked for before the first use.
    device: OnceLock<Device>,
    build: Arc<Build>,
    extents: Extents,
    /// The one used last is last.
    compiled: Mutex<Vec<(Vec<Input>, Arc<Compiled>)>>,
}

/// What a panic left behind is whole: these locks guard lists that are replaced and memory that is written anew.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Graphs {
    pub fn new(build: Arc<Build>, extents: Extents) -> Graphs {
        Graphs { device: OnceLock::new(), build, extents, compiled: Mutex::default() }
    }

    pub fn device(&self) -> &Device {
        self.device.get_or_init(crate::device)
    }

    /// The same function on another device.
    pub fn on(&self, device: &Device) -> Graphs {
        let device = OnceLock::from(device.clone());
        Graphs { device, ..Graphs::new(self.build.clone(), self.extents.clone()) }
    }

    /// The same function for other extents.
    pub fn of(&self, extents: Extents) -> Graphs {
        Graphs { device: self.device.clone(), ..Graphs::new(self.build.clone(), extents) }
    }

    /// Another function on the same device.
    pub fn beside(&self, build: Arc<Build>) -> Graphs {
        Graphs { device: self.device.clone(), ..Graphs::new(build, Extents::Exact) }
    }

    /// Number of compiled forms.
    pub fn count(&self) -> usize {
        lock(&self.compiled).len()
    }

    /// The inputs of the compiled form for these operands.
    fn inputs(&self, types: &[(DType, &[usize])]) -> candle_core::Result<Vec<Input>> {
        let exact = |(i, (dtype, dims)): (usize, &(DType, &[usize]))| {
            Input::new(&format!("x{i}"), *dtype, dims.to_vec())
        };
        Ok(match &self.extents {
            Extents::Exact => types.iter().enumerate().map(exact).collect(),
            Extents::Declared(inputs) => inputs.clone(),
            Extents::Rows => {
                let mut inputs: Vec<Input> = types.iter().enumerate().map(exact).collect();
                if let (Some(first), Some((dtype, [rows, rest @ ..]))) = (inputs.first_mut(), types.first())
                    && *rows > EXACT_ROWS
                {
                    let limit = rows.checked_next_power_of_two().and_then(|n| u32::try_from(n).ok());
                    let Some(limit) = limit else { return fail(format!("{rows} rows are too many")) };
                    let rows = tallow::Dim::from(Symbol::new("rows", limit));
                    let dims = [rows].into_iter().chain(rest.iter().map(|n| (*n).into()));
                    *first = Input::new("x0", *dtype, dims.collect::<Vec<tallow::Dim>>());
                }
                inputs
            }
        })
    }

    /// Compiles the form for these inputs, unless it is there.
    fn compiled(&self, inputs: Vec<Input>) -> candle_core::Result<Arc<Compiled>> {
        {
            let mut all = lock(&self.compiled);
            if let Some(at) = all.iter().position(|(key, _)| *key == inputs) {
                let found = all.remove(at);
                let compiled = found.1.clone();
                all.push(found);
                return Ok(compiled);
            }
        }
        // Not under the lock: compiling takes long, and the user's function might come here itself.
        let mut present = Vec::new();
        let function = tallow::compile(self.device(), &inputs, |operands| {
            let results = (self.build)(operands)?;
            present = results.iter().map(Option::is_some).collect();
            Ok(results.into_iter().flatten().collect())
        });
        let function = Mutex::new(function.map_err(wrap)?);
        let compiled = Arc::new(Compiled { function, present });
        let mut all = lock(&self.compiled);
        if all.len() >= MAX_COMPILED {
            all.remove(0);
        }
        all.push((inputs, compiled.clone()));
        Ok(compiled)
    }

    /// Compiles the form for declared extents now, so that its errors come now.
    pub fn prepare(&self) -> candle_core::Result<()> {
        match &self.extents {
            Extents::Declared(inputs) => self.compiled(inputs.clone()).map(|_| ()),
            Extents::Exact | Extents::Rows => Ok(()),
        }
    }

    /// Runs the form for these operands: their elements go straight into the memory that the device reads, and
    /// `read` sees each result, numbered, where the device wrote it.
    pub fn run(
        &self,
        operands: &[Operand],
        read: &mut dyn FnMut(usize, OutputView) -> candle_core::Result<()>,
    ) -> candle_core::Result<()> {
        let types: Vec<DType> = operands.iter().map(Operand::dtype).collect::<candle_core::Result<_>>()?;
        let types: Vec<(DType, &[usize])> =
            types.into_iter().zip(operands.iter().map(|o| o.dims.as_slice())).collect();
        let compiled = self.compiled(self.inputs(&types)?)?;
        let mut present = compiled.present.iter().enumerate().filter(|(_, there)| **there).map(|(i, _)| i);
        let mut failed = Ok(());
        let mut each = |view: OutputView| {
            if let (Some(number), true) = (present.next(), failed.is_ok()) {
                failed = read(number, view);
            }
        };
        let mut write = |i: usize, bytes: &mut [u8]| operands[i].write_to(bytes).map_err(unwrap);
        lock(&compiled.function).run_with(&types, &mut write, &mut each).map_err(wrap)?;
        failed
    }

    /// [`Graphs::run`] with results as new storage; `None` for those that the function does not give.
    pub fn results(&self, operands: &[Operand]) -> candle_core::Result<Vec<Option<Computed>>> {
        let mut results = Vec::new();
        self.run(operands, &mut |number, view| {
            results.resize_with(number, || None);
            results.push(Some((storage::from_bytes(view.dtype, view.bytes)?, view.shape.to_vec())));
            Ok(())
        })?;
        Ok(results)
    }
}
