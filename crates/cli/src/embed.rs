//! `tallow embed`: the embeddings of texts.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use tallow_models::config::Pooling;
use tallow_models::{EmbedOptions, Embedder, LoadOptions};

use crate::args::{Activations, MemoryArgs};
use crate::device::{available_memory, choose_for};
use crate::error::{Error, Result};
use crate::load::{activations, open, with_bar};
use crate::npy;

/// Options of `embed`.
#[derive(Debug, clap::Args)]
pub struct EmbedArgs {
    /// The model, a GGUF file.
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,
    /// The texts.
    #[arg(value_name = "TEXT", required_unless_present = "file")]
    pub texts: Vec<String>,
    /// A file of texts, one a line, UTF-8.
    #[arg(long, value_name = "LINES", conflicts_with = "texts")]
    pub file: Option<PathBuf>,
    /// How the rows of the last layer become an embedding [default: what the file says; where it says nothing, mean for
    /// encoders and last for other models].
    #[arg(long, value_enum)]
    pub pooling: Option<PoolingArg>,
    /// Do not divide embeddings by their Euclidean length.
    #[arg(long)]
    pub no_normalize: bool,
    /// Cut texts that are too long, which are errors otherwise.
    #[arg(long)]
    pub truncate: bool,
    /// How to write the embeddings.
    #[arg(long, value_enum, default_value_t)]
    pub format: EmbedFormat,
    /// The file to write [default: standard output].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// The most tokens of a text [default: the model's own].
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Where to run, as for `generate`.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// The pre-tokenizer, in place of the file's `tokenizer.ggml.pre`.
    #[arg(long, value_name = "NAME")]
    pub pre: Option<String>,
    /// What quantized weights are multiplied by.
    #[arg(long, value_enum, default_value_t)]
    pub activations: Activations,
    /// How much memory there is.
    #[command(flatten)]
    pub memory: MemoryArgs,
}

/// How the rows of the last layer become an embedding.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum PoolingArg {
    /// Not at all: every token has an embedding.
    None,
    /// The mean of all rows.
    Mean,
    /// The first row.
    Cls,
    /// The last row.
    Last,
}

/// How embeddings are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum EmbedFormat {
    /// One array of arrays: a row for each text, or without pooling for each token.
    #[default]
    Json,
    /// NumPy's format, a matrix of such rows in f32.
    Npy,
    /// Such rows as lines, numbers separated by spaces.
    Text,
}

impl EmbedArgs {
    fn options(&self) -> EmbedOptions {
        let pooling = self.pooling.map(|pooling| match pooling {
            PoolingArg::None => Pooling::None,
            PoolingArg::Mean => Pooling::Mean,
            PoolingArg::Cls => Pooling::Cls,
            PoolingArg::Last => Pooling::Last,
        });
        EmbedOptions {
            context: self.context,
            pooling,
            normalize: !self.no_normalize,
            truncate: self.truncate,
            activations: activations(self.activations),
            host_layers: self.memory.host_layers,
            host_memory: self.memory.uses_host().then(available_memory),
            memory: self.memory.bytes(),
            rows: None,
        }
    }

    /// The texts, in their order.
    fn texts(&self) -> Result<Vec<String>> {
        let Some(path) = &self.file else { return Ok(self.texts.clone()) };
        let read = |source| Error::Read { path: path.clone(), source };
        Ok(std::fs::read_to_string(path).map_err(read)?.lines().map(str::to_owned).collect())
    }
}

/// Runs the command.
pub fn embed(args: &EmbedArgs) -> Result<()> {
    let file = open(&args.model, args.pre.as_deref())?;
    let (texts, options) = (args.texts()?, args.options());
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    file.check_texts(&texts, &options)?;
    let load =
        LoadOptions { context: args.context, activations: options.activations, ..LoadOptions::default() };
    let device = choose_for(args.device.as_deref(), &file, &load)?.device;
    let mut embedder = with_bar(|progress| Embedder::load(file, &device, &options, progress))?;
    let start = Instant::now();
    let found = embedder.embed(&texts)?;
    let seconds = start.elapsed().as_secs_f64();
    write(args, &found.concat(), embedder.model().width())?;
    let per_second = texts.len() as f64 / seconds;
    let (name, count) = (device.name(), texts.len());
    let _ = writeln!(std::io::stderr(), "[{name}: {count} texts, {per_second:.1} texts/s]");
    Ok(())
}

/// Writes rows of `width` elements, which follow each other.
fn write(args: &EmbedArgs, values: &[f32], width: usize) -> Result<()> {
    let rows: Vec<&[f32]> = values.chunks(width.max(1)).collect();
    let bytes = match args.format {
        EmbedFormat::Json => {
            let mut bytes = serde_json::to_vec(&rows).map_err(std::io::Error::from)?;
            bytes.push(b'\n');
            bytes
        }
        EmbedFormat::Npy => npy::matrix(values, width),
        EmbedFormat::Text => rows.iter().flat_map(|row| line(row).into_bytes()).collect(),
    };
    if let Some(path) = &args.out {
        return std::fs::write(path, bytes).map_err(|source| Error::Write { path: path.clone(), source });
    }
    let mut out = std::io::stdout().lock();
    out.write_all(&bytes)?;
    out.flush()?;
    Ok(())
}

/// The numbers of a row, with a newline.
fn line(row: &[f32]) -> String {
    let numbers: Vec<String> = row.iter().map(f32::to_string).collect();
    numbers.join(" ") + "\n"
}
