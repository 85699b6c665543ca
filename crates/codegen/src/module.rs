//! A compiled graph: kernels, a schedule and a memory plan, as plain data that a runtime executes.

use tallow_ir::schedule::{Plan, Program};
use tallow_ir::{
    Bindings, DeviceCaps, Dim, Graph, Op, Symbol, Verified, WeightCopy, cost, passes, weight_copies,
};

use crate::builder::{Builder, Kernels, Launch, Planned, Tensor};
use crate::donation::{self, Donation};
use crate::error::CodegenError;
use crate::kernel::{Kernel, Table};
use crate::predict::{Launches, predict_us};
use crate::remat::{self, Remat};
use crate::schedule::Schedules;

/// A compiled graph, before translation to SPIR-V.
#[derive(Clone, Debug)]
pub struct Module {
    /// The fused graph.
    pub graph: Verified,
    /// Distinct kernels; layers of one shape share a kernel.
    pub kernels: Vec<Kernel>,
    /// One per dispatch of the program.
    pub launches: Vec<Launch>,
    /// Buffers, and dispatches with the byte ranges they access.
    pub program: Program,
    /// Order of dispatches, barriers and arena offsets.
    pub plan: Plan,
    /// Symbol expressions that kernels and indirect dispatches read.
    pub table: Table,
    /// Position of the table in [`Program::buffers`], if anything reads it.
    pub table_buffer: Option<usize>,
    /// Position of the codebooks of block formats in [`Program::buffers`], if any kernel reads them.
    pub codebooks_buffer: Option<usize>,
    /// Inputs of a run, in order.
    pub inputs: Vec<Tensor>,
    /// Resident weights.
    pub weights: Vec<Tensor>,
    /// Resident states.
    pub states: Vec<Tensor>,
    /// Results of a run; two names may share a buffer.
    pub outputs: Vec<Tensor>,
    /// Results that may overwrite an input if the caller donates it.
    pub donations: Vec<Donation>,
    /// Symbols that a run must bind.
    pub symbols: Vec<Symbol>,
    /// `(end, extent)` pairs that a run must check.
    pub constraints: Vec<(Dim, Dim)>,
    /// The reasons for rejected fusions.
    pub decisions: Vec<String>,
    /// The predicted microseconds of each launch by itself and its barrier, at the maxima of symbols. Empty for software
    /// devices, for which [`predict_us`](crate::predict_us) was not measured.
    pub predicted_us: Vec<f64>,
    /// Weights that are made of others when weights are bound, in an order in which they can be made. See [`Copies`].
    pub weight_copies: Vec<WeightCopy>,
    /// What was done to fit the budget for intermediate values, if that was necessary.
    pub remat: Option<Remat>,
}

/// When copies of weights are made that depend on nothing else. See [`weight_copies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// In each run. The weights are those of the graph.
    EachRun,
    /// Once, when weights are bound: [`Module::weight_copies`] are weights of the module, and are made by the caller.
    Once,
}

/// What is compiled besides the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// When copies of weights are made.
    pub copies: Copies,
    /// The most bytes of intermediate values. Where they take more, kernels run again to free memory. `None`: each kernel
    /// runs once, whatever its results take.
    pub budget: Option<u64>,
}

impl Default for Options {
    /// All kernels once in each run.
    fn default() -> Self {
        Options { copies: Copies::EachRun, budget: None }
    }
}

/// Runs all passes on `graph`, then generates its kernels, schedules them and plans memory, for a device with `caps`.
pub fn compile(graph: &Graph, caps: &DeviceCaps) -> Result<Module, CodegenError> {
    compile_observed(graph, caps, &mut |_, _| {})
}

/// The stage name that the observer gets after kernel generation.
pub const KERNELS: &str = "kernels";
/// The stage name that the observer gets after scheduling.
pub const PLAN: &str = "plan";

/// Like [`compile`]; `observer` sees the graph after each pass, and after [`KERNELS`] and [`PLAN`].
pub fn compile_observed(
    graph: &Graph,
    caps: &DeviceCaps,
    observer: &mut dyn FnMut(&str, &Graph),
) -> Result<Module, CodegenError> {
    compile_scheduled(graph, caps, &mut |_| Schedules::default(), observer)
}

/// Like [`compile_observed`]; `choose` is called once with the fused graph and returns the tuned schedules of its
/// fusions. Its time counts as part of the stage that ends with [`KERNELS`].
///
/// # Errors
/// As [`compile`], and [`CodegenError::NoSuchSchedule`] for a schedule that is not a candidate of its fusion.
pub fn compile_scheduled(
    graph: &Graph,
    caps: &DeviceCaps,
    choose: &mut dyn FnMut(&Graph) -> Schedules,
    observer: &mut dyn FnMut(&str, &Graph),
) -> Result<Module, CodegenError> {
    compile_with(graph, caps, &Options::default(), choose, observer)
}

/// Like [`compile_scheduled`], with options.
///
/// # Errors
/// As [`compile_scheduled`], and [`CodegenError::Memory`] for a budget that is too small.
pub fn compile_with(
    graph: &Graph,
    caps: &DeviceCaps,
    options: &Options,
    choose: &mut dyn FnMut(&Graph) -> Schedules,
    observer: &mut dyn FnMut(&str, &Graph),
) -> Result<Module, CodegenError> {
    let mut decisions = vec![];
    let fused = passes::run_logged(graph, caps, &mut decisions, observer)?;
    let (mut fused, weight_copies) = match options.copies {
        Copies::EachRun => (fused, vec![]),
        Copies::Once => weight_copies::split(fused)?,
    };
    let schedules = choose(fused.graph());
    let mut kernels = Kernels::new(caps, &schedules);
    let built = Builder::of(fused.graph(), &mut kernels)?;
    observer(KERNELS, fused.graph());
    let (mut now, mut remat) = (Planned::of(built, caps)?, None);
    if let Some(budget) = options.budget.filter(|budget| now.plan.arena.bytes > *budget) {
        let again = &mut |graph: &Verified| Planned::of(Builder::of(graph.graph(), &mut kernels)?, caps);
        let fitted = remat::fit(&fused, &now, budget, caps, again)?;
        (fused, now, remat) = (fitted.0, fitted.1, Some(fitted.2));
    }
    let Planned { builder, plan } = now;
    observer(PLAN, fused.graph());
    let symbols = fused.graph().symbols().cloned().collect();
    // The constraints of the caller's graph, including those of nodes that no output uses any more.
    let constraints = graph.constraints();
    let mut donations = donation::donations(&builder.candidates, &builder.program, &plan);
    // An input that is itself an output is returned unchanged, so it must not be overwritten.
    donations.retain(|donation| builder.outputs.iter().all(|output| output.buffer != donation.input));
    let mut module = Module {
        donations,
        graph: fused,
        kernels: builder.kernels,
        launches: builder.launches,
        program: builder.program,
        plan,
        table: builder.table,
        table_buffer: builder.table_buffer,
        codebooks_buffer: builder.codebooks_buffer,
        inputs: builder.inputs,
        weights: builder.weights,
        states: builder.states,
        outputs: builder.outputs,
        symbols,
        constraints,
        decisions,
        predicted_us: vec![],
        weight_copies,
        remat,
    };
    for symbol in graph.symbols() {
        if !module.symbols.contains(symbol) {
            module.symbols.push(symbol.clone());
        }
    }
    if !cost::runs_workgroups_on_one_thread(caps) {
        let alone = |launch| module.predict_us(launch, caps, &Bindings::new(), Launches::ONE);
        module.predicted_us = (0..module.launches.len()).map(alone).collect();
    }
    Ok(module)
}

impl Module {
    /// Predicts the microseconds of one launch. See [`predict_us`]; 0 for a number that is no launch.
    pub fn predict_us(
        &self,
        launch: usize,
        caps: &DeviceCaps,
        bindings: &Bindings,
        launches: Launches,
    ) -> f64 {
        let Some(launch) = self.launches.get(launch) else { return 0.0 };
        // `Builder::build` launches fusions only.
        let Op::Fusion(fusion) = &self.graph.graph().node(launch.node).op else { return 0.0 };
        predict_us(fusion, &self.kernels[launch.kernel], caps, bindings, launches)
    }
}
