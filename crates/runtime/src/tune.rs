//! The autotuner: measures which of a kernel's schedules is fastest on this device, once, and stores it on disk.
//!
//! Each fusion has a default schedule, which the cost model takes on every machine ([`tallow_codegen::schedules`] lists
//! it first). [`RuntimeOptions::tune`](crate::RuntimeOptions::tune) measures the others: each kernel alone, by device
//! timestamps, on random operands that rotate through more memory than caches hold ([`measure`]). A kernel whose
//! results differ from the default's by more than summation order explains (`compare`) is dropped, however fast. The
//! winner is stored in a file per device and driver (`tuner`), by the class of the fusion
//! ([`tallow_codegen::class_of`]), so that no process measures it again.
//!
//! Nothing here fails a compilation: where measuring fails, the default is used.

mod compare;
mod data;
mod measure;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Once};

use tallow_codegen::{Kernel, Schedule, Schedules, Table, class_of, compile_kernels, kernel_with};
use tallow_ir::{Fusion, Graph, Op};

pub use self::compare::difference;
pub use self::measure::{Candidate, Outcome, fastest, measure};
use crate::error::ExecError;
use crate::tuner::{Entry, lock};
pub use crate::tuner::{Limits, Tuner};
use crate::vulkan::{Context, Pipeline, PipelineDesc};

/// A fusion without a tuning result.
struct Unknown<'a> {
    fusion: &'a Fusion,
    schedules: Vec<Schedule>,
    class: String,
}

impl Tuner {
    /// The fastest schedule for each fusion of a fused graph that has several candidates.
    pub(crate) fn choose(&self, context: &Arc<Context>, graph: &Graph) -> Schedules {
        let caps = context.caps();
        if caps.timestamp_period_ps == 0 {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| tracing::warn!("kernels are not tuned: {} writes no timestamps", caps.name));
            return Schedules::default();
        }
        let (mut chosen, mut of_class) = (Schedules::new(), HashMap::<String, Vec<&Fusion>>::new());
        let (mut unknown, mut seen): (Vec<Unknown<'_>>, HashSet<&Fusion>) = (vec![], HashSet::new());
        for (_, node) in graph.nodes() {
            let Op::Fusion(fusion) = &node.op else { continue };
            // Repeated layers share their fusions.
            if !seen.insert(fusion) {
                continue;
            }
            // Code generation reports its errors later.
            let schedules = tallow_codegen::schedules(fusion, caps).unwrap_or_default();
            let Some(first) = schedules.first().filter(|_| schedules.len() > 1) else { continue };
            let class = class_of(fusion, first, caps);
            if lock(&self.refused).contains(&class) {
                continue;
            }
            match self.known(&class, &schedules) {
                Some(schedule) => drop(chosen.insert((**fusion).clone(), schedule)),
                None => {
                    let alike = of_class.entry(class.clone()).or_default();
                    if alike.is_empty() {
                        unknown.push(Unknown { fusion, schedules, class });
                    }
                    alike.push(fusion);
                }
            }
        }
        if unknown.is_empty() {
            return chosen;
        }
        let prepared = self.prepare(context, &unknown);
        let prepared = prepared.inspect_err(|error| tracing::warn!("kernels are not tuned: {error}"));
        for (one, kernels) in unknown.iter().zip(prepared.unwrap_or_default()) {
            let Some(schedule) = self.measure(context, one, &kernels) else { continue };
            for fusion in &of_class[&one.class] {
                // The fastest schedule may not be a candidate for other extents.
                if tallow_codegen::schedules(fusion, caps).is_ok_and(|all| all.contains(&schedule)) {
                    chosen.insert((*fusion).clone(), schedule);
                }
            }
        }
        chosen
    }

    /// Kernels and pipelines of all candidates of several fusions, created in parallel. `None` for duplicates, and for
    /// schedules that the device cannot run.
    fn prepare(
        &self,
        context: &Arc<Context>,
        unknown: &[Unknown<'_>],
    ) -> Result<Vec<Vec<Option<Candidate>>>, ExecError> {
        let caps = context.caps();
        let generate = |one: &Unknown<'_>| -> Vec<Option<(Kernel, Table)>> {
            let kernel = |schedule: &Schedule| {
                let mut table = Table::default();
                kernel_with(one.fusion, *schedule, caps, &mut table).ok().map(|kernel| (kernel, table))
            };
            let mut kernels: Vec<Option<(Kernel, Table)>> = one.schedules.iter().map(kernel).collect();
            distinct(&mut kernels, self.limits.tried);
            kernels
        };
        let generated: Vec<Vec<Option<(Kernel, Table)>>> = unknown.iter().map(generate).collect();
        // Created before the timing lock is taken, like these.
        context.prepare_uploads()?;
        let counts: Vec<usize> = generated.iter().map(Vec::len).collect();
        let mut all = Candidate::all(context, generated.into_iter().flatten().collect()).into_iter();
        Ok(counts.into_iter().map(|count| all.by_ref().take(count).collect()).collect())
    }

    fn measure(
        &self,
        context: &Arc<Context>,
        one: &Unknown<'_>,
        kernels: &[Option<Candidate>],
    ) -> Option<Schedule> {
        let _timing = lock(&self.timing);
        // Another thread may have measured it meanwhile.
        if let Some(schedule) = self.known(&one.class, &one.schedules) {
            return Some(schedule);
        }
        let outcomes = match measure(context, one.fusion, kernels, &self.limits) {
            Ok(outcomes) => outcomes,
            Err(error) => {
                tracing::warn!("a {} kernel is not tuned: {error}", one.fusion.kind.name());
                lock(&self.refused).insert(one.class.clone());
                return None;
            }
        };
        self.measured.fetch_add(1, Ordering::Relaxed);
        let name = kernels.iter().flatten().next().map_or("", |c| c.kernel.name.as_str());
        let types = types(one.fusion);
        for (schedule, outcome) in one.schedules.iter().zip(&outcomes) {
            match outcome {
                Outcome::Wrong(why) => {
                    tracing::warn!("{name} of {types} with {schedule} is wrong and not used: {why}");
                }
                Outcome::Time(ns) => tracing::debug!("{name} of {types} with {schedule}: {:.2} us", ns / 1e3),
                Outcome::Skipped => {}
            }
        }
        // If the default has no time, neither has any other, and the default stays.
        let best = fastest(&outcomes).unwrap_or(0);
        let micros = |i: usize| match &outcomes[i] {
            Outcome::Time(ns) => ns / 1e3,
            Outcome::Wrong(_) | Outcome::Skipped => 0.0,
        };
        let entry = Entry {
            class: one.class.clone(),
            kernel: name.into(),
            types,
            schedule: one.schedules[best].to_string(),
            micros: micros(best),
            first_micros: micros(0),
        };
        lock(&self.store).put(entry);
        Some(one.schedules[best])
    }
}

/// Types of operands and results as text, for people.
fn types(fusion: &Fusion) -> String {
    let list = |types: Vec<String>| types.join(" ");
    let operands = list(fusion.body.params().iter().map(ToString::to_string).collect());
    let results = list(fusion.body.outputs().iter().map(|o| fusion.body.ty(o.value).to_string()).collect());
    format!("{operands} -> {results}")
}

/// Limits the candidates to `most` kernels with distinct code.
fn distinct(kernels: &mut [Option<(Kernel, Table)>], most: usize) {
    let mut texts: Vec<String> = vec![];
    for slot in kernels {
        let another = slot.as_ref().filter(|(k, _)| texts.len() < most && !texts.contains(&k.code()));
        match another {
            Some((kernel, _)) => texts.push(kernel.code()),
            None => *slot = None,
        }
    }
}

/// Pipelines of the kernels, in their order.
fn pipelines(context: &Arc<Context>, kernels: &[Kernel]) -> Result<Vec<Arc<Pipeline>>, ExecError> {
    let cache = crate::cache_dir::cache_dir();
    let (spirv, _) = compile_kernels(kernels, context.caps(), cache.as_deref())?;
    let described = kernels.iter().zip(&spirv).map(|(kernel, spirv)| PipelineDesc::of(kernel, spirv));
    let descs: Vec<PipelineDesc<'_>> = described.collect();
    Ok(context.create_pipelines(&descs)?)
}

impl Candidate {
    /// A candidate for a kernel and the symbol table that it was generated with.
    ///
    /// # Errors
    /// When the shader does not compile or the driver fails to create its pipeline.
    pub fn new(context: &Arc<Context>, kernel: Kernel, table: Table) -> Result<Self, ExecError> {
        let pipeline = pipelines(context, std::slice::from_ref(&kernel))?.remove(0);
        Ok(Candidate { kernel, table, pipeline })
    }

    /// Candidates for several kernels, created in parallel; `None`, with a warning, where the compiler or the driver
    /// fails.
    pub fn all(context: &Arc<Context>, made: Vec<Option<(Kernel, Table)>>) -> Vec<Option<Candidate>> {
        let kernels: Vec<Kernel> = made.iter().flatten().map(|(kernel, _)| kernel.clone()).collect();
        if let Ok(pipelines) = pipelines(context, &kernels) {
            let mut pipelines = pipelines.into_iter();
            let mut candidate = |made: Option<(Kernel, Table)>| {
                let (kernel, table) = made?;
                Some(Candidate { kernel, table, pipeline: pipelines.next()? })
            };
            return made.into_iter().map(&mut candidate).collect();
        }
        // One of them fails: create each separately.
        let alone = |(kernel, table): (Kernel, Table)| {
            let name = kernel.name.clone();
            let refused = |error: &ExecError| tracing::warn!("a schedule of {name} is not tried: {error}");
            Candidate::new(context, kernel, table).inspect_err(refused).ok()
        };
        made.into_iter().map(|made| made.and_then(alone)).collect()
    }
}
