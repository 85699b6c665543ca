//! Kernels compared with the interpreter one at a time: right ones pass, and of wrong ones the right one is named.

use std::collections::HashMap;
use std::ops::ControlFlow;

use tallow::{
    CheckOutcome, Device, Driver, Executable, KernelCheck, Prepared, VerifiedKernels, VerifyOptions,
};
use tallow_ir::Graph;
use tallow_ir::text::parse;
use tallow_models::{LoadOptions, Model, ModelFile, VerifiedStep};
use tallow_tests::random_inputs::Leaf;
use tallow_tests::{Inputs, random_inputs};

use crate::harness::device;

/// Softmax between two products, with a symbol for the number of rows, and a state that is updated.
/// There are more rows than a matvec has, which would reduce them itself.
const THREE_KERNELS: &str = r#"graph "three" {
  symbol seq <= 12
  %0 = input "x" : f32[seq,64]
  %1 = weight "w" : q4_0[96,64]
  %2 = dequantize %1 : f32[96,64]
  %3 = permute %2 [1,0] : f32[64,96]
  %4 = matmul %0 %3 : f32[seq,96]
  %5 = reduce_max %4 axes=[1] : f32[seq]
  %6 = reshape %5 : f32[seq,1]
  %7 = broadcast %6 : f32[seq,96]
  %8 = sub %4 %7 : f32[seq,96]
  %9 = exp %8 : f32[seq,96]
  %10 = reduce_sum %9 axes=[1] : f32[seq]
  %11 = reshape %10 : f32[seq,1]
  %12 = broadcast %11 : f32[seq,96]
  %13 = div %9 %12 : f32[seq,96]
  %14 = weight "v" : f16[96,32]
  %15 = cast %14 : f32[96,32]
  %16 = matmul %13 %15 : f32[seq,32]
  %17 = state "s" : f16[16,32]
  %18 = cast %16 : f16[seq,32]
  %19 = state_update %17 %18 at=[1,0] : f16[16,32]
  return %19
  return %16 as "y"
}"#;

/// A graph with kernels that `edit` changes, on random leaves.
struct Bound {
    executable: Executable,
    given: Inputs,
}

impl Bound {
    fn new(device: &Device, graph: &Graph, edit: &mut dyn FnMut(&mut [tallow_codegen::Kernel])) -> Bound {
        let given = random_inputs(graph, 3);
        let weight = |(name, leaf): (&String, &Leaf)| {
            (name.clone(), device.weight(leaf.dtype, &leaf.shape, &leaf.bytes).unwrap())
        };
        let state = |(name, leaf): (&String, &Leaf)| {
            let state = device.state(leaf.dtype, &leaf.shape).unwrap();
            state.write_bytes(&leaf.bytes).unwrap();
            (name.clone(), state)
        };
        let weights: HashMap<_, _> = given.weights.iter().map(weight).collect();
        let states: HashMap<_, _> = given.states.iter().map(state).collect();
        let executable = Prepared::edited(device, graph, edit).unwrap().bind(&weights, &states).unwrap();
        Bound { executable, given }
    }

    fn symbols(&self) -> Vec<(&str, u64)> {
        self.given.symbols.iter().map(|(name, value)| (name.as_str(), *value)).collect()
    }

    fn inputs(&self) -> Vec<(&str, &[u8])> {
        self.given.inputs.iter().map(|(n, leaf)| (n.as_str(), &leaf.bytes[..])).collect()
    }

    /// The first wrong kernel that the short form finds, and how many it compared.
    fn verify_new(&self, verified: &mut VerifiedKernels) -> (Option<KernelCheck>, usize) {
        let (options, mut compared) = (VerifyOptions::default(), 0);
        let run =
            self.executable.verify_new(&self.symbols(), &self.inputs(), &options, verified, &mut |_| {
                compared += 1;
            });
        (run.unwrap(), compared)
    }
}

/// The checks of a run with `edit` applied to the kernels, on random leaves.
fn checks(
    device: &Device,
    graph: &Graph,
    options: VerifyOptions,
    edit: &mut dyn FnMut(&mut [tallow_codegen::Kernel]),
) -> Vec<KernelCheck> {
    let prepared = Bound::new(device, graph, edit);
    let mut all = vec![];
    let (symbols, inputs) = (prepared.symbols(), prepared.inputs());
    let run = prepared.executable.verify(&symbols, &inputs, &options, &mut |check| {
        all.push(check);
        ControlFlow::Continue(())
    });
    run.unwrap();
    all
}

fn differing(checks: &[KernelCheck]) -> Vec<&str> {
    checks.iter().filter(|check| check.difference().is_some()).map(|check| check.name.as_str()).collect()
}

/// Replaces text in the kernel that has it, which is one.
fn replace(kernels: &mut [tallow_codegen::Kernel], from: &str, to: &str) -> String {
    let with: Vec<_> = kernels.iter_mut().filter(|kernel| kernel.glsl.contains(from)).collect();
    let [kernel] = with.try_into().unwrap_or_else(|all: Vec<_>| panic!("{from} is in {} kernels", all.len()));
    kernel.glsl = kernel.glsl.replace(from, to);
    kernel.name.clone()
}

#[test]
fn right_kernels_lie_within_their_bounds() {
    let Some(device) = device() else { return };
    let graph = parse(THREE_KERNELS).unwrap();
    let found = checks(&device, &graph, VerifyOptions::default(), &mut |_| {});
    assert!(found.len() >= 3, "{found:#?}");
    for check in &found {
        let CheckOutcome::Compared(results) = &check.outcome else { panic!("{check:#?}") };
        assert!(
            !results.is_empty() && results.iter().all(|r| r.elements > 0 && r.unbounded == 0),
            "{check:#?}"
        );
        assert!(check.worst().is_some_and(|worst| worst <= 1.0), "{check:#?}");
    }
    assert!(found.iter().any(|check| check.worst().is_some_and(|worst| worst > 0.0)), "{found:#?}");
}

/// The kernels around the wrong one are compared on what it left, and are right.
#[test]
fn a_wrong_kernel_is_named_and_no_other() {
    let Some(device) = device() else { return };
    let graph = parse(THREE_KERNELS).unwrap();
    let mut wrong = String::new();
    let found = checks(&device, &graph, VerifyOptions::default(), &mut |kernels| {
        wrong = replace(kernels, " = exp(", " = exp2(");
    });
    let named = differing(&found);
    assert!(named.len() == 1 && named[0].ends_with(&wrong), "{wrong} is wrong: {named:?}");
    let first = found.iter().find_map(KernelCheck::difference).and_then(|(_, c)| c.first.clone()).unwrap();
    assert!(first.got < first.low || first.got > first.high, "{first:?}");
}

/// What a kernel does not write is no number, and not what an earlier kernel left there.
#[test]
fn a_kernel_that_writes_nothing_is_named() {
    let Some(device) = device() else { return };
    let graph = parse(THREE_KERNELS).unwrap();
    let mut wrong = String::new();
    let found = checks(&device, &graph, VerifyOptions::default(), &mut |kernels| {
        let softmax = kernels.iter().position(|kernel| kernel.glsl.contains(" = exp(")).unwrap();
        wrong =
            replace(&mut kernels[softmax..=softmax], "void main() {", "void main() {\n    if (true) return;");
    });
    let named = differing(&found);
    assert!(named.len() == 1 && named[0].ends_with(&wrong), "{wrong} is wrong: {named:?}");
}

/// Of kernels that need more memory or work than they may, a sample is compared.
#[test]
fn samples_of_expensive_kernels_are_compared() {
    let Some(device) = device() else { return };
    let graph = parse(THREE_KERNELS).unwrap();
    let whole = checks(&device, &graph, VerifyOptions::default(), &mut |_| {});
    let elements = |check: &KernelCheck| match &check.outcome {
        CheckOutcome::Compared(results) => results.iter().map(|r| r.elements).sum::<usize>(),
        CheckOutcome::NotCompared(why) => panic!("{}: {why}", check.name),
    };
    for limits in [(Some(100_000), None), (None, Some(2000))] {
        let options = VerifyOptions { memory: limits.0, work: limits.1, ..VerifyOptions::default() };
        let found = checks(&device, &graph, options, &mut |_| {});
        assert!(found.iter().any(|check| check.sampled), "{found:#?}");
        for (sample, whole) in found.iter().zip(&whole) {
            let (some, all) = (elements(sample), elements(whole));
            assert!(some > 0 && (some < all) == sample.sampled, "{some} of {all}: {sample:#?}");
        }
        assert_eq!(differing(&found), Vec::<&str>::new());
        // A product that writes nothing is found in the sample, and no other kernel.
        let mut wrong = String::new();
        let found = checks(&device, &graph, options, &mut |kernels| {
            let product = kernels.iter().position(|kernel| kernel.glsl.contains("matmul")).unwrap();
            let main = ("void main() {", "void main() {\n    if (true) return;");
            wrong = replace(&mut kernels[product..=product], main.0, main.1);
        });
        let named = differing(&found);
        assert!(named.len() == 1 && named[0].ends_with(&wrong), "{wrong} is wrong: {named:?}");
        let sampled = found.iter().any(|check| check.difference().is_some() && check.sampled);
        assert!(sampled, "{found:#?}");
    }
}

/// Kernels of which no part can be computed alone are listed, and run all the same.
#[test]
fn sums_that_need_too_much_memory_are_not_compared() {
    let Some(device) = device() else { return };
    let graph = parse(
        r#"graph "sum" {
  %0 = input "x" : f32[4096]
  %1 = reduce_sum %0 axes=[0] : f32[]
  return %1 as "y"
}"#,
    );
    let options = VerifyOptions { memory: Some(10_000), ..VerifyOptions::default() };
    let found = checks(&device, &graph.unwrap(), options, &mut |_| {});
    let is_skipped = |check: &KernelCheck| matches!(check.outcome, CheckOutcome::NotCompared(_));
    assert!(!found.is_empty() && is_skipped(&found[0]), "{found:#?}");
}

fn driver(device: &Device, more: &str) -> Driver {
    let known = Driver::of(device).unwrap();
    Driver { driver: known.driver.clone() + more, ..known }
}

#[test]
fn kernels_are_verified_once_for_each_driver() {
    let Some(device) = device() else { return };
    let dir = tempfile::tempdir().unwrap();
    let bound = Bound::new(&device, &parse(THREE_KERNELS).unwrap(), &mut |_| {});
    let compared = |driver: &Driver| {
        let mut verified = VerifiedKernels::open(dir.path(), driver);
        let (wrong, compared) = bound.verify_new(&mut verified);
        assert_eq!(wrong, None);
        compared
    };
    let [this, newer] = ["", ".1"].map(|more| driver(&device, more));
    let all = compared(&this);
    assert!(all >= 3, "{all} kernels");
    assert_eq!(compared(&this), 0);
    assert_eq!(compared(&newer), all);
    assert_eq!(compared(&newer), 0);
    let file = std::fs::read_dir(dir.path().join("verified")).unwrap().next().unwrap().unwrap().path();
    let good = std::fs::read(&file).unwrap();
    for broken in [&b""[..], b"\xff\xfe", b"{}\n", &good[..good.len() / 4]] {
        std::fs::write(&file, broken).unwrap();
        assert_eq!(compared(&newer), all, "after {broken:?}");
        assert_eq!(std::fs::read(&file).unwrap(), good);
    }
    // A line that was cut is one kernel less.
    std::fs::write(&file, &good[..good.len() - 2]).unwrap();
    assert_eq!(compared(&newer), 1);
}

#[test]
fn a_wrong_kernel_is_not_remembered() {
    let Some(device) = device() else { return };
    let (dir, mut name) = (tempfile::tempdir().unwrap(), String::new());
    let bound = Bound::new(&device, &parse(THREE_KERNELS).unwrap(), &mut |kernels| {
        name = replace(kernels, " = exp(", " = exp2(");
    });
    for _ in 0..2 {
        let mut verified = VerifiedKernels::open(dir.path(), &driver(&device, ""));
        let (wrong, _) = bound.verify_new(&mut verified);
        assert!(wrong.is_some_and(|check| check.name.ends_with(&name)), "{name} is wrong");
    }
}

/// A model generates the same whether its kernels were compared before or not.
#[test]
fn a_model_is_as_before() {
    let Some(device) = device() else { return };
    let path = tallow_testmodels::model("storyteller-nano-Q4_K_M");
    let options = LoadOptions { context: Some(64), ..LoadOptions::default() };
    let load = || ModelFile::open(&path).unwrap().load(&device, &options, &mut |_| {}).unwrap();
    let text = |model: &mut Model| {
        let logits = model.feed(&[1, 5, 9, 13]).unwrap();
        [logits, model.feed(&[7]).unwrap()]
    };
    let expected = text(&mut load());
    let (mut model, mut verified) = (load(), VerifiedKernels::default());
    let new = model.new_kernels(&verified);
    // Two blocks of 32 columns, of two matrices with rows of 256 elements, fit where results are quantized.
    let limits = VerifyOptions { work: Some(1 << 17), ..VerifyOptions::default() };
    let mut steps = vec![];
    let start = std::time::Instant::now();
    let wrong = model.verify_new(&mut verified, &limits, &mut |step, check| {
        assert!(check.worst().is_some_and(|worst| worst <= 1.0), "{check:#?}");
        steps.push(step);
    });
    println!("{new} kernels in {:?}", start.elapsed());
    assert_eq!(wrong.unwrap(), None);
    assert!(steps.contains(&VerifiedStep::Decode) && steps.contains(&VerifiedStep::Prefill));
    assert_eq!((steps.len(), model.new_kernels(&verified), model.position()), (new, 0, 0));
    assert_eq!(text(&mut model), expected);
}
