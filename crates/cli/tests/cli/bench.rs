//! `tallow bench`: what it lists, what it measures on a device, what it says without one.

use crate::support::{blocks, program, stderr, success, tallow};

#[test]
fn cases_are_listed_without_a_device() {
    let all = success(&["bench", "--list"]);
    for name in ["matvec/q4_0/14336x4096", "matmul/f16/4096x4096x4096", "ceilings/read", "llm/decode"] {
        assert!(all.lines().any(|line| line == name), "{name} is missing from\n{all}");
    }
    let sums = success(&["bench", "--list", "sum"]);
    let names = ["all/16777216", "last/16384x4096", "first/16384x4096", "first/4194304x16"];
    assert_eq!(sums.lines().collect::<Vec<_>>(), names.map(|name| format!("sum/{name}")));
}

#[test]
fn mistakes_are_said_before_a_device_is_opened() {
    for (args, says) in [
        (&["bench", "nothing"][..], "no case is called \"nothing\""),
        (&["bench", "llm", "--shape", "huge"], "there are llama3-8b"),
        (&["bench", "llm", "--type", "Q9_9"], "no format of weights"),
        (&["bench", "llm", "--type", "Q8_K"], "no format of weights"),
        (&["bench", "llm", "--cache-type-k", "q5_0"], "no cache is of type 'q5_0'"),
        (&["bench", "--seconds", "NaN"], "expected a number"),
        (&["bench", "--compare", "/nowhere/torch.jsonl"], "/nowhere/torch.jsonl"),
    ] {
        let output = tallow(args);
        assert!(!output.status.success(), "{args:?}");
        assert!(stderr(&output).contains(says), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn without_a_device_it_says_that_it_needs_one() {
    let output =
        program(&["bench", "--quick"]).env("TALLOW_VULKAN_LOADER", "/nowhere/libvulkan.so").output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(
        stderr(&output).contains("measures a Vulkan device, and there is none to use"),
        "{}",
        stderr(&output)
    );
}

/// Decode with positions in the cache, and prompts that take several steps.
const LENGTHS: [&str; 12] = [
    "bench",
    "llm/decode",
    "llm/prefill",
    "--quick",
    "--seconds",
    "0",
    "--depth",
    "40,0",
    "--prompt",
    "50,1",
    "--json",
    "JSON",
];

/// Every case in its small shape, with its results checked; times mean nothing here.
#[test]
fn every_case_matches_the_interpreter() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("ours.jsonl");
    let json = json.to_str().unwrap();
    let required = std::env::var("REQUIRE_VULKAN").is_ok_and(|value| value == "1");
    for args in [
        &["bench", "--quick", "--seconds", "0", "--json", json][..],
        &["bench", "llm", "--quick", "--seconds", "0", "--type", "Q4_0,Q4_K,F16", "--json", json],
        &LENGTHS.map(|arg| if arg == "JSON" { json } else { arg }),
    ] {
        let output = tallow(args);
        if !required && stderr(&output).contains("there is none to use") {
            eprintln!("skipped: {}", stderr(&output).trim());
            return;
        }
        let table = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(output.status.success(), "{table}{}", stderr(&output));
    }
    let text = std::fs::read_to_string(json).unwrap();
    let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let named =
        |name: &str| rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    for row in &rows {
        assert!(row["median_us"].as_f64().unwrap() > 0.0 && row.get("failed").is_none(), "{row}");
        let empty = row["name"].as_str().unwrap().contains("ceilings/dispatch");
        let barrier = row["name"].as_str().unwrap().contains("ceilings/barrier");
        // Nothing is computed.
        let start = row["name"].as_str().unwrap().contains("llm/start");
        assert!(empty || barrier || start || row["checked"].as_u64().unwrap() > 0, "{row}");
    }
    // Independent instances are one level; chained ones are one level each.
    let counts = |row: &serde_json::Value| (row["dispatches"].as_u64(), row["barriers"].as_u64());
    assert_eq!(counts(named("matvec/q4_0/96x512")), (Some(3), Some(0)));
    assert_eq!(counts(named("matvec-chained/q4_0/96x512")), (Some(3), Some(2)));
    assert!(named("llm/greedy/tiny/q4_0")["cpu_us"].as_f64().unwrap() > 0.0);
    for name in [
        "llm/decode/tiny/q4_0",
        "llm/prefill/tiny/q4_k",
        "llm/greedy/tiny/f16",
        "llm/decode/tiny/q4_0/depth-40",
        "llm/prefill/tiny/q4_0/prompt-1",
        "llm/prefill/tiny/q4_0/prompt-50",
    ] {
        assert!(named(name)["tokens_per_s"].as_f64().unwrap() > 0.0);
    }

    // A file of ours serves as a peer's, and its ceilings as known ones.
    let again = tallow(&["bench", "--quick", "--seconds", "0", "sum", "--compare", json, "--ceilings", json]);
    let table = String::from_utf8(again.stdout).unwrap();
    assert!(table.contains("ours/p") && table.contains(" %") && !table.contains("ceilings/read"), "{table}");
}

/// The small shape of each kind of layer, in the cache's types too: decode, prefill and the interpreter agree.
#[test]
fn every_kind_of_layer_matches_the_interpreter() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("ours.jsonl");
    let json = json.to_str().unwrap();
    let required = std::env::var("REQUIRE_VULKAN").is_ok_and(|value| value == "1");
    let cached = ["--cache-type-k", "q8_0", "--cache-type-v", "q4_0"];
    let known = ["--ceilings", json];
    for (shape, ceilings, cache) in [
        ("tiny-joined", &[][..], &[][..]),
        ("tiny-experts", &known, &[]),
        ("tiny-latent", &known, &cached[..2]),
        ("tiny-sinks", &known, &[]),
        ("tiny-post-norms", &known, &cached),
    ] {
        let args = ["bench", "llm/decode", "--quick", "--seconds", "0", "--type", "Q8_0", "--json", json];
        let output = tallow(&[&args[..], &["--shape", shape], ceilings, cache].concat());
        if !required && stderr(&output).contains("there is none to use") {
            eprintln!("skipped: {}", stderr(&output).trim());
            return;
        }
        let table = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{table}{}", stderr(&output));
    }
    let text = std::fs::read_to_string(json).unwrap();
    let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rows: Vec<&serde_json::Value> =
        rows.iter().filter(|row| row["name"].as_str().unwrap().starts_with("llm/")).collect();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    let expected = [
        "llm/decode/tiny-joined/q8_0",
        "llm/decode/tiny-experts/q8_0",
        "llm/decode/tiny-latent/q8_0/cache-q8_0-f16",
        "llm/decode/tiny-sinks/q8_0",
        "llm/decode/tiny-post-norms/q8_0/cache-q8_0-q4_0",
    ];
    assert_eq!(names, expected);
    // So many logits were compared with the interpreter's.
    assert!(rows.iter().all(|row| row["checked"] == 512 && row.get("failed").is_none()), "{text}");
}

/// With kernels that were measured results are as right, and what was measured is kept.
#[test]
fn tuned_cases_match_the_interpreter_and_measurements_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["bench", "matvec/q4_0", "row/softmax", "--quick", "--seconds", "0", "--tune"];
    let output = program(&args).env("TALLOW_CACHE_DIR", folder.path()).output().unwrap();
    let required = std::env::var("REQUIRE_VULKAN").is_ok_and(|value| value == "1");
    if !required && stderr(&output).contains("there is none to use") {
        eprintln!("skipped: {}", stderr(&output).trim());
        return;
    }
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
    let file = std::fs::read_dir(folder.path().join("tuning")).unwrap().next().unwrap().unwrap().path();
    let stored = std::fs::read_to_string(file).unwrap();
    assert!(stored.contains("\"kernel\":\"matvec") && stored.contains("\"kernel\":\"row"), "{stored}");
}

/// Descriptions need no device; measurements check their results.
#[test]
fn networks_are_described_and_measured() {
    let folder = tempfile::tempdir().unwrap();
    let [described, json] = ["networks.json", "ours.jsonl"].map(|name| folder.path().join(name));
    let (described, json) = (described.to_str().unwrap(), json.to_str().unwrap());
    success(&["bench", "networks", "--seeds", "9,20..22", "--quick", "--describe", described]);
    let text = std::fs::read_to_string(described).unwrap();
    let networks: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(networks.len(), 4);
    assert!(networks.iter().all(|network| !network["expected"].as_array().unwrap().is_empty()));
    let wrong = tallow(&["bench", "networks", "--seeds", "two"]);
    assert!(stderr(&wrong).contains("--seeds \"two\""), "{}", stderr(&wrong));

    let args = ["bench", "networks", "--seeds", "9,20..22", "--quick", "--seconds", "0", "--json", json];
    let output = tallow(&args);
    let required = std::env::var("REQUIRE_VULKAN").is_ok_and(|value| value == "1");
    if !required && stderr(&output).contains("there is none to use") {
        eprintln!("skipped: {}", stderr(&output).trim());
        return;
    }
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
    let text = std::fs::read_to_string(json).unwrap();
    let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (network, row) in networks.iter().zip(&rows) {
        assert_eq!(network["name"], row["name"]);
        assert!(row["median_us"].as_f64().unwrap() > 0.0 && row["dispatches"].as_u64().unwrap() > 0, "{row}");
        assert!(row["checked"].as_u64().unwrap() > 0, "{row}");
    }
}

/// The list needs no device; measurements check their results and end with a summary.
#[test]
fn points_of_the_sweep_are_listed_and_measured() {
    let folder = tempfile::tempdir().unwrap();
    let [described, json] = ["points.json", "ours.jsonl"].map(|name| folder.path().join(name));
    let (described, json) = (described.to_str().unwrap(), json.to_str().unwrap());
    let points = ["map/f32-gelu/64x64", "random/f32-normal-dropout/64x64", "reduction/f32-sum-1/64x64"];
    let listed = success(&[&["bench", "sweep", "--list"][..], &points].concat());
    assert_eq!(listed.lines().count(), 3, "{listed}");
    success(&[&["bench", "sweep", "--describe", described][..], &points].concat());
    let networks: Vec<serde_json::Value> =
        serde_json::from_str(&std::fs::read_to_string(described).unwrap()).unwrap();
    assert_eq!(networks.len(), 3);
    let wrong = tallow(&["bench", "sweep", "nothing"]);
    assert!(stderr(&wrong).contains("nothing"), "{}", stderr(&wrong));

    let args = ["bench", "sweep", "--quick", "--seconds", "0", "--json", json];
    let output = tallow(&[&args[..], &points].concat());
    let required = std::env::var("REQUIRE_VULKAN").is_ok_and(|value| value == "1");
    if !required && stderr(&output).contains("there is none to use") {
        eprintln!("skipped: {}", stderr(&output).trim());
        return;
    }
    let table = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(
        output.status.success() && table.contains("of 3 points below 50 %"),
        "{table}{}",
        stderr(&output)
    );
    let text = std::fs::read_to_string(json).unwrap();
    let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for row in &rows {
        assert!(row["median_us"].as_f64().unwrap() > 0.0 && row["checked"].as_u64().unwrap() > 0, "{row}");
        assert!(row["kernels"].as_array().unwrap().len() == 1, "{row}");
    }
    assert_eq!(rows.len(), 3);
}

/// The commands of the guide's chapter on performance, and the benchmarks of that on language models, with small instances.
#[test]
fn commands_of_the_performance_chapter_run() {
    let chapter = include_str!("../../../../docs/guide/performance.md");
    let models = blocks(include_str!("../../../../docs/guide/language-models.md"), "sh");
    let models = models.into_iter().filter(|block| block.starts_with("tallow bench"));
    let lines: Vec<&str> = blocks(chapter, "sh").into_iter().chain(models).flat_map(str::lines).collect();
    assert!(lines.len() >= 6, "{lines:?}");
    for line in lines {
        let mut args: Vec<&str> = line.split_whitespace().skip(1).collect();
        let measures = args[0] == "bench" && !args.contains(&"--list");
        if measures {
            args.extend(["--quick", "--seconds", "0"]);
        }
        let output = tallow(&args);
        let required = std::env::var("REQUIRE_VULKAN").is_ok_and(|value| value == "1");
        if measures && !required && stderr(&output).contains("there is none to use") {
            eprintln!("skipped: {line}");
            continue;
        }
        assert!(output.status.success(), "{line}: {}", stderr(&output));
    }
}
