//! `tallow perplexity` against a value that is computed here from logits.

use crate::support::{model, program, stderr, success};
use tallow::Device;
use tallow_models::{LoadOptions, ModelFile};

const TEXT: &str = "The miller's youngest son sat by the river all day long, and nobody came. In the evening an old woman \
     with a basket stopped beside him. \"Why do you not go home?\" she asked. \"Because,\" said the boy, \"my brothers \
     have locked the door, and the dog has eaten my supper.\" Then she gave him a golden key, and told him of a \
     castle behind the seventh hill, where a princess had been asleep for a hundred years.\n";

/// Mean and standard error of `-ln p`, from the logits after each prefix: the forward pass is that of `generate`,
/// the sums are in f64, tokens are counted one by one. Chunks of `ctx`, of which the last may be cut off.
fn by_hand(name: &str, ctx: usize, most: usize) -> (f64, f64, usize, usize) {
    let file = ModelFile::open(model(name)).unwrap();
    let tokens = file.tokenizer().encode_ordinary(TEXT, true).unwrap();
    let bos = file.tokenizer().bos().unwrap();
    let mut model = file.load(&Device::Cpu, &LoadOptions::default(), &mut |_| {}).unwrap();
    let mut losses = vec![];
    let mut start = 0;
    while start + ctx <= tokens.len() && start < most * ctx {
        model.reset();
        for position in 0..ctx - 1 {
            let token = if position == 0 { bos } else { tokens[start + position] };
            let logits = model.feed(&[token]).unwrap();
            if position >= ctx / 2 {
                let total: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
                let next = tokens[start + position + 1];
                losses.push(total.ln() - f64::from(logits[next as usize]));
            }
        }
        start += ctx;
    }
    let n = losses.len() as f64;
    let mean = losses.iter().sum::<f64>() / n;
    let variance = losses.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    (mean, (variance / (n - 1.0)).sqrt(), losses.len(), tokens.len())
}

fn measure(name: &str, ctx: usize, more: &[&str]) -> serde_json::Value {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.txt");
    std::fs::write(&text, TEXT).unwrap();
    let (ctx, model) = (ctx.to_string(), model(name));
    let args = [
        "perplexity",
        "--device",
        "cpu",
        "--json",
        "--model",
        &model,
        "--file",
        text.to_str().unwrap(),
        "--ctx",
        &ctx,
    ];
    serde_json::from_str(&success(&[&args[..], more].concat())).unwrap()
}

#[test]
fn perplexity_is_that_of_the_logits() {
    // Sizes that are odd, leave tokens over, and divide the 96 tokens; and fewer chunks than there are.
    for (name, ctx, limit, chunks) in [
        ("nano-f16", 33, None, 2),
        ("nano-Q4_K_M", 26, None, 3),
        ("nano-Q4_0", 32, None, 3),
        ("nano-Q4_0", 33, Some("1"), 1),
    ] {
        let (mean, error, scored, tokens) = by_hand(name, ctx, chunks);
        let got = measure(name, ctx, limit.map_or(&[][..], |_| &["--chunks", "1"]));
        assert_eq!(got["chunks"], chunks, "{name}: {got}");
        assert_eq!((&got["tokens_scored"], &got["tokens"]), (&scored.into(), &tokens.into()), "{name}");
        assert_eq!(scored, chunks * (ctx - 1 - ctx / 2));
        let number = |key: &str| got[key].as_f64().unwrap();
        // Both sides run on the interpreter, which rounds each logit, shifted logit and logarithm once to f32: at
        // magnitudes below 32 by 2^-20 each, about 1e-6, in either direction.
        assert!((number("nll") - mean).abs() < 3e-6, "{name}: {mean} {got}");
        assert!((number("perplexity") / mean.exp() - 1.0).abs() < 3e-6, "{name}: {mean} {got}");
        assert!(
            (number("standard_error") / (error * mean.exp()) - 1.0).abs() < 1e-5,
            "{name}: {error} {got}"
        );
    }
}

#[test]
fn json_has_exactly_the_promised_keys_and_the_line_its_numbers() {
    let report = measure("nano-Q4_0", 20, &[]);
    let mut keys: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let mut promised = [
        "perplexity",
        "standard_error",
        "nll",
        "ctx",
        "chunks",
        "tokens_scored",
        "tokens",
        "device",
        "seconds",
    ];
    promised.sort_unstable();
    assert_eq!(keys, promised);

    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.txt");
    std::fs::write(&text, TEXT).unwrap();
    let nano = model("nano-Q4_0");
    let args =
        ["perplexity", "--device", "cpu", "--model", &nano, "--ctx", "20", "--file", text.to_str().unwrap()];
    let output = program(&args).output().unwrap();
    let number = |key: &str| report[key].as_f64().unwrap();
    let line = format!("perplexity {:.4} +- {:.4}\n", number("perplexity"), number("standard_error"));
    assert_eq!(String::from_utf8(output.stdout.clone()).unwrap(), line);
    let figures = stderr(&output);
    assert_eq!(figures.lines().count(), 1, "{figures}");
    assert!(figures.starts_with("[cpu: ") && figures.contains(" chunks of 20; "), "{figures}");
}
