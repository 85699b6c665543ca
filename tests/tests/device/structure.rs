//! Counts that plans promise, as recorded and as planned for a named profile.

use std::path::Path;

use tallow_ir::caps::profile;
use tallow_ir::schedule::{barriers_lower_bound, check};
use tallow_ir::{DType, DeviceCaps, Graph, Op};
use tallow_models::model_graph::{ModelGraph, Rows};
use tallow_models::{LoadOptions, ModelFile};
use tallow_tests::{Case, random_inputs, random_row_program};

use crate::harness::{device, run_counted};

fn models() -> Vec<std::path::PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    let all = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut models: Vec<_> = all.filter(|p| p.extension().is_some_and(|e| e == "gguf")).collect();
    assert!(models.len() >= 2, "models are missing");
    models.extend(["Q4_0", "Q4_K_M"].map(|of| tallow_testmodels::model(&format!("storyteller-nano-{of}"))));
    models
}

/// 7 dispatches and 6 levels a layer at most, barriers at the bound of an independent longest path, arena
/// within 1.05 of the largest live set; on every profile that has buffers enough for whole layers.
#[test]
fn decode_plans_keep_their_promises_on_every_profile() {
    for path in models() {
        let llama = ModelGraph::from_file(&tallow_gguf::GgufFile::open(&path).unwrap()).unwrap();
        let layers = llama.config.layers;
        let (decode, prefill) =
            (llama.step(Rows::One, llama.config.context), llama.step(Rows::UpTo(512), 512));
        for name in ["lavapipe", "h200", "rdna3", "intel"] {
            let caps = profile(name).unwrap();
            for (graph, per_layer) in
                [(decode.as_ref().unwrap(), Some((7, 6))), (prefill.as_ref().unwrap(), None)]
            {
                let module = tallow_codegen::compile(graph, &caps).unwrap();
                let (plan, program) = (&module.plan, &module.program);
                let what = format!("{} {} on {name}", path.display(), graph.name());
                if let Some((dispatches, levels)) = per_layer {
                    // Embedding, rope angles and logits are outside the layers.
                    assert!(
                        program.dispatches.len() <= dispatches * layers + 3,
                        "{what}: {}",
                        program.dispatches.len()
                    );
                    assert!(plan.levels.len() <= levels * layers + 2, "{what}: {} levels", plan.levels.len());
                }
                assert_eq!(plan.barriers(), barriers_lower_bound(program), "{what}");
                let (bytes, bound) = (plan.arena.bytes as f64, plan.arena.lower_bound_bytes as f64);
                assert!(bytes <= 1.05 * bound, "{what}: arena {bytes} over {bound}");
                check(program, plan, &tallow_codegen::limits(&caps))
                    .unwrap_or_else(|v| panic!("{what}: {v:?}"));
            }
        }
    }
}

/// One recording, no pipeline after the first token, over 200 tokens; counts as recorded.
#[test]
fn decode_is_recorded_once() {
    if device().is_none() {
        return;
    }
    // A device of its own: others compile on the shared one meanwhile.
    let device = tallow::Device::best_vulkan().unwrap();
    let tallow::Device::Vulkan(vulkan) = &device else { panic!("{device} is no Vulkan device") };
    let path = tallow_testmodels::model("storyteller-nano-Q4_K_M");
    let options = LoadOptions { context: Some(256), ..LoadOptions::default() };
    let mut model = ModelFile::open(path).unwrap().load(&device, &options, &mut |_| {}).unwrap();
    model.feed(&[0, 5, 6]).unwrap();
    model.feed(&[7]).unwrap();
    let first = vulkan.work_done();
    for i in 0..200 {
        model.feed(&[i % 100 + 10]).unwrap();
    }
    let last = model.decode_stats();
    // The prefill steps for long and for short prompts and decode were recorded once each, and nothing since.
    assert_eq!((first.0, vulkan.work_done()), (3, first));
    let layers = model.layers();
    assert!(last.dispatches <= 7 * layers + 3, "{} dispatches", last.dispatches);
    assert!(last.barriers < 6 * layers + 2, "{} barriers", last.barriers);
    assert_eq!(last.barriers, last.barriers_lower_bound);
}

/// Dispatches of `graph` as planned for `caps`, and the same as recorded where there is a device.
fn dispatches(graph: &Graph, caps: &DeviceCaps) -> usize {
    if let Some(device) = device() {
        let inputs = random_inputs(graph, 1);
        let recorded = run_counted(&device, graph, &inputs).unwrap_or_else(|e| panic!("{e}\n{graph}")).1;
        assert_eq!(recorded, 1, "recorded\n{graph}");
    }
    tallow_codegen::compile(graph, caps).unwrap_or_else(|e| panic!("{e}\n{graph}")).program.dispatches.len()
}

/// The same files whose GLSL is in snapshots.
#[test]
fn named_row_programs_are_one_dispatch() {
    let caps = profile("lavapipe").unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("filetests/passes/fuse");
    for name in ["softmax", "log_softmax", "layer_norm", "rms_norm", "gelu_sigmoid"] {
        let graph = Case::read(&folder.join(format!("{name}.ir"))).parse().unwrap();
        assert_eq!(dispatches(&graph, &caps), 1, "{graph}");
    }
}

/// Whether a drawn program is one that the promise is about: a reduction is alive, no output is just an input,
/// and kernels can compute its types (no 64-bit type yet).
fn computable(graph: &Graph) -> bool {
    let alive = tallow_ir::passes::dead_code::run(graph, &profile("lavapipe").unwrap()).unwrap();
    let reduces = alive.nodes().any(|(_, n)| matches!(n.op, Op::Reduce { .. }));
    let copies = graph.outputs().iter().any(|o| graph.op(o.value).is_leaf());
    reduces
        && !copies
        && graph.nodes().all(|(_, n)| n.types.iter().all(|t| !matches!(t.dtype, DType::F64 | DType::I64)))
}

/// Programs of one to three reductions over the same rows with random maps around them, by seed.
#[test]
fn random_row_programs_are_one_dispatch() {
    let caps = profile("lavapipe").unwrap();
    for (seed, graph) in
        (0..).map(|seed| (seed, random_row_program(seed))).filter(|(_, g)| computable(g)).take(50)
    {
        assert_eq!(dispatches(&graph, &caps), 1, "seed {seed}\n{graph}");
    }
}
