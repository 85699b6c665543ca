//! The command line.

use clap::{Parser, Subcommand};

use crate::args::{
    ChatArgs, ExplainArgs, GenerateArgs, ImatrixArgs, InspectArgs, LogitsArgs, PerplexityArgs, QuantizeArgs,
    TokenizeArgs, TrainArgs,
};
use crate::bench::BenchArgs;
use crate::compile_check::CompileCheckArgs;
use crate::embed::EmbedArgs;
use crate::finetune::FinetuneArgs;
use crate::merge_lora::MergeLoraArgs;
use crate::verify::VerifyArgs;

/// Run quantized language models that were fused and compiled to Vulkan.
#[derive(Debug, Parser)]
#[command(name = "tallow", version, about)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Continue a prompt.
    Generate(GenerateArgs),
    /// Talk to a model.
    Chat(ChatArgs),
    /// Print the tokens of a text: ids and pieces.
    Tokenize(TokenizeArgs),
    /// Write the logits after a list of tokens to a file.
    Logits(LogitsArgs),
    /// Measure how well a model predicts a text.
    Perplexity(PerplexityArgs),
    /// Print the embeddings of texts: vectors whose directions are alike where the texts are.
    Embed(EmbedArgs),
    /// List the devices that models can run on.
    Devices,
    /// Print a model file's metadata and tensors, whether it runs, and the memory that it takes.
    Inspect(InspectArgs),
    /// Print the plan of a model's step: kernels, barriers, memory.
    Explain(ExplainArgs),
    /// Compile the kernels of models and graphs for a Vulkan device, which need not be here, and print what they take.
    CompileCheck(CompileCheckArgs),
    /// Compare the kernels of a model with the interpreter on this device and driver, and name those that compute wrong results.
    Verify(VerifyArgs),
    /// Measure kernels and models on a Vulkan device.
    Bench(BenchArgs),
    /// Write a model with its weights in other formats.
    Quantize(QuantizeArgs),
    /// Measure on a text which columns of a model's weights matter most, for `quantize --imatrix`.
    Imatrix(ImatrixArgs),
    /// Train a language model from a text.
    Train(TrainArgs),
    /// Train a LoRA adapter on the frozen weights of a model, from a text or from examples. The same command goes on after
    /// it was stopped.
    Finetune(FinetuneArgs),
    /// Write a model with LoRA adapters merged into its weights.
    MergeLora(MergeLoraArgs),
}
