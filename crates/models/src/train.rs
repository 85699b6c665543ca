//! Training language models of the `llama` architecture from a text.
//!
//! A [`Plan`] is a configuration in TOML, checked. [`Trainer::open`] reads the texts, makes or restores the weights and
//! compiles one step; [`Trainer::run`] takes the steps. What it leaves in the output folder is a checkpoint, from which a
//! later run goes on bit by bit as if nothing had stopped it, and a GGUF file.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use tallow::Device;
//! use tallow_models::train::{Plan, Trainer};
//!
//! let plan = Plan::read("train.toml")?;
//! let mut trainer = Trainer::open(plan, &Device::vulkan_if_available(), false)?;
//! trainer.run(&mut |progress| {
//!     eprintln!("step {}: loss {:?}", progress.step, progress.loss);
//!     ControlFlow::Continue(())
//! })?;
//! trainer.export()?;
//! # Ok::<(), tallow_models::Error>(())
//! ```

mod adapted;
mod adapter_file;
mod atomic;
mod checkpoint;
mod compiled;
mod config;
mod corpus;
mod data;
mod digest;
mod error;
mod examples;
mod finetune;
mod frozen;
mod gguf;
mod heads;
mod history;
mod net;
mod tokenizer;
mod trainer;
mod training_loop;
mod validation;

pub use atomic::write_atomically;
pub use checkpoint::{CHECKPOINT, load_weights, save_weights};
pub use config::{ExportType, NetConfig, Options, Plan, Precision, Preset};
pub use corpus::{Corpus, Windows};
pub use data::Data;
pub use error::TrainError;
pub use examples::{Batch, Examples, Shuffled};
pub use finetune::{FinetuneOptions, Finetuner};
pub use frozen::{Adapter, AdapterType, LoraConfig, Target};
pub use gguf::{from_gguf, to_gguf};
pub use history::History;
pub use net::Net;
pub use tokenizer::TokenizerFile;
pub use trainer::{EXPORTED, Trainer};
pub use training_loop::Progress;
