//! The arguments of subcommands.

use std::num::NonZero;
use std::path::PathBuf;

use bytesize::ByteSize;
use clap::ValueEnum;
use tallow_models::{CacheType, HostLayers, SamplingOptions};

/// Where and how a model is loaded.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    /// Where to run: `cpu`, `vulkan` (the best Vulkan device) or the number of a Vulkan device [default: a GPU; without
    /// one, the faster of the CPU and a software Vulkan device].
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// The pre-tokenizer, in place of the file's `tokenizer.ggml.pre`.
    #[arg(long, value_name = "NAME")]
    pub pre: Option<String>,
    /// Measure the kernels that can be cut up in several ways, once for each device, and take the fastest.
    #[arg(long)]
    pub tune: bool,
    /// A LoRA adapter, and how much it counts [default: 1]; may be given several times.
    #[arg(long, value_name = "FILE[:SCALE]", allow_hyphen_values = true)]
    pub lora: Vec<String>,
    /// Context size: tokens of the prompt and the generated text together [default: the model's own].
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// What quantized weights are multiplied by.
    #[arg(long, value_enum, default_value_t)]
    pub activations: Activations,
    /// How keys and values are kept.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// How much memory there is.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// When the model's kernels are compared with the CPU interpreter, in short, before `generate`, `chat` and `logits` run
    /// it. A driver may compute wrong results.
    #[arg(long, value_enum, default_value_t)]
    pub verify: Verify,
}

/// When kernels are compared at load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Verify {
    /// Those that this version of a GPU's driver has not computed before, if there is a cache directory to remember them.
    #[default]
    Auto,
    /// All, also on software devices and although they were compared before.
    Always,
    /// None.
    Never,
}

/// How much memory a model may take.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct MemoryArgs {
    /// The most memory that the model may take, such as 24GiB; more is an error [default: what the device has free].
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,
    /// Keep the weights of the last N layers in the host's memory, from which a GPU reads them over the bus: slow, but they
    /// need no room on the device. `auto` takes as few as make the rest fit.
    #[arg(long, value_name = "N|auto", default_value_t)]
    pub host_layers: HostLayers,
}

impl MemoryArgs {
    /// The size in bytes.
    pub fn bytes(&self) -> Option<u64> {
        self.memory.map(|size| size.as_u64())
    }

    /// Whether layers may be in the host's memory.
    pub fn uses_host(&self) -> bool {
        self.host_layers != HostLayers::default()
    }
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct CacheArgs {
    /// Data type of cached keys: f32, f16, q8_0 or q4_0.
    #[arg(long, value_name = "TYPE", default_value_t)]
    pub cache_type_k: CacheType,
    /// Data type of cached values: f32, f16, q8_0 or q4_0.
    #[arg(long, value_name = "TYPE", default_value_t)]
    pub cache_type_v: CacheType,
}

/// What quantized weights are multiplied by.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub enum Activations {
    /// Activations rounded to 8 bits where the device multiplies those faster.
    #[default]
    Auto,
    /// Activations as they are.
    Exact,
    /// Activations rounded to 8 bits where the device can multiply those at all.
    Rounded,
}

/// Options of `generate`.
#[derive(Debug, clap::Args)]
pub struct GenerateArgs {
    /// The model, a GGUF file.
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,
    /// The text to continue.
    #[arg(long, allow_hyphen_values = true, required_unless_present = "dry_run")]
    pub prompt: Option<String>,
    /// Print the memory that the model takes and whether it fits, and load nothing. The exit code is 0 if it fits or the
    /// free memory is not known. The device need not be present, as for `inspect`.
    #[arg(long)]
    pub dry_run: bool,
    /// The most tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub max_tokens: usize,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Treat the prompt as a chat message, and print the answer alone.
    #[arg(long)]
    pub chat: bool,
    /// How to prompt for an answer.
    #[command(flatten)]
    pub template: TemplateArgs,
    /// Print one JSON object instead of the text.
    #[arg(long)]
    pub json: bool,
    /// Where and how to load the model.
    #[command(flatten)]
    pub load: LoadArgs,
}

/// How tokens are chosen.
#[derive(Debug, clap::Args)]
pub struct SamplingArgs {
    /// 0 takes the most likely token each time; higher values are more random [default: 0; 0.7 in a chat].
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Choose among the K most likely tokens; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// Choose among the fewest tokens whose probabilities sum to P [default: 1; 0.9 in a chat].
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Choose among tokens at least P times as likely as the most likely one.
    #[arg(long, value_name = "P", allow_negative_numbers = true, default_value_t = 0.0)]
    pub min_p: f32,
    /// Make recent tokens less likely; 1 does not.
    #[arg(long, value_name = "R", allow_negative_numbers = true, default_value_t = 1.0)]
    pub repetition_penalty: f32,
    /// How many tokens are recent.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub repetition_last_n: usize,
    /// Seed of the random choices.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
}

/// Defaults of [`SamplingArgs`] that depend on the command.
#[derive(Clone, Copy, Debug)]
pub struct SamplingDefaults {
    temperature: f32,
    top_p: f32,
}

impl SamplingDefaults {
    /// Of `generate`: the same text each time.
    pub const GENERATE: SamplingDefaults = SamplingDefaults { temperature: 0.0, top_p: 1.0 };
    /// Of a chat: small models repeat themselves where they always take the most likely token.
    pub const CHAT: SamplingDefaults = SamplingDefaults { temperature: 0.7, top_p: 0.9 };
}

impl SamplingArgs {
    /// The options, with a command's defaults.
    pub fn options(&self, defaults: SamplingDefaults) -> SamplingOptions {
        SamplingOptions {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k,
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            repetition_last_n: self.repetition_last_n,
            seed: self.seed,
        }
    }
}

/// How a chat is put to a model.
#[derive(Debug, clap::Args)]
pub struct TemplateArgs {
    /// The system prompt of a chat.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// A chat template in place of the model's own: a Jinja file, or one of chatml, gemma, llama2, llama3, mistral,
    /// phi3 and zephyr.
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<String>,
}

/// Options of `chat`.
#[derive(Debug, clap::Args)]
pub struct ChatArgs {
    /// The model, a GGUF file.
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,
    /// Answer this one question and leave.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// As for `generate`.
    #[arg(long)]
    pub dry_run: bool,
    /// Go on with a conversation that `/save` wrote.
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// The most tokens of an answer [default: until the model ends it].
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// How to prompt for an answer.
    #[command(flatten)]
    pub template: TemplateArgs,
    /// Where and how to load the model.
    #[command(flatten)]
    pub load: LoadArgs,
}

/// Options of `tokenize`.
#[derive(Debug, clap::Args)]
pub struct TokenizeArgs {
    /// The model, a GGUF file.
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,
    /// The text; standard input where not given.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub text: Option<String>,
    /// Do not recognize control tokens in the text.
    #[arg(long)]
    pub ordinary: bool,
    /// Add no BOS and EOS tokens.
    #[arg(long)]
    pub bare: bool,
    /// Print the ids alone, in one line.
    #[arg(long)]
    pub ids: bool,
    /// The pre-tokenizer, in place of the file's `tokenizer.ggml.pre`.
    #[arg(long, value_name = "NAME")]
    pub pre: Option<String>,
}

/// Options of `logits`.
#[derive(Debug, clap::Args)]
pub struct LogitsArgs {
    /// The model, a GGUF file.
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,
    /// Token ids, separated by commas; nothing is added to them.
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    pub tokens: Vec<u32>,
    /// The file to write: NumPy's format, one f32 per token of the vocabulary.
    #[arg(long, value_name = "FILE.npy")]
    pub out: PathBuf,
    /// Where and how to load the model.
    #[command(flatten)]
    pub load: LoadArgs,
}

/// Options of `perplexity`.
#[derive(Debug, clap::Args)]
pub struct PerplexityArgs {
    /// The model, a GGUF file.
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,
    /// The pre-tokenizer, in place of the file's `tokenizer.ggml.pre`.
    #[arg(long, value_name = "NAME")]
    pub pre: Option<String>,
    /// A LoRA adapter, and how much it counts [default: 1]; may be given several times.
    #[arg(long, value_name = "FILE[:SCALE]", allow_hyphen_values = true)]
    pub lora: Vec<String>,
    /// The text, UTF-8.
    #[arg(long, value_name = "TEXT")]
    pub file: PathBuf,
    /// Tokens of a chunk; those in its second half are scored.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub ctx: usize,
    /// The most chunks to score [default: all of the text].
    #[arg(long, value_name = "N")]
    pub chunks: Option<NonZero<usize>>,
    /// Print one JSON object instead of a line.
    #[arg(long)]
    pub json: bool,
    /// Where to run, as for `generate`.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// How keys and values are kept.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// How much memory there is.
    #[command(flatten)]
    pub memory: MemoryArgs,
}

/// Options of `inspect`.
#[derive(Debug, clap::Args)]
pub struct InspectArgs {
    /// The model, a GGUF file.
    pub model: PathBuf,
    /// Print only the summary: whether the model runs, and the memory that it takes.
    #[arg(long)]
    pub summary: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Where the model would run, as for `generate`; or a device that need not be here: minimum, lavapipe, h200, rdna3,
    /// intel, mali or adreno.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Context size: tokens of the prompt and the generated text together [default: the model's own].
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// How keys and values are kept.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// How much memory there is.
    #[command(flatten)]
    pub memory: MemoryArgs,
}

/// Options of `explain`.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// The model, a GGUF file.
    pub model: PathBuf,
    /// Which step.
    #[arg(long, value_enum, default_value_t = Step::Decode)]
    pub step: Step,
    /// Where and how to load the model.
    #[command(flatten)]
    pub load: LoadArgs,
}

/// The two graphs of a model.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Step {
    /// One token.
    Decode,
    /// Many tokens.
    Prefill,
}

/// Options of `quantize`.
#[derive(Debug, clap::Args)]
pub struct QuantizeArgs {
    /// The model, a GGUF file; best in F16, BF16 or F32.
    pub model: PathBuf,
    /// The file to write.
    pub out: PathBuf,
    /// What to make of the weights: a format, or a mix of formats as llama.cpp names them, such as Q4_K_M.
    #[arg(long = "type", value_name = "TYPE")]
    pub format: String,
    /// An importance matrix: which columns of the weights matter most.
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// All weights in the type's base format instead of a mix.
    #[arg(long)]
    pub pure: bool,
    /// Format of the token embedding.
    #[arg(long, value_name = "FORMAT")]
    pub token_embedding_type: Option<String>,
    /// Format of the projection to the vocabulary.
    #[arg(long, value_name = "FORMAT")]
    pub output_tensor_type: Option<String>,
    /// Take a model that is quantized already, and lose more.
    #[arg(long)]
    pub allow_requantize: bool,
    /// Threads to work with [default: one a core].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// Options of `imatrix`.
#[derive(Debug, clap::Args)]
pub struct ImatrixArgs {
    /// The model, a GGUF file.
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,
    /// The pre-tokenizer, in place of the file's `tokenizer.ggml.pre`.
    #[arg(long, value_name = "NAME")]
    pub pre: Option<String>,
    /// The text to measure on, like what the model will read and write.
    #[arg(long, value_name = "TEXT")]
    pub file: PathBuf,
    /// The importance matrix to write.
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Tokens that the model reads at a time.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub chunk: usize,
    /// The most chunks to read [default: the whole text].
    #[arg(long, value_name = "N")]
    pub chunks: Option<usize>,
    /// Where to run, as in `generate`.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
}

/// Options of `train`.
#[derive(Debug, clap::Args)]
pub struct TrainArgs {
    /// The configuration, a TOML file: model, texts, tokenizer, output folder and settings.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Go on from the checkpoint in the output folder; begin where there is none.
    #[arg(long)]
    pub resume: bool,
    /// Where to run: `cpu`, `vulkan` (the best Vulkan device) or the number of a Vulkan device [default: a GPU; without
    /// one, the CPU].
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
}
