//! What kinds leave open: the first choice is the kernel that is generated without one, and all others are kernels too.

use std::collections::BTreeMap;

use tallow_codegen::{Choice, CodegenError, Sharing, Table, choices, class_of, kernel, kernel_with};
use tallow_ir::{DeviceCaps, Fusion, Op, dot, matrix, passes, text};

use crate::{Found, PROFILES, judge};

/// Choices of a kernel beside the first that are compiled: those that a tuner tries.
const MOST: usize = 9;

/// Activations `[rows,k]`, normed if `normed`, times the transposes of weights `[n,k]`.
fn linear(rows: &str, k: u32, weights: &[(&str, u32)], normed: bool) -> String {
    let mut lines = vec![format!("symbol seq <= 200\n%0 = input \"x\" : f32[{rows},{k}]")];
    let (mut next, mut x) = (1, 0);
    let mut line = |text: String| {
        lines.push(format!("%{next} = {text}"));
        next += 1;
        next - 1
    };
    if normed {
        let square = line(format!("mul %0 %0 : f32[{rows},{k}]"));
        let sum = line(format!("reduce_sum %{square} axes=[1] : f32[{rows}]"));
        let root = line(format!("rsqrt %{sum} : f32[{rows}]"));
        let root = line(format!("reshape %{root} : f32[{rows},1]"));
        let root = line(format!("broadcast %{root} : f32[{rows},{k}]"));
        x = line(format!("mul %0 %{root} : f32[{rows},{k}]"));
    }
    let mut results = vec![];
    for (i, (format, n)) in weights.iter().enumerate() {
        let w = line(format!("weight \"w{i}\" : {format}[{n},{k}]"));
        let widen = if matches!(*format, "f16" | "f32") { "cast" } else { "dequantize" };
        let w = line(format!("{widen} %{w} : f32[{n},{k}]"));
        let w = line(format!("permute %{w} [1,0] : f32[{k},{n}]"));
        results.push(line(format!("matmul %{x} %{w} : f32[{rows},{n}]")));
    }
    lines.extend(results.iter().enumerate().map(|(i, y)| format!("return %{y} as \"y{i}\"")));
    format!("graph \"linear\" {{\n{}\n}}\n", lines.join("\n"))
}

/// Softmax along `axis` of a matrix.
fn softmax([rows, columns]: [u32; 2], axis: usize) -> String {
    let n = if axis == 0 { columns } else { rows };
    let ones = if axis == 0 { format!("1,{n}") } else { format!("{n},1") };
    let all = format!("f32[{rows},{columns}]");
    format!(
        r#"graph "softmax" {{
  %0 = input "x" : {all}
  %1 = reduce_max %0 axes=[{axis}] : f32[{n}]
  %2 = reshape %1 : f32[{ones}]
  %3 = broadcast %2 : {all}
  %4 = sub %0 %3 : {all}
  %5 = exp %4 : {all}
  %6 = reduce_sum %5 axes=[{axis}] : f32[{n}]
  %7 = reshape %6 : f32[{ones}]
  %8 = broadcast %7 : {all}
  %9 = div %5 %8 : {all}
  return %9 as "y"
}}
"#
    )
}

/// One query of `heads` heads over `pos` keys of 8 heads.
fn attention(heads: u32, depth: u32) -> String {
    format!(
        r#"graph "attention" {{
  symbol pos <= 4096
  %0 = input "q" : f32[{heads},1,{depth}]
  %1 = input "k" : f16[8,pos,{depth}]
  %2 = input "v" : f16[8,pos,{depth}]
  %3 = attention %0 %1 %2 scale=0.125 causal=false : f32[{heads},1,{depth}]
  return %3 as "y"
}}
"#
    )
}

/// Many queries of `heads` heads, in f16.
fn attention_of_many(heads: u32, queries: u32, attributes: &str) -> String {
    format!(
        r#"graph "attention" {{
  symbol seq <= 600
  %0 = input "q" : f16[{heads},{queries},64]
  %1 = input "k" : f16[2,seq,64]
  %2 = input "v" : f16[2,seq,128]
  %3 = attention %0 %1 %2 scale=0.125 {attributes} : f16[{heads},{queries},128]
  return %3 as "y"
}}
"#
    )
}

/// A product of the transpose of what lies in memory, times a number that all results share.
fn turned_and_scaled() -> String {
    r#"graph "turned" {
  %0 = input "x" : f16[256,128]
  %1 = cast %0 : f32[256,128]
  %2 = permute %1 [1,0] : f32[128,256]
  %3 = weight "w" : f16[256,200]
  %4 = cast %3 : f32[256,200]
  %5 = matmul %2 %4 : f32[128,200]
  %6 = input "scale" : f32[1,1]
  %7 = broadcast %6 : f32[128,200]
  %8 = mul %5 %7 : f32[128,200]
  return %8 as "y"
}
"#
    .to_string()
}

fn cases() -> Vec<String> {
    vec![
        turned_and_scaled(),
        linear("1", 4096, &[("q4_0", 4096)], true),
        linear("1", 4096, &[("q4_k", 4096), ("q6_k", 1024)], true),
        linear("3", 512, &[("q8_0", 100)], false),
        linear("1", 1024, &[("f16", 3000)], true),
        linear("2", 1000, &[("f16", 77)], false),
        linear("1", 14336, &[("q4_0", 4096)], false),
        linear("4096", 1024, &[("f16", 4096)], false),
        linear("seq", 256, &[("q4_k", 512), ("q4_k", 512)], false),
        linear("70", 100, &[("f32", 70)], false),
        softmax([3, 5000], 1),
        softmax([3000, 500], 1),
        softmax([999, 1000], 0),
        attention(32, 128),
        attention(24, 64),
        attention_of_many(2, 100, "causal=false"),
        attention_of_many(32, 2048, "causal=true round_weights=true"),
    ]
}

/// The fusions of a case on a device, with activations and operands rounded where it multiplies those faster.
fn fusions(case: &str, caps: &DeviceCaps) -> Vec<Fusion> {
    let graph = text::parse(case).unwrap_or_else(|e| panic!("{e}\n{case}"));
    let graph = dot::quantize_activations(&graph, caps).unwrap();
    let graph =
        if matrix::has_instructions(caps) { matrix::round_operands(&graph, caps).unwrap() } else { graph };
    let fused = passes::run(&graph, caps, &mut |_, _| {}).unwrap();
    let fusion = |op: &Op| if let Op::Fusion(f) = op { Some((**f).clone()) } else { None };
    fused.graph().nodes().filter_map(|(_, node)| fusion(&node.op)).collect()
}

#[test]
fn every_choice_is_a_kernel() {
    let (mut found, mut failures) = (vec![], vec![]);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (profile, make) in PROFILES {
        let caps = make();
        for fusion in cases().iter().flat_map(|case| fusions(case, &caps)) {
            let all = choices(&fusion, &caps).unwrap();
            let Some(first) = all.first() else { continue };
            let plain = kernel(&fusion, &caps, &mut Table::default()).unwrap();
            let chosen = |choice| kernel_with(&fusion, choice, &caps, &mut Table::default());
            assert_eq!(chosen(*first).unwrap(), plain, "{profile}: {first}\n{}", fusion.body);
            let mut texts = vec![plain.glsl];
            for choice in all[1..].iter().take(MOST) {
                let label = format!("{profile}: {choice}");
                match chosen(*choice) {
                    Ok(kernel) => {
                        texts.push(kernel.glsl.clone());
                        found.push(Found { label, kind: fusion.kind, caps: caps.clone(), kernel });
                    }
                    // As large a device as the choice needs, this one is not.
                    Err(CodegenError::SharedMemory { .. }) => {}
                    Err(e) => failures.push(format!("{label}: {e}\n{}", fusion.body)),
                }
            }
            assert!(all.iter().all(|choice| choice.kind() == first.kind()), "{all:?}");
            texts.sort();
            texts.dedup();
            *counts.entry(first.kind()).or_default() += texts.len() - 1;
        }
    }
    assert_eq!(counts.len(), 8, "{counts:?}");
    assert!(counts.values().all(|n| *n > 0), "{counts:?}");
    judge(&found, failures);
}

/// Results that no single binding spans are stored by a function of their buffer, which is not to be taken for one of the kernel.
#[test]
fn choices_of_results_in_several_windows_are_kernels() {
    let caps = DeviceCaps { max_storage_buffer_range: 1 << 16, ..tallow_ir::caps::h200() };
    let mut found = vec![];
    for fusion in fusions(&turned_and_scaled(), &caps) {
        for choice in choices(&fusion, &caps).unwrap() {
            let kernel = kernel_with(&fusion, choice, &caps, &mut Table::default()).unwrap();
            let label = choice.to_string();
            found.push(Found { label, kind: fusion.kind, caps: caps.clone(), kernel });
        }
    }
    assert!(found.iter().any(|f| f.kernel.glsl.contains("coopMatPerElementNV")));
    judge(&found, vec![]);
}

#[test]
fn what_is_no_choice_of_a_kernel_is_refused() {
    let caps = tallow_ir::caps::h200();
    let fusion = &fusions(&cases()[1], &caps)[0];
    let other = Choice::Sharing(Sharing { workgroup: 0, workgroups: 0, parts: 0 });
    for choice in [Choice::Tile([64, 64]), other] {
        let error = kernel_with(fusion, choice, &caps, &mut Table::default()).unwrap_err();
        assert!(matches!(error, CodegenError::Choice { .. }), "{error}");
    }
}

#[test]
fn classes_tell_kernels_apart_but_not_near_extents() {
    let caps = tallow_ir::caps::h200();
    let class = |rows, k, weights: &[(&str, u32)], normed| {
        let fusion = &fusions(&linear(rows, k, weights, normed), &caps)[0];
        class_of(fusion, &choices(fusion, &caps).unwrap()[0], &caps)
    };
    let own = class("1", 4096, &[("q4_0", 12288)], true);
    assert_eq!(own, class("1", 4096, &[("q4_0", 14336)], true));
    for other in [
        class("1", 4096, &[("q4_0", 12288 + 1)], true),
        class("1", 4096, &[("q4_0", 4096)], true),
        class("1", 4096 + 32, &[("q4_0", 12288)], true),
        class("2", 4096, &[("q4_0", 12288)], true),
        class("1", 4096, &[("q4_1", 12288)], true),
        class("1", 4096, &[("q4_0", 12288)], false),
        class("1", 4096, &[("q4_0", 12288), ("q4_0", 12288)], true),
    ] {
        assert_ne!(own, other);
    }
    let mut newer = caps.clone();
    newer.driver += ".1";
    let fusion = &fusions(&linear("1", 4096, &[("q4_0", 12288)], true), &caps)[0];
    assert_ne!(own, class_of(fusion, &choices(fusion, &caps).unwrap()[0], &newer));
}

/// Workgroups that share a tile of a product by matrix hardware, and what they share.
#[test]
fn few_tiles_with_long_inner_extents_are_shared() {
    let shares = |case: &str, buffers: u32| {
        let caps = DeviceCaps { max_storage_buffers: buffers, ..tallow_ir::caps::h200() };
        let kernels = fusions(case, &caps);
        let mut kernels = kernels.iter().map(|f| kernel(f, &caps, &mut Table::default()).unwrap());
        let product = kernels.find(|kernel| kernel.glsl.contains("coopMatMulAdd")).expect("by matrices");
        let scratch: Vec<(u64, Option<u32>)> = product.scratch.iter().map(|s| (s.bytes, s.fill)).collect();
        (product.grid[2].most(), scratch)
    };
    let f16 = |rows: &str, k: u32, n: u32| linear(rows, k, &[("f16", n)], false);
    let of = |parts: u64, tiles: u64, side: u64| {
        (parts, vec![(4 * parts * tiles * side * side, None), (4 * tiles, Some(0))])
    };
    // Two workgroups for each of 128 large tiles, none for one row of tiles more.
    assert_eq!(shares(&f16("512", 4096, 4096), 16), of(2, 128, 128));
    assert_eq!(shares(&f16("512", 4096, 4224), 16), (1, vec![]));
    // At least 32 slices of 32 for each of 16 small ones, and at most eight workgroups.
    assert_eq!(shares(&f16("70", 2016, 512), 16), (1, vec![]));
    assert_eq!(shares(&f16("70", 2048, 512), 16), of(2, 16, 64));
    assert_eq!(shares(&f16("70", 4104, 512), 16), of(4, 16, 64));
    assert_eq!(shares(&f16("70", 16_384, 512), 16), of(8, 16, 64));
    // As many rows as a symbol can stand for; two segments.
    assert_eq!(shares(&f16("seq", 4096, 512), 16), of(4, 4 * 8, 64));
    assert_eq!(shares(&linear("70", 4096, &[("f16", 512), ("f16", 40)], false), 16), of(4, 2 * 9, 64));
    // No binding is left to meet in.
    assert_eq!(shares(&f16("512", 4096, 4096), 4), (1, vec![]));
}
