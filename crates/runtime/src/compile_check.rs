//! Compiles the kernels of graphs with a driver, runs none, and reports what the driver made of each.

use std::collections::HashMap;

use rayon::prelude::*;
use tallow_codegen::{
    CodegenError, Kernel, Module, Table, Target, compile, compile_kernels, kernel_with, schedules,
};
use tallow_ir::{DeviceCaps, Graph, Op};

use crate::statistics::{Coverage, KernelReport, PipelineStatistics};
use crate::vulkan::{CompileOnly, PipelineDesc};

/// A kernel and where it is run.
struct Found {
    kernel: Kernel,
    candidate: bool,
    graphs: Vec<String>,
    dispatches: usize,
}

/// Distinct kernels, in the order in which they were found.
#[derive(Default)]
struct Kernels {
    found: Vec<Found>,
    by_text: HashMap<(String, Target), usize>,
}

/// Plans graphs for the device, generates their kernels and compiles each distinct one, in parallel. The rows come in the
/// order in which the graphs need the kernels first.
///
/// A kernel that does not compile has its error in its row.
///
/// # Errors
/// When no kernels can be made of a graph.
pub fn check_graphs(
    device: &CompileOnly,
    graphs: &[Graph],
    coverage: Coverage,
) -> Result<Vec<KernelReport>, CodegenError> {
    let caps = device.caps();
    let modules = graphs.iter().map(|graph| compile(graph, caps)).collect::<Result<Vec<Module>, _>>()?;
    let mut kernels = Kernels::default();
    for (graph, module) in graphs.iter().zip(&modules) {
        let mut dispatches = vec![0; module.kernels.len()];
        for launch in &module.launches {
            dispatches[launch.kernel] += 1;
        }
        for (kernel, dispatches) in module.kernels.iter().zip(dispatches) {
            kernels.add(graph.name(), kernel.clone(), false, dispatches);
        }
    }
    // After all that run, which keep their rows.
    match coverage {
        Coverage::Chosen => {}
        Coverage::Candidates => {
            for (graph, module) in graphs.iter().zip(&modules) {
                kernels.add_candidates(graph.name(), module, caps)?;
            }
        }
    }
    Ok(kernels.found.into_par_iter().map(|found| report(device, found)).collect())
}

impl Kernels {
    fn add(&mut self, graph: &str, kernel: Kernel, candidate: bool, dispatches: usize) {
        let next = self.found.len();
        let at = *self.by_text.entry((kernel.glsl.clone(), kernel.target)).or_insert(next);
        let Some(known) = self.found.get_mut(at) else {
            return self.found.push(Found { kernel, candidate, graphs: vec![graph.to_string()], dispatches });
        };
        known.dispatches += dispatches;
        // A candidate that the graph does not run says nothing of it.
        if (dispatches > 0 || known.candidate) && known.graphs.iter().all(|name| name != graph) {
            known.graphs.push(graph.to_string());
        }
    }

    /// What the tuner would try for the fusions of a graph. A candidate for which no kernel can be made is left out, as the tuner
    /// does.
    fn add_candidates(
        &mut self,
        graph: &str,
        module: &Module,
        caps: &DeviceCaps,
    ) -> Result<(), CodegenError> {
        for (_, node) in module.graph.graph().nodes() {
            let Op::Fusion(fusion) = &node.op else { continue };
            for schedule in schedules(fusion, caps)? {
                if let Ok(kernel) = kernel_with(fusion, schedule, caps, &mut Table::default()) {
                    self.add(graph, kernel, true, 0);
                }
            }
        }
        Ok(())
    }
}

fn report(device: &CompileOnly, found: Found) -> KernelReport {
    let Found { kernel, candidate, graphs, dispatches } = found;
    let outcome = check_kernel(device, &kernel);
    KernelReport { name: kernel.name, candidate, graphs, dispatches, workgroup: kernel.workgroup, outcome }
}

/// Compiles one kernel as [`Compiled`](crate::executable::Compiled) does.
fn check_kernel(device: &CompileOnly, kernel: &Kernel) -> Result<PipelineStatistics, String> {
    let cache = crate::cache_dir::cache_dir();
    let (modules, _) = compile_kernels(std::slice::from_ref(kernel), device.caps(), cache.as_deref())
        .map_err(|error| error.to_string())?;
    let spirv = modules.first().ok_or("it was not compiled")?;
    device.compile(&PipelineDesc::of(kernel, spirv)).map_err(|error| error.to_string())
}
