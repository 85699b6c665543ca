//! Every kernel kind compiles for every device profile, passes `spirv-val`, and keeps to what the profile has:
//! its features (as SPIR-V capabilities), its storage buffers, invocations and shared memory.
//!
//! Needs no device. `spirv-val` is optional unless `REQUIRE_VULKAN=1`.
#![cfg(feature = "spirv")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests, with counts in their output")]

mod attention;
mod attention_grad;
mod choices;
mod contraction;
mod index_add;
mod map;
mod module;
mod row;
mod scatter;
mod sort;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use rayon::prelude::*;
use tallow_codegen::{
    Algorithm, CodegenError, Kernel, REPACK_PUSH_BYTES, REPACK_WORKGROUP, Schedule, ShaderText, Source,
    Table, Target, Words, compile_spirv, coopmat_fragment_layout_kernel, kernel, repack_kernel,
};
use tallow_ir::caps::PROFILES;
use tallow_ir::matrix::MatrixOperand;
use tallow_ir::{DeviceCaps, Format, FusionKind, Op, passes, text};

/// A graph and what must become of it.
struct Case {
    name: String,
    text: String,
    expect: Expect,
}

enum Expect {
    /// On every profile the fused graph has kernels of these kinds, and all of its kernels compile.
    Kinds(&'static [FusionKind]),
    /// As `Kinds` where the device has the 64-bit types that occur; elsewhere code generation refuses them.
    Wide(&'static [FusionKind]),
    /// Code generation refuses the number of workgroups.
    NoGrid,
}

/// A case of the nodes and returns in `body`, one a line.
fn case(name: impl Into<String>, kinds: &'static [FusionKind], body: impl AsRef<str>) -> Case {
    let lines: String = body.as_ref().lines().map(|l| format!("  {}\n", l.trim())).collect();
    let name = name.into();
    Case { text: format!("graph {name:?} {{\n{lines}}}\n"), name, expect: Expect::Kinds(kinds) }
}

/// Formats of blocks that kernels read.
fn blocks() -> impl Iterator<Item = Format> {
    Format::ALL.iter().copied().filter(|format| !format.is_plain())
}

/// A kernel of a case on a profile.
struct CaseKernel {
    label: String,
    kind: FusionKind,
    caps: DeviceCaps,
    kernel: Kernel,
}

/// All kernels of a case on a profile; what went wrong goes to `failures`.
fn kernels(case: &Case, profile: &str, caps: &DeviceCaps, failures: &mut Vec<String>) -> Vec<CaseKernel> {
    let label = format!("{} on {profile}", case.name);
    let graph = text::parse(&case.text).unwrap_or_else(|e| panic!("{label}: {e}\n{}", case.text));
    let fused = match passes::run(&graph, caps, &mut |_, _| {}) {
        Ok(fused) => fused,
        Err(e) => {
            failures.push(format!("{label}: {e}\n{}", case.text));
            return vec![];
        }
    };
    let lacks = |dtype: &str, has: bool| case.text.contains(dtype) && !has;
    let lacks_type = lacks("i64[", caps.int64) || lacks("f64[", caps.float64);
    let mut table = Table::default();
    let mut found = vec![];
    let mut kinds = BTreeSet::new();
    let mut refused = false;
    for (id, node) in fused.graph().nodes() {
        let Op::Fusion(fusion) = &node.op else { continue };
        kinds.insert(fusion.kind);
        let label = format!("{label}, %{} ({})", id.0, fusion.kind.name());
        match (kernel(fusion, caps, &mut table), &case.expect) {
            (Ok(kernel), _) => {
                found.push(CaseKernel { label, kind: fusion.kind, caps: caps.clone(), kernel })
            }
            (Err(CodegenError::Dtype { .. }), Expect::Wide(_)) if lacks_type => refused = true,
            (Err(CodegenError::Grid { .. }), Expect::NoGrid) => refused = true,
            (Err(e), _) => failures.push(format!("{label}: {e}\n{}", fusion.body)),
        }
    }
    for symbols in [0, 1, 2, u32::MAX] {
        let bindings = fused
            .graph()
            .symbols()
            .map(|s| (s.name().into(), symbols.clamp(s.least(), s.limit()).into()))
            .collect();
        if table.eval(&bindings).is_none() {
            let table: Vec<String> = table.entries().iter().map(|e| e.to_string()).collect();
            failures.push(format!("{label}: the table has no values for {bindings:?}: {table:?}"));
        }
    }
    match &case.expect {
        Expect::Wide(_) if lacks_type => {
            if !refused {
                failures.push(format!("{label}: not refused\n{}", fused.graph()));
            }
        }
        Expect::Kinds(expected) | Expect::Wide(expected) => {
            let missing: Vec<&str> =
                expected.iter().filter(|k| !kinds.contains(k)).map(|k| k.name()).collect();
            if !missing.is_empty() {
                failures.push(format!("{label}: no kernel of kind {missing:?}\n{}", fused.graph()));
            }
        }
        Expect::NoGrid if !refused => {
            failures.push(format!("{label}: not refused\n{}", fused.graph()));
        }
        Expect::NoGrid => {}
    }
    found
}

/// Compiles each distinct kernel; those that fail go to `failures`, once each.
fn compile_each(found: &[CaseKernel], failures: &mut Vec<String>) -> BTreeMap<String, Words> {
    let mut distinct: BTreeMap<&str, ShaderText<'_>> = BTreeMap::new();
    for f in found.iter().rev() {
        distinct.insert(&f.kernel.glsl, ShaderText { name: &f.label, ..ShaderText::from(&f.kernel) });
    }
    let shaders: Vec<ShaderText<'_>> = distinct.into_values().collect();
    let name = |words: Vec<Words>| shaders.iter().map(|s| s.glsl.to_string()).zip(words).collect();
    if let Ok((words, _)) = compile_spirv(&shaders, None) {
        return name(words);
    }
    let mut modules = BTreeMap::new();
    for shader in &shaders {
        match compile_spirv(&[*shader], None) {
            Ok((words, _)) => {
                modules.insert(shader.glsl.to_string(), words[0].clone());
            }
            Err(e) => failures.push(format!("{e}\n{}", header(shader.glsl))),
        }
    }
    modules
}

/// The kernel's own description: the comment lines with its body graph.
fn header(glsl: &str) -> String {
    glsl.lines().filter(|l| l.starts_with("// ")).map(|l| format!("    {l}\n")).collect()
}

/// What `spirv-val` says against a module; `None` if the program is not installed.
fn spirv_val(words: &[u32]) -> Option<Result<(), String>> {
    // The second word of a module is its version.
    let target = if words[1] == 0x0001_0600 { Target::Vulkan13 } else { Target::Vulkan12 };
    let child = Command::new("spirv-val")
        .args(["--target-env", target.name(), "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return None,
        Err(e) => panic!("spirv-val does not start: {e}"),
    };
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    // A validator from before 2024 knows neither cooperative matrices (6022) nor those of workgroups (5432), one from before 2025 no
    // bf16 (5116), and says so; it has read the head of the module.
    let unknown =
        ["6022", "5432", "5116"].iter().any(|c| text.contains(&format!("Invalid capability operand: {c}")));
    Some(if output.status.success() || unknown { Ok(()) } else { Err(text) })
}

/// Generates the kernels of each case for each profile, and compiles those of about a quarter of the pairs, so that each case is
/// compiled for some profiles; with `TALLOW_FULL=1`, of all. Most kernels of two profiles differ in little, and shaderc takes
/// 20 ms for one.
fn check(cases: &[Case]) {
    let is_full = std::env::var("TALLOW_FULL").is_ok_and(|v| v == "1");
    let mut failures = vec![];
    let mut found = vec![];
    for (j, (profile, make)) in PROFILES.iter().enumerate() {
        let caps = make();
        for (i, case) in cases.iter().enumerate() {
            let generated = kernels(case, profile, &caps, &mut failures);
            if is_full || (i + j) % 4 == 0 {
                found.extend(generated);
            }
        }
    }
    judge(&found, failures);
}

/// Compiles and validates kernels, and fails if one does not fit its device, or if there were failures before.
fn judge(found: &[CaseKernel], mut failures: Vec<String>) {
    let modules = compile_each(found, &mut failures);
    let verdicts: Vec<(&String, Option<Result<(), String>>)> =
        modules.par_iter().map(|(glsl, words)| (glsl, spirv_val(words))).collect();
    let validated = verdicts.iter().all(|(_, verdict)| verdict.is_some());
    let required = std::env::var_os("REQUIRE_VULKAN").is_some_and(|v| v == "1");
    assert!(validated || !required, "spirv-val is not installed");
    for (glsl, verdict) in verdicts {
        if let Some(Err(log)) = verdict {
            failures.push(format!("spirv-val: {log}\n{}", header(glsl)));
        }
    }
    for f in found {
        let Some(words) = modules.get(&f.kernel.glsl) else { continue };
        // What a grid cuts off must be looped over (map, row) or be counted along z (batches of a matvec).
        let whole: &[usize] = match f.kind {
            FusionKind::Map | FusionKind::Quantize | FusionKind::Row => &[],
            FusionKind::Scan | FusionKind::Sort | FusionKind::Scatter | FusionKind::IndexAdd => &[],
            FusionKind::Matvec => &[0, 2],
            FusionKind::Matmul | FusionKind::Attention | FusionKind::AttentionGrad | FusionKind::Custom => {
                &[0, 1, 2]
            }
        };
        for count in whole.iter().map(|axis| &f.kernel.grid[*axis]) {
            if count.most() > u64::from(count.limit) {
                failures.push(format!("{}: {} workgroups of {}", f.label, count.most(), count.limit));
            }
        }
        for what in module::violations(words, &f.kernel, &f.caps) {
            failures.push(format!("{}: {what}\n{}", f.label, header(&f.kernel.glsl)));
        }
    }
    let skipped = if validated { "" } else { ", spirv-val SKIPPED: not installed" };
    println!("{} kernels, {} distinct{skipped}", found.len(), modules.len());
    let count = failures.len();
    assert!(failures.is_empty(), "{count} failures:\n{}", failures.join("\n"));
}

/// A state that a kernel reads and updates is two variables of one memory, and they say so: else a driver may load the old value
/// after it is overwritten. What is only read, and what is only written, is not.
#[test]
fn updated_states_are_aliased() {
    let text = r#"graph "decay" {
        %0 = state "old" : f32[3,256]
        %1 = input "x" : f32[3,256]
        %2 = add %0 %1 : f32[3,256]
        %3 = state_update %0 %2 at=[0,0] : f32[3,256]
        %4 = state "cache" : f32[8,256]
        %5 = state_update %4 %1 at=[2,0] : f32[8,256]
        %6 = exp %0 : f32[3,256]
        return %6 as "y"
        return %3
        return %5
    }"#;
    let caps = tallow_ir::caps::h200();
    let fused = passes::run(&text::parse(text).unwrap(), &caps, &mut |_, _| {}).unwrap();
    let of = |node: &tallow_ir::Node| if let Op::Fusion(f) = &node.op { Some((**f).clone()) } else { None };
    let (mut expected, mut found) = (0, 0);
    for fusion in fused.graph().nodes().filter_map(|(_, node)| of(node)) {
        let kernel = kernel(&fusion, &caps, &mut Table::default()).unwrap();
        let results = (0..fusion.body.outputs().len() as u32).filter_map(|result| {
            let param = tallow_ir::verify::updated_param(&fusion, result)?;
            let at = |source| kernel.bindings.iter().position(|b| b.source == source);
            Some([at(Source::Operand(param))?, at(Source::Result(result))?])
        });
        let mut both: Vec<u32> = results.flatten().map(|at| at as u32).collect();
        both.sort_unstable();
        let (words, _) = compile_spirv(&[ShaderText::from(&kernel)], None).unwrap();
        assert_eq!(module::aliased(&words[0]), both, "{}", kernel.glsl);
        (expected, found) = (expected + both.len(), found + fusion.body.outputs().len());
    }
    assert_eq!((expected, found), (2, 3), "one of two states is read and updated");
}

/// The checks find what they look for.
#[test]
fn demands_beyond_the_device_are_found() {
    let glsl = "#version 450
        #extension GL_KHR_shader_subgroup_arithmetic : require
        #extension GL_EXT_shader_16bit_storage : require
        layout(local_size_x = 256) in;
        layout(set = 0, binding = 0) buffer B { float16_t b[]; };
        shared float a[4097];
        void main() {
            a[gl_LocalInvocationIndex] = float(b[gl_LocalInvocationIndex]);
            barrier();
            b[0] = float16_t(subgroupAdd(a[gl_LocalInvocationIndex] + a[gl_LocalInvocationIndex + 1]));
        }";
    let (words, _) = compile_spirv(&[("k", glsl)], None).unwrap();
    let one = tallow_codegen::Count::constant(1);
    let kernel = |workgroup| Kernel {
        scratch: vec![],
        optimize: false,
        target: Target::Vulkan12,
        custom: None,
        schedule: Schedule::new(Algorithm::Map, 64),
        name: "k".into(),
        glsl: glsl.into(),
        bindings: vec![],
        workgroup,
        grid: [one.clone(), one.clone(), one.clone()],
    };
    let found = module::violations(&words[0], &kernel([256, 1, 1]), &tallow_ir::caps::minimum());
    assert_eq!(
        found,
        [
            "the device lacks SPIR-V capability 63",
            "the device lacks SPIR-V capability 4433",
            "workgroup [256, 1, 1] exceeds the device's",
            "16388 bytes of shared memory, the device has 16384",
        ]
    );
    let found = module::violations(&words[0], &kernel([64, 1, 1]), &tallow_ir::caps::h200());
    assert_eq!(found, ["workgroup [256, 1, 1], the kernel says [64, 1, 1]"]);
    let mut broken = words[0].to_vec();
    broken.truncate(words[0].len() - 1);
    assert!(spirv_val(&words[0]).is_none_or(|v| v.is_ok()));
    assert!(spirv_val(&broken).is_none_or(|v| v.is_err()));
}

/// The kernel of no graph: it needs no feature, and no more invocations and push constants than every device has.
#[test]
fn the_kernel_that_rearranges_blocks_is_valid() {
    let glsl = repack_kernel().unwrap();
    let (words, _) = compile_spirv(&[("repack", glsl.as_str())], None).unwrap();
    assert!(spirv_val(&words[0]).is_none_or(|v| v.is_ok()));
    assert!(!glsl.contains("#extension") && glsl.contains(&format!("local_size_x = {REPACK_WORKGROUP})")));
    for (_, caps) in PROFILES {
        let caps = caps();
        assert!(REPACK_WORKGROUP <= caps.max_workgroup_invocations.min(caps.max_workgroup_size[0]));
        assert!(REPACK_PUSH_BYTES <= caps.push_constant_bytes);
    }
}

#[test]
fn the_kernel_that_asks_how_matrices_lie_compiles() {
    for operand in MatrixOperand::ALL {
        let glsl = coopmat_fragment_layout_kernel(operand).unwrap();
        let (words, _) = compile_spirv(&[("coopmat_fragment_layout", glsl.as_str())], None).unwrap();
        assert!(spirv_val(&words[0]).is_none_or(|v| v.is_ok()));
        assert!(glsl.contains("local_size_x = 32"));
    }
}
