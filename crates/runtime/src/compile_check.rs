//! Compiles the kernels of graphs with a driver, runs none, and reports what the driver made of each.

use std::collections::HashMap;

use rayon::prelude::*;
use tallow_codegen::{CodegenError, Kernel, Target, compile, compile_kernels};
use tallow_ir::Graph;

use crate::statistics::{KernelReport, PipelineStatistics};
use crate::vulkan::{CompileOnly, PipelineDesc};

/// A kernel and where it is run.
struct Found {
    kernel: Kernel,
    graphs: Vec<String>,
    dispatches: usize,
}

/// Plans graphs for the device, generates their kernels and compiles each distinct one, in parallel. The rows come in the
/// order in which the graphs need the kernels first.
///
/// A kernel that does not compile has its error in its row.
///
/// # Errors
/// When no kernels can be made of a graph.
pub fn check_graphs(device: &CompileOnly, graphs: &[Graph]) -> Result<Vec<KernelReport>, CodegenError> {
    let mut found: Vec<Found> = vec![];
    let mut by_text: HashMap<(String, Target), usize> = HashMap::new();
    for graph in graphs {
        let module = compile(graph, device.caps())?;
        let mut dispatches = vec![0; module.kernels.len()];
        for launch in &module.launches {
            dispatches[launch.kernel] += 1;
        }
        for (kernel, dispatches) in module.kernels.into_iter().zip(dispatches) {
            let at = *by_text.entry((kernel.glsl.clone(), kernel.target)).or_insert(found.len());
            match found.get_mut(at) {
                Some(known) => {
                    known.dispatches += dispatches;
                    if known.graphs.last().map(String::as_str) != Some(graph.name()) {
                        known.graphs.push(graph.name().to_string());
                    }
                }
                None => found.push(Found { kernel, graphs: vec![graph.name().to_string()], dispatches }),
            }
        }
    }
    Ok(found.into_par_iter().map(|found| report(device, found)).collect())
}

fn report(device: &CompileOnly, found: Found) -> KernelReport {
    let Found { kernel, graphs, dispatches } = found;
    let outcome = check_kernel(device, &kernel);
    KernelReport { name: kernel.name, graphs, dispatches, workgroup: kernel.workgroup, outcome }
}

/// Compiles one kernel as [`Compiled`](crate::executable::Compiled) does.
fn check_kernel(device: &CompileOnly, kernel: &Kernel) -> Result<PipelineStatistics, String> {
    let cache = crate::cache_dir::cache_dir();
    let (modules, _) = compile_kernels(std::slice::from_ref(kernel), device.caps(), cache.as_deref())
        .map_err(|error| error.to_string())?;
    let spirv = modules.first().ok_or("it was not compiled")?;
    device.compile(&PipelineDesc::of(kernel, spirv)).map_err(|error| error.to_string())
}
