//! Whether a model fits: `--dry-run`, `--memory`, and what loading says of a model that does not.

use serde_json::Value as Json;

use crate::bad_inputs::fails;
use crate::support::{model, stderr, success, tallow};

/// A dry run's object and its exit code, of a device and with more options.
fn dry_run(model: &str, device: &str, more: &[&str]) -> (Json, Option<i32>) {
    let args = ["generate", "--dry-run", "--json", "--model", model, "--device", device];
    let output = tallow(&[&args, more].concat());
    let object = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    (object, output.status.code())
}

#[test]
fn a_dry_run_adds_up_and_loads_nothing() {
    let model = model("nano-Q4_0");
    let (cpu, code) = dry_run(&model, "cpu", &[]);
    assert_eq!((&cpu["memory"]["fits"], code), (&Json::from(true), Some(0)), "{cpu}");
    let (found, code) = dry_run(&model, "h200", &["--memory", "1GiB", "--context", "100"]);
    assert_eq!((&found["memory"]["fits"], code), (&Json::from(true), Some(0)), "{found}");
    let bytes = |key: &str| found["memory"][key].as_u64().unwrap();
    let parts = ["weight_bytes", "cache_bytes", "prefill_arena_bytes", "arena_bytes", "other_bytes"];
    assert_eq!(bytes("total_bytes"), parts.into_iter().map(bytes).sum::<u64>());
    assert_eq!((bytes("context"), bytes("available_bytes")), (100, 1 << 30));
    // Nobody knows what a device that is not here has free.
    let (unknown, code) = dry_run(&model, "h200", &[]);
    assert_eq!((&unknown["memory"]["fits"], code), (&Json::Null, Some(0)), "{unknown}");
    let text = success(&["chat", "--dry-run", "--device", "cpu", "--model", &model]);
    assert!(text.starts_with("device           cpu, ") && text.ends_with("\nfits: yes\n"), "{text}");
}

/// The context that is suggested fits, and 64 tokens more do not: on the interpreter and on a device.
#[test]
fn the_largest_context_that_fits_is_suggested() {
    let model = model("nano-Q4_0");
    for device in ["cpu", "h200", "minimum"] {
        let with =
            |context: &str, more: &[&str]| dry_run(&model, device, &[&["--context", context], more].concat());
        let total = |context| with(context, &[]).0["memory"]["total_bytes"].as_u64().unwrap();
        let (small, large) = (total("128"), total("1024"));
        let memory = small.midpoint(large).to_string();
        let (found, code) = with("1024", &["--memory", &memory]);
        assert_eq!((&found["memory"]["fits"], code), (&Json::from(false), Some(1)), "{device}: {found}");
        let context = found["memory"]["context_that_fits"].as_u64().unwrap();
        assert!((128..1024).contains(&context), "{device}: {context}");
        let code = |context: u64| with(&context.to_string(), &["--memory", &memory]).1;
        assert_eq!((code(context), code(context + 64)), (Some(0), Some(1)), "{device}: {context}");
    }
}

#[test]
fn what_does_not_fit_is_said_in_one_line() {
    let model = model("nano-f16");
    let generate = |more: &[&str]| {
        let args = ["generate", "--device", "cpu", "--model", &model, "--prompt", "a", "--max-tokens", "1"];
        [&args, more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let failing = |more: &[&str], parts: &[&str]| {
        let args = generate(more);
        fails(&args.iter().map(String::as_str).collect::<Vec<_>>(), parts);
    };
    // The file has 10 MiB of weights, and the interpreter their values in f32 beside them.
    failing(
        &["--memory", "1MiB"],
        &["the model takes ", "1.00 MiB are free", "; no context fits, and no format"],
    );
    failing(&["--memory", "23MiB"], &["with a context of 1024 tokens", "; a context of ", " tokens fits"]);
    let args = generate(&["--memory", "1GiB"]);
    assert!(tallow(&args.iter().map(String::as_str).collect::<Vec<_>>()).status.success());
    // A device unpacks blocks as it reads them: half of the weights is enough.
    let dry_run = ["generate", "--dry-run", "--model", &model, "--device", "h200", "--memory", "9MiB"];
    let output = tallow(&dry_run);
    assert!(
        stderr(&output).contains("no context fits; with weights in Q8_0 a short one would; it fits with "),
        "{output:?}"
    );
    assert!(output.stdout.ends_with(b"\nfits: no\n") && output.status.code() == Some(1), "{output:?}");
    assert_eq!(tallow(&[&dry_run[..7], &["much"]].concat()).status.code(), Some(2));
    let summary = success(&["inspect", "--summary", "--device", "cpu", "--memory", "1MiB", &model]);
    let last = summary.lines().last().unwrap();
    assert!(
        last.starts_with("runs: no: the model takes ") && last.contains("1.00 MiB are free"),
        "{summary}"
    );
}

/// Layers in the host's memory are counted apart, are suggested where a model does not fit, and need not be asked for more
/// than there are. On the CPU they change nothing.
#[test]
fn layers_go_to_the_hosts_memory() {
    let model = model("nano-Q4_0");
    let (all, _) = dry_run(&model, "h200", &[]);
    let bytes = |found: &Json, key: &str| found["memory"][key].as_u64().unwrap();
    let free = (bytes(&all, "total_bytes") - 1).to_string();
    let (found, code) = dry_run(&model, "h200", &["--memory", &free]);
    assert_eq!((&found["memory"]["host_layers_that_fit"], code), (&Json::from(1), Some(1)), "{found}");
    let (auto, code) = dry_run(&model, "h200", &["--memory", &free, "--host-layers", "auto"]);
    assert_eq!((&auto["memory"]["host_layers"], code), (&Json::from(1), Some(0)), "{auto}");
    assert_eq!(bytes(&auto, "total_bytes"), bytes(&all, "total_bytes"));
    assert!(bytes(&auto, "host_bytes") > 0 && bytes(&all, "host_bytes") == 0, "{auto}");
    let speed = |found: &Json| found["memory"]["estimated_tokens_per_s"].as_f64().unwrap();
    assert!(speed(&auto) < speed(&all), "{} {}", speed(&auto), speed(&all));
    let dry = ["generate", "--dry-run", "--device", "h200", "--model", &model, "--host-layers"];
    let text = success(&[&dry, &["2"][..]].concat());
    assert!(
        text.contains("\nhost layers      2, ") && text.contains("GB over the bus at 12.0 GB/s (assumed)"),
        "{text}"
    );
    fails(&[&dry, &["99"][..]].concat(), &["99 layers in the host's memory were asked for; this model has "]);
    assert_eq!(tallow(&[&dry, &["all"][..]].concat()).status.code(), Some(2));
    let generate = |more: &[&str]| {
        let args = ["generate", "--device", "cpu", "--model", &model, "--prompt", "a", "--max-tokens", "2"];
        success(&[&args, more].concat())
    };
    assert_eq!(generate(&[]), generate(&["--host-layers", "2"]));
}
