//! The page as Markdown.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde::Deserialize;
use tallow_models::Architecture;

use super::counts::{Count, PROFILE, TEXT, counted, gaps};
use super::{TOLERANCE, table};
use crate::architectures::{Fixture, LARGEST_ERROR};

/// What the page says of an architecture.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct About {
    name: String,
    models: String,
    layers: String,
    source: String,
}

/// The page.
pub fn page() -> String {
    let mut out = String::from(
        "# Models\n\n\
         Written by `UPDATE_DOCS=1 cargo test --workspace --test models page` from the tables and fixtures in\n\
         `crates/models/tests/fixtures/`, and from plans.\n\n\
         A GGUF file runs if its key `general.architecture` is in the table below and its\n\
         [tokenizer](tokenizers.md) and [formats](quantization.md) are known. `tallow inspect FILE` tells, without\n\
         loading it. [Language models](guide/language-models.md) shows what to do with one.\n\n",
    );
    architectures(&mut out);
    out.push_str(LIMITS);
    verified(&mut out);
    layers(&mut out);
    out
}

const LIMITS: &str = "\
## What is not supported

- Other architectures: an error names those that are supported.
- Images and sound: the text part of such a model runs, without its projector file (`mmproj`).
- Encoders (`bert`, `nomic-bert`) embed texts and generate none.
- The cache of layers with a window has a row for each position of the context, as that of others: a window saves no
  memory.
- Scaled rope is of the types `linear`, `yarn`, the divisors of Llama 3.1 (`rope_freqs.weight`) and LongRoPE. Other
  values of `rope.scaling.type` are errors. LongRoPE's long factors are used when the context that is asked for
  exceeds the original one, whatever the length of the text.
- Layers that predict several tokens ahead (DeepSeek V3) are not used.
- Fine-tuning is for `llama`, `qwen2` and `qwen3`, without experts and windows.

";

fn architectures(out: &mut String) {
    #[derive(Deserialize)]
    struct Table {
        architecture: Vec<About>,
    }
    let all = table::<Table>("architectures.toml").architecture;
    let names: Vec<&str> = all.iter().map(|about| about.name.as_str()).collect();
    assert_eq!(names, Architecture::NAMES, "architectures.toml has the order of `Architecture::ALL`");
    out.push_str(
        "## Architectures\n\n| `general.architecture` | models | layers | source |\n|---|---|---|---|\n",
    );
    for About { name, models, layers, source } in &all {
        let _ = writeln!(out, "| `{name}` | {models} | {layers} | {source} |");
    }
    out.push('\n');
}

/// How the fixtures were made, and what is compared.
fn verified(out: &mut String) {
    let fixtures = Fixture::all();
    let versions: BTreeSet<&str> = fixtures.iter().map(|fixture| fixture.transformers.as_str()).collect();
    let versions = versions.into_iter().collect::<Vec<_>>().join(", ");
    let _ = write!(
        out,
        "## How each was verified\n\n\
         Each row is a small random model whose logits after each of its tokens, or an encoder's last rows, Hugging\n\
         Face's transformers computed in f64 (version {versions}; `scripts/architecture_fixtures`). Tests compare them\n\
         on the interpreter and on a Vulkan device: token by token, as one prompt, and as a prompt with tokens after\n\
         it. The normalized mean squared error must be below {LARGEST_ERROR:e}, with exact activations and an f32\n\
         cache. For blocks, transformers had the dequantized weights.\n\n\
         Files with changed metadata give errors, not panics, and weights from 2^-40 to 2^40 give no NaN on the device\n\
         where the interpreter has numbers. With a weight or a scale that is infinite, NaN, subnormal or the largest of\n\
         its type, results are finite on the device where they are on the interpreter. (The largest of f32 may count as\n\
         infinity: kernels compute in f32, the interpreter in f64.) Published files are too large for the repository:\n\
         of those, the tests have the two models of `models/`, and all-MiniLM-L6-v2 where it is there.\n\n\
         | fixture | architecture | class of transformers | tokens | formats |\n|---|---|---|---|---|\n"
    );
    for fixture in &fixtures {
        let Fixture { name, class, .. } = fixture;
        let (architecture, tokens) = (fixture.architecture(), fixture.tokens.len());
        let formats = fixture.formats().join(", ");
        let _ = writeln!(out, "| `{name}` | `{architecture}` | `{class}` | {tokens} | {formats} |");
    }
    out.push('\n');
}

/// Counts of plans beside those by hand.
fn layers(out: &mut String) {
    let all_gaps = gaps();
    let gaps = if all_gaps.is_empty() { "" } else { ", but for the gaps below" };
    let _ = write!(
        out,
        "## What a layer takes\n\n\
         Dispatches (kernels) and levels (sets of dispatches between two barriers) that one more layer adds to a decode\n\
         step, as planned for the profile `{PROFILE}` with weights in Q8_0 and a cache in f16. An encoder's are those of\n\
         the graph for texts of up to {TEXT} tokens. The models are the small ones above. Rows of at most 256 columns, such\n\
         as theirs, fit one tile of a product, which then norms them in its epilogue; the rows of a published model do\n\
         not. Where that makes a difference, another line has the same layer in the sizes of a published model.\n\
         `tallow explain FILE` prints the plan of a model for a device.\n\n\
         The counts by hand are what the formulas need if every fusion that could be made is made. They were committed\n\
         before the plans were counted, with the rules of counting: `crates/models/tests/fixtures/layer_counts.toml`.\n\
         Plans of `gemma2`, `gemma3`, `glm4` and `olmo2` were shorter than that, so a rule of norms after products was\n\
         added there. The counts by it came after the plans. A test asks that plan and hand differ by at most\n\
         {TOLERANCE}{gaps}. In the last column, `|` is a barrier, and `;` divides dispatches of a level.\n\n\
         | models | dispatches | levels | by hand | what each level holds, by hand |\n|---|---|---|---|---|\n"
    );
    let counted = counted();
    for group in counted
        .chunk_by(|a, b| (a.planned, a.expected) == (b.planned, b.expected) && a.derivation == b.derivation)
    {
        row(out, group);
    }
    if all_gaps.is_empty() {
        return;
    }
    out.push_str("\nGaps between plan and hand:\n\n| models | reason |\n|---|---|\n");
    for gap in &all_gaps {
        let _ = writeln!(out, "| {} | {} |", code(gap.fixtures.iter()), gap.reason.trim());
    }
}

fn row(out: &mut String, group: &[Count]) {
    let Some(Count { planned: [dispatches, levels], expected, derivation, .. }) = group.first() else {
        return;
    };
    let name = |count: &Count| match &count.published {
        Some(model) => format!("`{}` as {model}", count.fixture),
        None => format!("`{}`", count.fixture),
    };
    let names = group.iter().map(name).collect::<Vec<_>>().join(", ");
    let [by_hand, levels_by_hand] = expected;
    let derivation = derivation.trim().replace('|', "\\|");
    let _ =
        writeln!(out, "| {names} | {dispatches} | {levels} | {by_hand} in {levels_by_hand} | {derivation} |");
}

fn code<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
