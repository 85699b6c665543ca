//! Kernels compared with the interpreter one at a time: right ones pass, and of wrong ones the right one is named.

use std::collections::HashMap;
use std::ops::ControlFlow;

use tallow::{CheckOutcome, Device, KernelCheck, Prepared, VerifyOptions};
use tallow_ir::Graph;
use tallow_ir::text::parse;
use tallow_tests::random_inputs;

use crate::harness::device;

/// Softmax between two products of few rows, with a symbol for the number of rows, and a state that is updated.
const THREE_KERNELS: &str = r#"graph "three" {
  symbol seq <= 4
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
  %17 = state "s" : f16[8,32]
  %18 = cast %16 : f16[seq,32]
  %19 = state_update %17 %18 at=[1,0] : f16[8,32]
  return %19
  return %16 as "y"
}"#;

/// The checks of a run with `edit` applied to the kernels, on random leaves.
fn checks(
    device: &Device,
    graph: &Graph,
    options: VerifyOptions,
    edit: &mut dyn FnMut(&mut [tallow_codegen::Kernel]),
) -> Vec<KernelCheck> {
    let given = random_inputs(graph, 3);
    let weight = |(name, leaf): (&String, &tallow_tests::random_inputs::Leaf)| {
        (name.clone(), device.weight(leaf.dtype, &leaf.shape, &leaf.bytes).unwrap())
    };
    let state = |(name, leaf): (&String, &tallow_tests::random_inputs::Leaf)| {
        let state = device.state(leaf.dtype, &leaf.shape).unwrap();
        state.write_bytes(&leaf.bytes).unwrap();
        (name.clone(), state)
    };
    let weights: HashMap<_, _> = given.weights.iter().map(weight).collect();
    let states: HashMap<_, _> = given.states.iter().map(state).collect();
    let executable = Prepared::edited(device, graph, edit).unwrap().bind(&weights, &states).unwrap();
    let symbols: Vec<(&str, u64)> =
        given.symbols.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let inputs: Vec<(&str, &[u8])> =
        given.inputs.iter().map(|(n, leaf)| (n.as_str(), &leaf.bytes[..])).collect();
    let mut all = vec![];
    executable
        .verify(&symbols, &inputs, &options, &mut |check| {
            all.push(check);
            ControlFlow::Continue(())
        })
        .unwrap();
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

/// Kernels that need more memory than there is are listed, and run all the same.
#[test]
fn kernels_that_need_too_much_memory_are_not_compared() {
    let Some(device) = device() else { return };
    let graph = parse(THREE_KERNELS).unwrap();
    let options = VerifyOptions { memory: Some(100_000), ..VerifyOptions::default() };
    let found = checks(&device, &graph, options, &mut |_| {});
    let skipped = |check: &&KernelCheck| matches!(check.outcome, CheckOutcome::NotCompared(_));
    let count = found.iter().filter(skipped).count();
    assert!(count > 0 && count < found.len(), "{found:#?}");
    assert_eq!(differing(&found), Vec::<&str>::new());
}
