//! Language models as graphs: architectures, key-value cache, sampling, generation.
//!
//! A [`ModelFile`] is a GGUF file that was read and checked; [`ModelFile::load`] makes its weights resident
//! and compiles two graphs of it, *prefill* for many tokens and *decode* for one, which share weights and
//! cache; [`generate`](generate::generate) runs them. A [`Scorer`] says how probable a given text is, and
//! [`perplexity`](perplexity::perplexity) sums that up. An [`Architecture`] writes the layers of the graph;
//! everything below it (fusion, kernels, memory) is the compiler's.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use tallow::Device;
//! use tallow_models::generate::{GenerateOptions, generate};
//! use tallow_models::{LoadOptions, ModelFile, SamplingOptions};
//!
//! let file = ModelFile::open("models/storyteller-main-Q4_K_M.gguf")?;
//! let prompt = file.tokenizer().encode("Once upon a time", true)?;
//! let mut model = file.load(&Device::Cpu, &LoadOptions::default(), &mut |_| {})?;
//! let options = GenerateOptions { max_tokens: 100, sampling: SamplingOptions::default() };
//! let story = generate(&mut model, &prompt, &options, &mut |text| {
//!     eprint!("{text}");
//!     ControlFlow::Continue(())
//! })?;
//! assert_eq!(story.prompt_tokens, prompt.len());
//! # Ok::<(), tallow_models::Error>(())
//! ```
//!
//! What it never does: name a kernel or a device feature. The same graphs run on the interpreter.

mod arch;
mod architecture;
mod blocks;
pub mod cache;
pub mod chat;
pub mod config;
pub mod decoder;
pub mod embedder;
pub mod error;
mod escape;
mod fit;
pub mod formats;
pub mod generate;
pub mod graphs;
mod greedy;
pub mod host_layers;
pub mod importance;
pub mod in_flight;
mod layers;
pub mod lora;
pub mod memory;
pub mod model;
pub mod model_graph;
mod names;
mod options;
mod packing;
pub mod perplexity;
mod prefill;
mod probe;
mod required;
pub mod rope;
pub mod sampler;
pub mod score;
mod step_graphs;
mod tokens;
pub mod train;
pub mod weights;

pub use architecture::Architecture;
pub use cache::{CacheType, CacheTypes};
pub use decoder::{Decoder, VerifiedStep, VerifySteps, WrongKernel};
pub use embedder::Embedder;
pub use error::{Advice, EmbedError, Error, Excess, HostAdvice, LoraError, Result};
pub use fit::Fit;
pub use host_layers::{HostLayers, Speed};
pub use importance::Measurement;
pub use lora::LoraAdapter;
pub use memory::{Arenas, Memory};
pub use model::{ARCHITECTURES, Model, ModelFile};
pub use options::{Activations, DEFAULT_CHUNK, Decode, EmbedOptions, LoadOptions, Progress};
pub use prefill::prefill_limit;
pub use sampler::{Sampler, SamplingOptions};
pub use score::Scorer;
