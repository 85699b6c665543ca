//! What AMD's compilers make of the kernels, without AMD's hardware: Mesa's RADV compiles for a family of GPUs that
//! `RADV_FORCE_FAMILY` names.
//!
//! The variable counts before the first device is opened, so that the built program runs with it as a child. Without the
//! driver these tests say that they are skipped, and fail where `REQUIRE_RADV=1`.

// clippy knows test functions, not their helpers.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tallow_gguf::{Format, GgufWriter, Metadata, TensorSpec, Value as Gguf};

/// What RADV calls a GPU family that is tested. Versions differ: Mesa 22.3 has its own name for gfx90a.
const RDNA3: &[&str] = &["gfx1100", "navi31"];
const RDNA2: &[&str] = &["navi21", "gfx1030"];
const CDNA2: &[&str] = &["aldebaran", "gfx90a", "mi200"];

/// The driver that the snapshots were made with. Others allocate registers in other ways.
const SNAPSHOT_DRIVER: &str = "radv Mesa 22.3.6";

/// What the device's name contains. Without it the program would compile for a device that is there.
const NULL_DEVICE: &str = "Null hardware";

/// Runs `tallow compile-check` for a family; `None` if there is no such driver here.
fn compile_check(family: &[&str], args: &[&str], files: &[PathBuf]) -> Option<Output> {
    compile_check_in(&[], family, args, files)
}

/// [`compile_check`] with these variables in the environment.
fn compile_check_in(
    variables: &[(&str, &str)],
    family: &[&str],
    args: &[&str],
    files: &[PathBuf],
) -> Option<Output> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compile-check");
    let mut stderr = String::new();
    for name in family {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tallow"));
        for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("TALLOW_")) {
            command.env_remove(name);
        }
        command.env("RADV_FORCE_FAMILY", name).env("TALLOW_CACHE_DIR", &folder);
        command.envs(variables.iter().copied());
        command.args(["compile-check", "--device", NULL_DEVICE]).args(args).args(files);
        let output = command.output().unwrap();
        stderr = String::from_utf8(output.stderr.clone()).unwrap();
        let no_driver = ["no Vulkan device", "no Vulkan loader", "no usable Vulkan device"];
        let missing = no_driver.iter().any(|why| stderr.contains(why));
        if !missing && !stderr.contains("Unknown family") {
            return Some(output);
        }
    }
    assert!(!std::env::var("REQUIRE_RADV").is_ok_and(|x| x == "1"), "REQUIRE_RADV=1, but: {stderr}");
    eprintln!("skipped, as RADV does not compile for {family:?} here: {stderr}");
    None
}

/// What the program prints with `--json`.
fn report(family: &[&str], args: &[&str], files: &[PathBuf]) -> Option<Value> {
    Some(parsed(compile_check(family, &[&["--json"], args].concat(), files)?))
}

fn parsed(output: Output) -> Value {
    let text = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}\n{stderr}"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn models() -> Vec<PathBuf> {
    let names = ["nano-Q4_K_M", "nano-Q4_0", "nano-f16", "main-Q4_K_M"];
    names.iter().map(|name| tallow_testmodels::model(&format!("storyteller-{name}"))).collect()
}

/// The filetests of which a device makes kernels.
fn filetests() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests");
    let (mut found, mut folders) = (vec![], vec![root]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "ir") {
                let text = std::fs::read_to_string(&path).unwrap();
                let compiled = ["run", "fuse", "plan", "glsl"].map(|test| format!("; test {test}"));
                if text.lines().any(|line| compiled.iter().any(|start| line.starts_with(start))) {
                    found.push(path);
                }
            }
        }
    }
    found.sort();
    assert!(found.len() > 100, "{} filetests", found.len());
    found
}

/// Each kernel of a report with its file's name.
fn kernels(report: &Value) -> Vec<(String, &Value)> {
    let mut all = vec![];
    for file in list(report, "files") {
        let name = Path::new(text(&file["file"])).file_name().unwrap().to_string_lossy();
        all.extend(list(file, "kernels").iter().map(|kernel| (name.to_string(), kernel)));
    }
    all
}

fn figure(kernel: &Value, name: &str) -> u64 {
    kernel["resources"][name].as_u64().unwrap_or_else(|| panic!("no {name}: {kernel}"))
}

/// Everything compiles, the driver says what it takes, and no kernel of a decode step spills or lies in scratch.
fn check(report: &Value, least: usize) {
    assert_eq!(report["statistics"], true);
    for file in list(report, "files") {
        assert!(file["error"].is_null(), "{}: {}", file["file"], file["error"]);
    }
    let kernels = kernels(report);
    assert!(kernels.len() >= least, "only {} kernels", kernels.len());
    for (file, kernel) in kernels {
        assert!(kernel["error"].is_null(), "{file}: {} {}", kernel["name"], kernel["error"]);
        assert!(figure(kernel, "vgprs") > 0 && figure(kernel, "waves") > 0, "{kernel}");
        let decodes = list(kernel, "graphs").iter().any(|graph| ["decode", "greedy"].contains(&text(graph)));
        let runs = kernel["candidate"] == false;
        if decodes && runs {
            let spills = figure(kernel, "spilled_vgprs") + figure(kernel, "spilled_sgprs");
            let scratch = figure(kernel, "scratch_bytes");
            assert_eq!(
                (spills, scratch),
                (0, 0),
                "{file}: {} spills on {}",
                kernel["name"],
                report["device"]
            );
        }
    }
}

/// The kernels of a report that spill or use scratch memory, a line each.
fn spills(report: &Value) -> String {
    let mut lines = String::new();
    for (file, kernel) in kernels(report) {
        let [vgprs, sgprs, scratch] =
            ["spilled_vgprs", "spilled_sgprs", "scratch_bytes"].map(|name| figure(kernel, name));
        if vgprs + sgprs + scratch > 0 {
            let name = text(&kernel["name"]);
            writeln!(lines, "{file}: {name}: {vgprs} VGPRs, {sgprs} SGPRs, {scratch} bytes").unwrap();
        }
    }
    if lines.is_empty() { "no kernel spills\n".into() } else { lines }
}

/// Compares where the driver is the one of the snapshots.
fn snapshot(name: &str, report: &Value, text: &str) {
    if report["driver"] == SNAPSHOT_DRIVER {
        insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!(name, text) });
    } else {
        eprintln!("snapshot {name} is of {SNAPSHOT_DRIVER}, not compared with {}", report["driver"]);
    }
}

/// The table of the model kernels without sizes of machine code, which every change moves.
fn table(report: &Value) -> String {
    let mut lines =
        String::from("kernel | graphs | workgroup | VGPRs | spilled | scratch | shared | waves\n");
    for (_, kernel) in kernels(report) {
        let graphs: Vec<&str> = list(kernel, "graphs").iter().map(text).collect();
        let spilled = figure(kernel, "spilled_vgprs") + figure(kernel, "spilled_sgprs");
        let [vgprs, scratch, shared, waves] =
            ["vgprs", "scratch_bytes", "shared_memory_bytes", "waves"].map(|name| figure(kernel, name));
        let (name, graphs, workgroup) = (text(&kernel["name"]), graphs.join(","), &kernel["workgroup"]);
        writeln!(
            lines,
            "{name} | {graphs} | {workgroup} | {vgprs} | {spilled} | {scratch} | {shared} | {waves}"
        )
        .unwrap();
    }
    lines
}

#[test]
fn kernels_of_models_compile_on_rdna3() {
    let Some(report) = report(RDNA3, &[], &models()) else { return };
    check(&report, 80);
    snapshot("rdna3_model_spills", &report, &spills(&report));
    let Some(nano) = self::report(RDNA3, &[], &models()[..1]) else { return };
    snapshot("rdna3_nano_q4_k_m", &nano, &table(&nano));
}

#[test]
fn kernels_of_models_compile_on_rdna2() {
    let Some(report) = report(RDNA2, &[], &models()) else { return };
    check(&report, 80);
}

#[test]
fn kernels_of_models_compile_on_cdna2() {
    let Some(report) = report(CDNA2, &[], &models()) else { return };
    check(&report, 80);
}

/// A model of the shape of Llama 3 8B with two layers, whose `values`, `down` and `output` projections have a format of their
/// own. Its data is a hole in the file: nothing reads weights that are not loaded.
fn large_model(folder: &Path, format: Format, other: Format) -> PathBuf {
    let (width, inner, heads, kv_heads, length, vocabulary) = (4096, 14336, 32, 8, 128, 128_256);
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", Gguf::String("llama".into()));
    for (key, value) in [
        ("block_count", 2),
        ("context_length", 8192),
        ("embedding_length", width),
        ("feed_forward_length", inner),
        ("attention.head_count", heads),
        ("attention.head_count_kv", kv_heads),
        ("rope.dimension_count", length),
    ] {
        metadata.insert(format!("llama.{key}"), Gguf::U32(value));
    }
    metadata.insert("llama.attention.layer_norm_rms_epsilon", Gguf::F32(1e-5));
    metadata.insert("llama.rope.freq_base", Gguf::F32(500_000.0));
    let tensor = |name: &str, shape: &[u32], format| TensorSpec {
        name: format!("{name}.weight"),
        shape: shape.iter().map(|&extent| extent as usize).collect(),
        format,
    };
    let mut tensors = vec![
        tensor("token_embd", &[vocabulary, width], format),
        tensor("output_norm", &[width], Format::F32),
        tensor("output", &[vocabulary, width], other),
    ];
    for layer in 0..2 {
        for (name, shape, format) in [
            ("attn_norm", &[width][..], Format::F32),
            ("ffn_norm", &[width], Format::F32),
            ("attn_q", &[heads * length, width], format),
            ("attn_k", &[kv_heads * length, width], format),
            ("attn_v", &[kv_heads * length, width], other),
            ("attn_output", &[width, heads * length], format),
            ("ffn_gate", &[inner, width], format),
            ("ffn_up", &[inner, width], format),
            ("ffn_down", &[width, inner], other),
        ] {
            tensors.push(tensor(&format!("blk.{layer}.{name}"), shape, format));
        }
    }
    let path = folder.join(format!("llama-8b-{format}-{other}.gguf"));
    let mut file = std::fs::File::create(&path).unwrap();
    let elements = tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>() as u64);
    // More than any format takes.
    let bytes = elements.sum::<u64>() * 4;
    GgufWriter::create(&mut file, &metadata, tensors).unwrap();
    file.set_len(bytes).unwrap();
    path
}

/// Kernels have other tiles and other ways around registers where extents are large.
#[test]
fn kernels_of_large_models_compile() {
    let folder = tempfile::tempdir().unwrap();
    let files = [(Format::Q4_K, Format::Q6_K), (Format::Q4_0, Format::Q8_0)]
        .map(|(format, other)| large_model(folder.path(), format, other));
    for family in [RDNA3, RDNA2, CDNA2] {
        let Some(report) = report(family, &["--deny-spills"], &files) else { return };
        check(&report, 35);
        assert_eq!(spills(&report), "no kernel spills\n");
    }
}

/// What AMD's compiler does under the Khronos layer, which checks the device and each pipeline.
#[test]
fn the_validation_layer_agrees() {
    if std::env::var("TALLOW_VALIDATE").is_err() {
        return eprintln!("skipped: TALLOW_VALIDATE is not set, and the layer may not be installed");
    }
    let validate = [("TALLOW_VALIDATE", "1")];
    let Some(output) = compile_check_in(&validate, RDNA3, &["--json"], &models()[..1]) else { return };
    check(&parsed(output), 20);
}

/// As on a device with nothing but Vulkan 1.2.
#[test]
fn kernels_of_models_compile_without_optional_features() {
    let disable = [("TALLOW_DISABLE", "all")];
    let files = &models()[..1];
    let Some(output) = compile_check_in(&disable, RDNA3, &["--json"], files) else { return };
    let plain = parsed(output);
    check(&plain, 15);
    // What is taken away is neither asked of kernels nor enabled.
    assert_ne!(plain["files"], report(RDNA3, &[], files).unwrap()["files"]);
}

/// What the tuner would try on a model.
#[test]
fn tuning_candidates_compile_on_rdna3() {
    let Some(report) = report(RDNA3, &["--candidates"], &models()[..1]) else { return };
    check(&report, 60);
    assert!(kernels(&report).iter().any(|(_, kernel)| kernel["candidate"] == true));
    snapshot("rdna3_candidate_spills", &report, &spills(&report));
}

#[test]
fn filetests_compile_on_rdna3() {
    let Some(report) = report(RDNA3, &[], &filetests()) else { return };
    check(&report, 200);
    snapshot("rdna3_filetest_spills", &report, &spills(&report));
}

#[test]
fn filetests_compile_on_rdna2() {
    let Some(report) = report(RDNA2, &[], &filetests()) else { return };
    check(&report, 200);
}

#[test]
fn filetests_compile_on_cdna2() {
    let Some(report) = report(CDNA2, &[], &filetests()) else { return };
    check(&report, 200);
}

/// A graph whose kernels need more registers than there are: `count` values live at the same time, four lanes of each.
fn many_values(count: usize) -> String {
    let mut lines = vec![format!("  %0 = input \"x\" : f32[{count},64]")];
    let mut add = |node: String| {
        lines.push(format!("  %{} = {node} : f32[1,64]", lines.len()));
        lines.len() - 1
    };
    let values: Vec<usize> = (0..count)
        .map(|i| {
            let row = add(format!("slice %0 axis=0 start={i} len=1"));
            add(format!("exp %{row}"))
        })
        .collect();
    // There and back again, so that the first value is needed last.
    let mut last = values[0];
    for value in values.iter().chain(values.iter().rev()) {
        let product = add(format!("mul %{last} %{value}"));
        last = add(format!("sin %{product}"));
    }
    format!("graph \"many\" {{\n{}\n  return %{last} as \"y\"\n}}\n", lines.join("\n"))
}

fn written(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn spills_are_seen_and_can_be_denied() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), "many.ir", &many_values(100));
    let Some(allowed) = compile_check(RDNA3, &[], std::slice::from_ref(&file)) else { return };
    let stdout = String::from_utf8(allowed.stdout).unwrap();
    assert!(allowed.status.success() && stdout.contains("1 spill "), "{stdout}");
    let report = report(RDNA3, &[], std::slice::from_ref(&file)).unwrap();
    assert!(!spills(&report).contains("no kernel spills") && report["spilling"] == 1, "{report}");
    let denied = compile_check(RDNA3, &["--deny-spills"], &[file]).unwrap();
    let stderr = String::from_utf8(denied.stderr).unwrap();
    assert!(denied.status.code() == Some(1) && stderr.contains("spill registers"), "{stderr}");
    assert_eq!(String::from_utf8(denied.stdout).unwrap(), stdout);
}

#[test]
fn what_does_not_compile_is_named_and_the_rest_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let custom = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests/parse/custom.ir");
    let custom = std::fs::read_to_string(custom).unwrap();
    let broken = custom.replace("mixed[i] =", "unknown[i] =");
    assert_ne!(broken, custom);
    let files = [
        written(folder.path(), "broken.ir", &broken),
        written(folder.path(), "text.ir", "no graph"),
        written(folder.path(), "whole.ir", &custom),
    ];
    let Some(output) = compile_check(RDNA3, &[], &files) else { return };
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    assert!(stderr.contains("1 of 6 kernel(s) do not compile, and the graphs of 1 file(s)"), "{stderr}");
    let report = report(RDNA3, &[], &files).unwrap();
    let kernels = kernels(&report);
    let failed: Vec<_> = kernels.iter().filter(|(_, kernel)| !kernel["error"].is_null()).collect();
    assert!(failed.len() == 1 && failed[0].0 == "broken.ir", "{report}");
    assert!(text(&failed[0].1["name"]).contains("mix") && text(&failed[0].1["error"]).contains("unknown"));
    for (_, kernel) in kernels.iter().filter(|(_, kernel)| kernel["error"].is_null()) {
        assert!(figure(kernel, "vgprs") > 0);
    }
    assert!(stdout.contains("does not compile: ") && stdout.contains("cannot be compiled: "), "{stdout}");
}

#[test]
fn an_unknown_device_is_an_error_that_lists_those_there_are() {
    let Some(_) = compile_check(RDNA3, &[], &models()[..1]) else { return };
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallow"));
    command.env("RADV_FORCE_FAMILY", RDNA3[0]).args(["compile-check", "--device", "voodoo"]);
    let output = command.args(&models()[..1]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && stderr.contains("voodoo") && stderr.contains(NULL_DEVICE),
        "{stderr}"
    );
}
