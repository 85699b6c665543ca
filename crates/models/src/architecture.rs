//! The architectures that there are, by their names in files.

use tallow_gguf::{Metadata, optional};

use crate::error::{Error, Result};

macro_rules! architectures {
    ($($(#[$doc:meta])+ $variant:ident, $name:literal;)+) => {
        /// A value of `general.architecture`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Architecture {
            $($(#[$doc])+ $variant,)+
        }

        impl Architecture {
            /// All of them.
            pub const ALL: &'static [Architecture] = &[$(Architecture::$variant,)+];

            /// Their names.
            pub const NAMES: &'static [&'static str] = &[$($name,)+];

            /// The name in files, which starts the names of their keys too.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Architecture::$variant => $name,)+
                }
            }
        }
    };
}

architectures! {
    /// `llama`: also Mistral, Mixtral and others whose files say `llama`.
    Llama, "llama";
    /// `qwen2`.
    Qwen2, "qwen2";
    /// `qwen3`.
    Qwen3, "qwen3";
    /// `smollm3`.
    Smollm3, "smollm3";
    /// `qwen2moe`.
    Qwen2Moe, "qwen2moe";
    /// `qwen3moe`.
    Qwen3Moe, "qwen3moe";
    /// `gemma`.
    Gemma, "gemma";
    /// `gemma2`.
    Gemma2, "gemma2";
    /// `gemma3`.
    Gemma3, "gemma3";
    /// `phi2`.
    Phi2, "phi2";
    /// `phi3`: also Phi 4.
    Phi3, "phi3";
    /// `gpt2`.
    Gpt2, "gpt2";
    /// `falcon`.
    Falcon, "falcon";
    /// `starcoder2`.
    Starcoder2, "starcoder2";
    /// `stablelm`.
    Stablelm, "stablelm";
    /// `olmo2`.
    Olmo2, "olmo2";
    /// `granite`.
    Granite, "granite";
    /// `command-r`.
    CommandR, "command-r";
    /// `deepseek2`: DeepSeek V2 and V3.
    Deepseek2, "deepseek2";
    /// `gpt-oss`.
    GptOss, "gpt-oss";
    /// `glm4`.
    Glm4, "glm4";
    /// `mamba`.
    Mamba, "mamba";
    /// `mamba2`.
    Mamba2, "mamba2";
    /// `bert`: an encoder, also those of sentence-transformers.
    Bert, "bert";
    /// `nomic-bert`: an encoder.
    NomicBert, "nomic-bert";
}

impl Architecture {
    /// What a file says; `llama` where it says nothing.
    ///
    /// # Errors
    /// When that is not among [`Architecture::ALL`].
    pub fn of(metadata: &Metadata) -> Result<Architecture> {
        let Some(found) = optional(metadata.get_str("general.architecture"))? else {
            return Ok(Architecture::Llama);
        };
        let unknown =
            || Error::UnsupportedArchitecture { found: found.into(), known: Architecture::NAMES.to_vec() };
        Architecture::ALL.iter().copied().find(|a| a.name() == found).ok_or_else(unknown)
    }
}
