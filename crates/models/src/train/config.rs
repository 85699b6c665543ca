//! The configuration of a training, in TOML.

use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use tallow::DType;

use super::error::TrainError;
use crate::error::Result;

/// Sizes of a decoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetConfig {
    /// Tokens of the vocabulary, rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Decoder layers.
    pub n_layer: usize,
    /// Query heads, each of `n_embd / n_head` elements.
    pub n_head: usize,
    /// Key and value heads.
    pub n_head_kv: usize,
    /// Width of the feed-forward block.
    pub n_ff: usize,
    /// Tokens of the context.
    pub n_ctx: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to the mean square in RMS norms.
    pub rms_eps: f64,
}

/// A model with usual sizes and the settings that suit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// 30 million parameters.
    Main,
    /// 5 million parameters.
    Nano,
    /// 0.6 million parameters, for tests.
    Test,
}

impl Preset {
    /// The sizes of the model.
    pub fn net(self) -> NetConfig {
        let (n_embd, n_layer, n_head, n_ff, n_ctx) = match self {
            Preset::Main => (512, 8, 8, 1536, 1024),
            Preset::Nano => (256, 4, 4, 768, 1024),
            Preset::Test => (64, 2, 4, 128, 128),
        };
        let (vocab_size, n_head_kv, rope_theta, rms_eps) = (8192, 2, 10000.0, 1e-5);
        NetConfig { vocab_size, n_embd, n_layer, n_head, n_head_kv, n_ff, n_ctx, rope_theta, rms_eps }
    }

    /// Passes over the text, learning rate, dropout.
    fn settings(self) -> (f64, f64, f64) {
        match self {
            Preset::Main => (12.0, 1.5e-3, 0.1),
            Preset::Nano => (20.0, 3e-3, 0.0),
            Preset::Test => (1.0, 3e-3, 0.1),
        }
    }
}

/// Element type of the matrices in the GGUF file; vectors are F32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExportType {
    /// Half precision.
    #[default]
    F16,
    /// As they were trained.
    F32,
}

/// The type in which products and attention are computed. Weights, moments, norms and the loss are f32 in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Single precision.
    #[default]
    F32,
    /// bfloat16, several times as fast on GPUs that multiply its matrices.
    Bf16,
}

impl Precision {
    /// The element type.
    pub fn dtype(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
        }
    }
}

/// How a model is trained.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Options {
    /// Seed of the initial weights, the windows and the dropout.
    pub seed: u64,
    /// Steps; where absent, as many as `epochs` passes take.
    pub steps: Option<usize>,
    /// Passes over the text.
    pub epochs: f64,
    /// Windows of a step.
    pub batch: usize,
    /// Tokens of a window.
    pub context: usize,
    /// The largest learning rate.
    pub learning_rate: f64,
    /// The last learning rate, as a fraction of the largest.
    pub min_learning_rate: f64,
    /// Steps in which the learning rate grows; where absent, 150 or a tenth of the steps, whichever is less.
    pub warmup: Option<usize>,
    /// AdamW's weight decay, of matrices alone.
    pub weight_decay: f64,
    /// Share of the first moment that remains.
    pub beta1: f64,
    /// Share of the second moment that remains.
    pub beta2: f64,
    /// The largest norm of all gradients.
    pub clip: f64,
    /// Probability with which activations are dropped.
    pub dropout: f64,
    /// The type in which products and attention are computed.
    pub precision: Precision,
    /// The most bytes of activations and other intermediate values; where absent, what the device has left. Kernels run
    /// again to fit it.
    pub activation_memory: Option<u64>,
    /// Steps between two readings of the loss.
    pub log_every: usize,
    /// Steps between two validations.
    pub validate_every: usize,
    /// The most windows of a validation; where absent, the whole text.
    pub validation_windows: Option<usize>,
    /// Steps between two checkpoints.
    pub checkpoint_every: usize,
}

/// A training: what is trained, on what, how, and where the results go.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The texts.
    pub text: Vec<PathBuf>,
    /// The text that is not trained on; where absent, the last twentieth of the tokens.
    pub validation: Option<PathBuf>,
    /// A `tokenizer.json` or a GGUF file.
    pub tokenizer: PathBuf,
    /// Initial weights, a safetensors or GGUF file; where absent, random ones.
    pub weights: Option<PathBuf>,
    /// The folder for checkpoint, exported model and loss curve.
    pub out: PathBuf,
    /// Element type of the exported model.
    pub export: ExportType,
    /// Sizes of the model.
    pub net: NetConfig,
    /// How it is trained.
    pub options: Options,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    preset: Preset,
    text: Paths,
    validation: Option<PathBuf>,
    tokenizer: PathBuf,
    weights: Option<PathBuf>,
    out: PathBuf,
    #[serde(default)]
    export: ExportType,
    #[serde(default)]
    model: ModelTable,
    training: TrainingTable,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Paths {
    One(PathBuf),
    Many(Vec<PathBuf>),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelTable {
    vocab_size: Option<usize>,
    n_embd: Option<usize>,
    n_layer: Option<usize>,
    n_head: Option<usize>,
    n_head_kv: Option<usize>,
    n_ff: Option<usize>,
    n_ctx: Option<usize>,
    rope_theta: Option<f64>,
    rms_eps: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TrainingTable {
    batch: usize,
    context: Option<usize>,
    seed: Option<u64>,
    steps: Option<usize>,
    epochs: Option<f64>,
    learning_rate: Option<f64>,
    min_learning_rate: Option<f64>,
    warmup: Option<usize>,
    weight_decay: Option<f64>,
    beta1: Option<f64>,
    beta2: Option<f64>,
    clip: Option<f64>,
    dropout: Option<f64>,
    #[serde(default)]
    precision: Precision,
    activation_memory: Option<ByteSize>,
    log_every: Option<usize>,
    validate_every: Option<usize>,
    validation_windows: Option<usize>,
    checkpoint_every: Option<usize>,
}

impl Plan {
    /// Reads a configuration. Paths in it are relative to its folder.
    ///
    /// # Errors
    /// When the file cannot be read or is no TOML, a key is unknown or missing, or a value makes no sense.
    pub fn read(path: impl AsRef<Path>) -> Result<Plan> {
        let path = path.as_ref();
        let text =
            std::fs::read_to_string(path).map_err(|source| TrainError::Read { path: path.into(), source })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let plan = Plan::parse(&text, folder);
        Ok(plan.map_err(|why| TrainError::Config { path: path.into(), why })?)
    }

    /// Reads a configuration from its text; paths in it are relative to `folder`.
    ///
    /// # Errors
    /// What is wrong, in a line.
    pub fn parse(text: &str, folder: &Path) -> Result<Plan, String> {
        let file: File = toml::from_str(text).map_err(|error| {
            let message = error.message().replace('\n', " ");
            match error.span() {
                Some(span) => {
                    let line =
                        text.as_bytes()[..span.start.min(text.len())].iter().filter(|c| **c == b'\n').count()
                            + 1;
                    format!("line {line}: {message}")
                }
                None => message,
            }
        })?;
        let place = |path: PathBuf| folder.join(path);
        let text = match file.text {
            Paths::One(path) => vec![path],
            Paths::Many(paths) => paths,
        };
        let plan = Plan {
            text: text.into_iter().map(place).collect(),
            validation: file.validation.map(place),
            tokenizer: place(file.tokenizer),
            weights: file.weights.map(place),
            out: place(file.out),
            export: file.export,
            net: file.model.over(file.preset.net()),
            options: file.training.over(file.preset),
        };
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<(), String> {
        let (net, options) = (&self.net, &self.options);
        let positive = [
            ("vocab_size", net.vocab_size),
            ("n_embd", net.n_embd),
            ("n_layer", net.n_layer),
            ("n_head", net.n_head),
            ("n_head_kv", net.n_head_kv),
            ("n_ff", net.n_ff),
            ("n_ctx", net.n_ctx),
            ("batch", options.batch),
            ("context", options.context),
            ("log_every", options.log_every),
            ("validate_every", options.validate_every),
            ("checkpoint_every", options.checkpoint_every),
            ("steps", options.steps.unwrap_or(1)),
            ("text", self.text.len()),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(format!("{name} must not be 0"));
        }
        // Beyond 2^31 sums of sizes could overflow.
        if let Some((name, value)) = positive.iter().find(|(_, value)| *value > 1 << 31) {
            return Err(format!("{name} is {value}, more than this program takes"));
        }
        if !net.n_embd.is_multiple_of(2 * net.n_head) {
            return Err(format!("n_embd {} is not divisible by twice n_head {}", net.n_embd, net.n_head));
        }
        if !net.n_head.is_multiple_of(net.n_head_kv) {
            return Err(format!("n_head {} is not divisible by n_head_kv {}", net.n_head, net.n_head_kv));
        }
        if options.context > net.n_ctx {
            return Err(format!("context {} is larger than n_ctx {}", options.context, net.n_ctx));
        }
        let above_zero = |value: f64| value > 0.0 && value.is_finite();
        let fraction = |value: f64| (0.0..1.0).contains(&value);
        let numbers = [
            ("rope_theta", net.rope_theta, above_zero(net.rope_theta), "a positive number"),
            ("rms_eps", net.rms_eps, above_zero(net.rms_eps), "a positive number"),
            ("epochs", options.epochs, above_zero(options.epochs), "a positive number"),
            ("learning_rate", options.learning_rate, above_zero(options.learning_rate), "a positive number"),
            ("clip", options.clip, above_zero(options.clip), "a positive number"),
            (
                "min_learning_rate",
                options.min_learning_rate,
                (0.0..=1.0).contains(&options.min_learning_rate),
                "a fraction of learning_rate",
            ),
            ("weight_decay", options.weight_decay, fraction(options.weight_decay), "at least 0 and below 1"),
            ("beta1", options.beta1, fraction(options.beta1), "at least 0 and below 1"),
            ("beta2", options.beta2, fraction(options.beta2), "at least 0 and below 1"),
            ("dropout", options.dropout, fraction(options.dropout), "at least 0 and below 1"),
        ];
        match numbers.iter().find(|(_, _, good, _)| !good) {
            Some((name, value, _, what)) => Err(format!("{name} is {value}, it must be {what}")),
            None => Ok(()),
        }
    }
}

impl ModelTable {
    fn over(self, net: NetConfig) -> NetConfig {
        NetConfig {
            vocab_size: self.vocab_size.unwrap_or(net.vocab_size),
            n_embd: self.n_embd.unwrap_or(net.n_embd),
            n_layer: self.n_layer.unwrap_or(net.n_layer),
            n_head: self.n_head.unwrap_or(net.n_head),
            n_head_kv: self.n_head_kv.unwrap_or(net.n_head_kv),
            n_ff: self.n_ff.unwrap_or(net.n_ff),
            n_ctx: self.n_ctx.unwrap_or(net.n_ctx),
            rope_theta: self.rope_theta.unwrap_or(net.rope_theta),
            rms_eps: self.rms_eps.unwrap_or(net.rms_eps),
        }
    }
}

impl TrainingTable {
    fn over(self, preset: Preset) -> Options {
        let (epochs, learning_rate, dropout) = preset.settings();
        Options {
            seed: self.seed.unwrap_or(1),
            steps: self.steps,
            epochs: self.epochs.unwrap_or(epochs),
            batch: self.batch,
            context: self.context.unwrap_or(preset.net().n_ctx),
            learning_rate: self.learning_rate.unwrap_or(learning_rate),
            min_learning_rate: self.min_learning_rate.unwrap_or(0.03),
            warmup: self.warmup,
            weight_decay: self.weight_decay.unwrap_or(0.1),
            beta1: self.beta1.unwrap_or(0.9),
            beta2: self.beta2.unwrap_or(0.95),
            clip: self.clip.unwrap_or(1.0),
            dropout: self.dropout.unwrap_or(dropout),
            precision: self.precision,
            activation_memory: self.activation_memory.map(|size| size.as_u64()),
            log_every: self.log_every.unwrap_or(10),
            validate_every: self.validate_every.unwrap_or(100),
            validation_windows: self.validation_windows,
            checkpoint_every: self.checkpoint_every.unwrap_or(100),
        }
    }
}
