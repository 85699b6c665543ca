//! The errors of this crate.

use std::fmt;

use tallow_gguf::GgufError;
use tallow_ir::GraphError;

use crate::host_layers::Speed;
use crate::train::TrainError;

/// Result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a model could not be loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The graph cannot be compiled or run.
    #[error(transparent)]
    Tensor(#[from] tallow::Error),
    /// A chat template or a saved conversation is no good.
    #[error(transparent)]
    Chat(#[from] tallow_chat::ChatError),
    /// A model cannot be trained.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// An adapter cannot be used.
    #[error(transparent)]
    Lora(#[from] LoraError),
    /// Texts cannot be embedded.
    #[error(transparent)]
    Embed(#[from] EmbedError),
    /// The graph cannot be built: the weights' shapes do not fit the architecture.
    #[error("building the {graph} graph of the model")]
    Graph {
        /// Which graph.
        graph: &'static str,
        /// What does not fit.
        source: GraphError,
    },
    /// An architecture that this crate does not know.
    #[error("architecture {found:?} is not supported; {} are", .known.join(", "))]
    UnsupportedArchitecture {
        /// The value of `general.architecture`.
        found: String,
        /// The architectures that are.
        known: Vec<&'static str>,
    },
    /// A hyperparameter that makes no sense or asks for what this crate lacks.
    #[error("metadata key {key}: {why}")]
    Hyperparameter {
        /// The key.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// A tensor whose shape is not the one that the hyperparameters give.
    #[error("tensor {name} has shape {got:?}, the model's hyperparameters give {expected:?}")]
    WeightShape {
        /// The tensor.
        name: String,
        /// The shape that was expected, outermost first.
        expected: Vec<usize>,
        /// The shape in the file.
        got: Vec<usize>,
    },
    /// The prompt has no tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// More tokens than the context holds.
    #[error("the prompt has {tokens} tokens, the context holds {context}")]
    PromptTooLong {
        /// Tokens asked for.
        tokens: usize,
        /// Positions of the context.
        context: usize,
    },
    /// A token that the vocabulary does not have.
    #[error("token {token} is outside of the vocabulary of {vocabulary}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// A context that the model was not made for.
    #[error("a context of {requested} tokens was asked for; this model has 1 to {max}")]
    Context {
        /// Tokens asked for.
        requested: usize,
        /// The model's own context.
        max: usize,
    },
    /// A position that the cache does not reach.
    #[error("position {requested} was asked for; the cache holds {held} tokens")]
    Rewind {
        /// The position.
        requested: usize,
        /// Tokens in the cache.
        held: usize,
    },
    /// A model that takes more memory than there is.
    #[error(transparent)]
    DoesNotFit(#[from] Box<Excess>),
    /// More layers in the host's memory than the model has.
    #[error("{requested} layers in the host's memory were asked for; this model has {layers}")]
    HostLayers {
        /// Layers asked for.
        requested: usize,
        /// The model's layers.
        layers: usize,
    },
    /// Layers in the host's memory that take more than that has free.
    #[error("{layers} layers take {} in the host's memory, and {} are free there", gibibytes(*.needed), gibibytes(*.free))]
    HostMemory {
        /// The layers.
        layers: usize,
        /// Bytes of their weights.
        needed: u64,
        /// Bytes that there are.
        free: u64,
    },
    /// A cache that there is no memory for.
    #[error("there is no memory for a cache of {context} positions; ask for a smaller context")]
    CacheTooLarge {
        /// Positions of the cache.
        context: usize,
    },
    /// A quantized cache whose blocks would lie across heads.
    #[error(
        "a {what} cache of {kind} holds blocks of {per}, and heads of {length} are no whole ones; take f16"
    )]
    CacheBlocks {
        /// "key" or "value".
        what: &'static str,
        /// The type.
        kind: &'static str,
        /// Elements of a head.
        length: usize,
        /// Elements of a block.
        per: usize,
    },
    /// A sampling option out of its range.
    #[error("sampling option {option} is {value}: {why}")]
    SamplingOption {
        /// Its name.
        option: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        why: &'static str,
    },
    /// There is nothing to choose from.
    #[error("there are no logits to choose a token from")]
    NoLogits,
    /// Tokens to score and tokens that follow them, of different numbers.
    #[error("{tokens} tokens were given with {next} tokens that follow them")]
    UnequalTokens {
        /// Tokens given.
        tokens: usize,
        /// Tokens that follow.
        next: usize,
    },
    /// A text that has no whole chunk of the size asked for.
    #[error("the text has {tokens} tokens, one chunk takes {chunk}")]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a chunk.
        chunk: usize,
    },
    /// Chunks that are too short to score.
    #[error("chunks of {chunk} tokens were asked for; perplexity takes at least {min}")]
    ChunkTooShort {
        /// Tokens of a chunk.
        chunk: usize,
        /// The fewest that can be had.
        min: usize,
    },
    /// The probability of a token is not a number.
    #[error(
        "the probability of token {position} of the text is NaN; the weights or the computation are broken"
    )]
    NanProbability {
        /// Where the token stands in the text.
        position: usize,
    },
    /// A logit that is not a number.
    #[error("the logit of token {token} is NaN; the weights or the computation are broken")]
    NanLogit {
        /// The first such token.
        token: usize,
    },
}

/// A model that takes more memory than there is, and what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}, and {} are free; {advice}{}",
    taken(*.needed, *.context, *.at_least), gibibytes(*.free), or_host(.host)
)]
pub struct Excess {
    /// Bytes that the model takes, without its layers in the host's memory.
    pub needed: u64,
    /// Bytes that there are.
    pub free: u64,
    /// Positions of the key-value cache, or the most tokens of a text to embed.
    pub context: usize,
    /// Whether `needed` is what the shortest texts to embed take, of which long ones take more.
    pub at_least: bool,
    /// What would fit.
    pub advice: Advice,
    /// With how many layers in the host's memory it would fit as it is.
    pub host: Option<HostAdvice>,
}

/// Layers in the host's memory with which a model fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostAdvice {
    /// The fewest.
    pub layers: usize,
    /// How fast the model decodes then, where that can be told.
    pub speed: Option<Speed>,
}

/// The beginning of an [`Excess`].
fn taken(needed: u64, context: usize, at_least: bool) -> String {
    let needed = gibibytes(needed);
    match at_least {
        true => format!("to embed texts of up to {context} tokens, the model takes at least {needed}"),
        false => format!("the model takes {needed} with a context of {context} tokens"),
    }
}

/// The end of an [`Excess`].
fn or_host(advice: &Option<HostAdvice>) -> String {
    let Some(HostAdvice { layers, speed }) = advice else { return String::new() };
    let speed =
        speed.map_or(String::new(), |s| format!(", at an estimated {:.1} tokens/s", s.tokens_per_s()));
    format!("; it fits with {layers} layers in the host's memory (--host-layers {layers}){speed}")
}

/// What to do with a model that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// This is about the largest context that fits.
    Context(usize),
    /// No context fits. With the weights in this format, a short one would.
    Format(&'static str),
    /// It fits in no way that is known here.
    Nothing,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Advice::Context(tokens) => write!(f, "a context of {tokens} tokens fits"),
            Advice::Format(name) => {
                write!(f, "no context fits; with weights in {} a short one would", name.to_uppercase())
            }
            Advice::Nothing => f.write_str("no context fits, and no format of the weights"),
        }
    }
}

/// Bytes in a unit that suits them.
fn gibibytes(bytes: u64) -> String {
    let [kib, mib, gib] = [10, 20, 30].map(|bits| bytes as f64 / f64::from(1 << bits));
    match bytes {
        _ if gib >= 1.0 => format!("{gib:.2} GiB"),
        _ if mib >= 1.0 => format!("{mib:.2} MiB"),
        _ => format!("{kib:.2} KiB"),
    }
}

/// Why texts cannot be embedded, or a model that embeds cannot do something else.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The model embeds texts, and was to generate or score one.
    #[error("architecture {0} is an encoder: it embeds texts (`tallow embed`) and generates none")]
    Encoder(&'static str),
    /// The layers of the model pass states between tokens, which only runs of a decoder do.
    #[error("models of architecture {0} cannot embed texts")]
    HasStates(&'static str),
    /// A text of no tokens.
    #[error("text {text} has no tokens")]
    Empty {
        /// Its number, from 1.
        text: usize,
    },
    /// A text of more tokens than the model reads.
    #[error(
        "text {text} has {tokens} tokens, and {context} are read at most; they can be truncated (`--truncate`)"
    )]
    TooLong {
        /// Its number, from 1.
        text: usize,
        /// Its tokens.
        tokens: usize,
        /// The most that are read.
        context: usize,
    },
    /// An embedding that is no numbers.
    #[error("an embedding has elements that are not finite; the weights or the computation are broken")]
    NotFinite,
}

/// Why an adapter cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoraError {
    /// The file is something else.
    #[error("it is no LoRA adapter: {0}")]
    NotAnAdapter(String),
    /// A tensor of the adapter is wrong, or does not fit the model.
    #[error("tensor {tensor} {why}")]
    Tensor {
        /// Its name in the adapter.
        tensor: String,
        /// What is wrong.
        why: String,
    },
    /// The model is of another architecture.
    #[error("the adapter is of architecture {adapter}, the model of {model}")]
    Architecture {
        /// What the adapter says.
        adapter: String,
        /// What the model says.
        model: String,
    },
    /// A factor that is no number.
    #[error("the adapter's scale is {0}, it must be a finite number")]
    Scale(f32),
}
