//! `tallow finetune`: a LoRA adapter on the frozen weights of a model.

use std::io::Write;
use std::path::PathBuf;

use bytesize::ByteSize;
use clap::ValueEnum;
use tallow_models::chat::template_of;
use tallow_models::train::{AdapterType, Data, FinetuneOptions, Finetuner, LoraConfig, Target};

use crate::device::choose_gpu;
use crate::error::{Error, Result};
use crate::load::{about, open};
use crate::template::choose_template;
use crate::train::with_bar;

/// Options of `finetune`.
#[derive(Debug, clap::Args)]
pub struct FinetuneArgs {
    /// The model, a GGUF file of any format; its weights stay as they are.
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,
    /// What to learn: a UTF-8 text, or examples as JSON lines (`.jsonl`) with `messages`, or with `prompt` and
    /// `completion`.
    #[arg(long, value_name = "FILE")]
    pub data: PathBuf,
    /// The adapter to write, in llama.cpp's format. The checkpoint goes beside it, to FILE.checkpoint.safetensors; where
    /// there is one, the training goes on from it.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Rank of the adapters.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub lora_rank: usize,
    /// The adapters' products count ALPHA / RANK times [default: twice the rank].
    #[arg(long, value_name = "ALPHA", allow_negative_numbers = true)]
    pub lora_alpha: Option<f64>,
    /// Projections with an adapter, separated by commas.
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',', default_values_t = Projection::ALL)]
    pub lora_targets: Vec<Projection>,
    /// Element type of the adapter.
    #[arg(long, value_enum, default_value_t)]
    pub adapter_type: ElementType,
    /// Windows or examples of a step.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub batch: usize,
    /// Tokens of a window [default: those of the longest example, or 512 of a text; at most the model's context].
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Steps [default: as many as the passes take].
    #[arg(long, value_name = "N")]
    pub steps: Option<usize>,
    /// Passes over the data.
    #[arg(long, value_name = "N", default_value_t = 1.0, allow_negative_numbers = true)]
    pub epochs: f64,
    /// The largest learning rate; it falls to 0 along a cosine.
    #[arg(long, value_name = "RATE", default_value_t = 2e-4, allow_negative_numbers = true)]
    pub learning_rate: f64,
    /// Steps in which the learning rate grows [default: 20, at most a tenth of the steps].
    #[arg(long, value_name = "N")]
    pub warmup: Option<usize>,
    /// AdamW's weight decay.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, allow_negative_numbers = true)]
    pub weight_decay: f64,
    /// The largest norm of all gradients.
    #[arg(long, value_name = "NORM", default_value_t = 1.0, allow_negative_numbers = true)]
    pub clip: f64,
    /// The most memory for activations and other intermediate values, such as `4GiB`; what does not fit is computed again
    /// [default: what the device has left].
    #[arg(long, value_name = "SIZE")]
    pub activation_memory: Option<ByteSize>,
    /// Steps between two writings of checkpoint and adapter.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub save_every: usize,
    /// Seed of the adapters' initial values and of the order of the data.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// A chat template in place of the model's own: a Jinja file, or one of chatml, gemma, llama2, llama3, mistral,
    /// phi3 and zephyr.
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<String>,
    /// The pre-tokenizer, in place of the file's `tokenizer.ggml.pre`.
    #[arg(long, value_name = "NAME")]
    pub pre: Option<String>,
    /// Where to run: `cpu`, `vulkan` (the best Vulkan device) or the number of a Vulkan device [default: a GPU; without
    /// one, the CPU].
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
}

/// A projection of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Projection(Target);

impl Projection {
    const ALL: [Projection; 7] = {
        let [q, k, v, o, gate, up, down] = Target::ALL;
        [
            Projection(q),
            Projection(k),
            Projection(v),
            Projection(o),
            Projection(gate),
            Projection(up),
            Projection(down),
        ]
    };
}

impl ValueEnum for Projection {
    fn value_variants<'a>() -> &'a [Projection] {
        &Projection::ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.0.name()))
    }
}

/// Element type of an adapter.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub enum ElementType {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits.
    Bf16,
}

/// Runs the command.
pub fn finetune(args: &FinetuneArgs) -> Result<()> {
    let file = open(&args.model, args.pre.as_deref())?;
    // Texts need no template, and no word about one.
    let template = match args.chat_template.is_none() && !Data::is_examples(&args.data) {
        true => template_of(file.tokenizer()).map_err(|why| Error::Template { why })?,
        false => choose_template(args.chat_template.as_deref(), &file)?,
    };
    let device = choose_gpu(args.device.as_deref())?;
    let mut tuner = Finetuner::open(&file, &args.data, &template, options(args), &args.out, &device)
        .map_err(|error| match error {
            tallow_models::Error::Gguf(_) => about(&args.model, error),
            other => other.into(),
        })?;
    let (first, steps) = tuner.position();
    let (tokens, context) = (args.batch * tuner.context(), tuner.context());
    let which = if first == 0 { format!("{steps} steps") } else { format!("from step {first} of {steps}") };
    let _ = writeln!(
        std::io::stderr(),
        "[{}: {} parameters in {} adapters, {}, {} x {context} tokens a step, {which}]",
        device.name(),
        tuner.net().parameters(),
        tuner.net().adapters().count(),
        describe(tuner.data()),
        args.batch,
    );
    with_bar((first, steps), tokens, |tell| tuner.run(tell))?;
    let (step, steps) = tuner.position();
    let mut out = std::io::stdout().lock();
    if let [first, .., last] = tuner.history().losses.as_slice() {
        writeln!(out, "step {step} of {steps}: loss {last:.4}, {first:.4} at first")?;
    }
    for file in [tuner.checkpoint(), &args.out] {
        writeln!(out, "{}", file.display())?;
    }
    out.flush()?;
    if step < steps {
        let _ = writeln!(std::io::stderr(), "[stopped; the same command goes on]");
    }
    Ok(())
}

fn options(args: &FinetuneArgs) -> FinetuneOptions {
    let adapter_type = match args.adapter_type {
        ElementType::F32 => AdapterType::F32,
        ElementType::Bf16 => AdapterType::BF16,
    };
    let plain = LoraConfig::new(args.lora_rank);
    let lora = LoraConfig {
        alpha: args.lora_alpha.unwrap_or(plain.alpha),
        targets: args.lora_targets.iter().map(|target| target.0).collect(),
        adapter_type,
        seed: args.seed,
        ..plain
    };
    FinetuneOptions {
        steps: args.steps,
        epochs: args.epochs,
        batch: args.batch,
        context: args.context,
        learning_rate: args.learning_rate,
        warmup: args.warmup,
        weight_decay: args.weight_decay,
        clip: args.clip,
        activation_memory: args.activation_memory.map(|size| size.as_u64()),
        save_every: args.save_every,
        ..FinetuneOptions::new(lora)
    }
}

/// What is learned, and what does not fit.
fn describe(data: &Data) -> String {
    let tokens = data.tokens();
    let Data::Examples(shuffled) = data else { return format!("a text of {tokens} tokens") };
    let examples = shuffled.examples();
    let mut text = format!("{} examples of {tokens} tokens", examples.count());
    for (count, what) in examples.shortened().into_iter().zip(["cut to the context", "left out"]) {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    text
}
