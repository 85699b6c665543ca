//! `tallow merge-lora`: a model whose weights have adapters merged into them.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use tallow_gguf::{Format, GgufError, GgufFile, SPLIT_KEYS, TensorInfo};
use tallow_models::LoraAdapter;

use crate::error::{Error, QuantizeError, Result};
use crate::load::{about, adapter_of};
use crate::mixes::{Chooser, Mix, Overrides};
use crate::quantize::{self, Job, Plan, Source, same_file};

/// Options of `merge-lora`.
#[derive(Debug, clap::Args)]
pub struct MergeLoraArgs {
    /// The model, a GGUF file.
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,
    /// A LoRA adapter, and how much it counts [default: 1]; may be given several times.
    #[arg(long, value_name = "FILE[:SCALE]", required = true, allow_hyphen_values = true)]
    pub lora: Vec<String>,
    /// The file to write.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// What to make of the weights: a format or a mix, as for `quantize` [default: each weight stays in its own format].
    #[arg(long = "type", value_name = "TYPE")]
    pub format: Option<String>,
    /// Threads to work with [default: one a core].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// Runs the command.
pub fn merge_lora(args: &MergeLoraArgs) -> Result<()> {
    let mix = args.format.as_deref().map(|requested| {
        Mix::from_name(requested).ok_or_else(|| QuantizeError::UnknownMix { requested: requested.into() })
    });
    let mix = mix.transpose()?;
    let threads = match args.threads {
        Some(0) => return Err(QuantizeError::Threads.into()),
        Some(threads) => threads,
        None => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
    };
    let of_model = |error: GgufError| about(&args.model, error.into());
    let file = GgufFile::open(&args.model).map_err(of_model)?;
    if file.shards().any(|shard| same_file(&shard.path, &args.out)) {
        return Err(QuantizeError::Itself(args.out.clone()).into());
    }
    let mut adapters = vec![];
    for requested in &args.lora {
        let (path, scale) = adapter_of(requested);
        if same_file(path, &args.out) {
            return Err(QuantizeError::Itself(args.out.clone()).into());
        }
        let of_adapter = |error| about(path, error);
        let adapter = LoraAdapter::open(path).map_err(of_adapter)?;
        adapter.check(&file).map_err(of_adapter)?;
        if !scale.is_finite() {
            return Err(about(path, tallow_models::LoraError::Scale(scale).into()));
        }
        adapters.push((adapter, scale));
    }
    let adapted: HashSet<&str> =
        adapters.iter().flat_map(|(adapter, _)| adapter.ranks().map(|(weight, _)| weight)).collect();

    let metadata = match mix {
        Some(mix) => quantize::metadata(&file, mix, None),
        None => {
            let mut metadata = file.metadata().clone();
            SPLIT_KEYS.iter().for_each(|key| _ = metadata.remove(key));
            metadata
        }
    };
    let jobs = jobs(&file, mix, &adapted).map_err(|error| match error {
        Plan::Read(error) => of_model(error),
        Plan::Refused(error) => error.into(),
    })?;
    let source: &Source<'_> = &|job: &Job<'_>| match adapted.contains(job.tensor.name.as_str()) {
        true => merged(&file, job.tensor, &adapters).map(Cow::Owned),
        false => file.tensor_data(job.tensor).map(Cow::Borrowed),
    };
    let written = quantize::write(&args.out, source, &metadata, &jobs, threads)?;
    let mut out = std::io::stdout().lock();
    let merged = adapted.len();
    writeln!(out, "{}: {written} bytes, adapters merged into {merged} tensors", args.out.display())?;
    out.flush().map_err(Error::from)
}

/// What becomes of each tensor. Those with adapters come as f32.
fn jobs<'a>(
    file: &'a GgufFile,
    mix: Option<&'static Mix>,
    adapted: &HashSet<&str>,
) -> Result<Vec<Job<'a>>, Plan> {
    let mut jobs = match mix {
        Some(mix) => {
            let chooser = Chooser::new(mix, quantize::model_of(file, false), Overrides::default());
            quantize::plan(file, chooser, None, true)?
        }
        None => {
            let job = |tensor: &'a TensorInfo| {
                let format = tensor.format().map_err(Plan::Read)?;
                Ok(Job { tensor, from: format, to: format, importance: None })
            };
            file.tensors().map(job).collect::<Result<_, Plan>>()?
        }
    };
    for job in jobs.iter_mut().filter(|job| adapted.contains(job.tensor.name.as_str())) {
        job.from = Format::F32;
        if !job.to.can_quantize() {
            let tensor = job.tensor.name.clone();
            return Err(Plan::Refused(QuantizeError::Unwritable { tensor, format: job.to }));
        }
    }
    Ok(jobs)
}

/// A weight with what the adapters add to it, f32.
fn merged(
    file: &GgufFile,
    tensor: &TensorInfo,
    adapters: &[(LoraAdapter, f32)],
) -> Result<Vec<u8>, GgufError> {
    let mut values = vec![0f32; tensor.elements()];
    tallow_quant::dequantize(tensor.format()?, file.tensor_data(tensor)?, &mut values)
        .map_err(|source| GgufError::Quant { tensor: tensor.name.clone(), source })?;
    for (adapter, scale) in adapters {
        if adapter.ranks().any(|(weight, _)| weight == tensor.name) {
            let update = adapter.update(&tensor.name, *scale)?;
            values.iter_mut().zip(update).for_each(|(value, update)| *value += update);
        }
    }
    Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect())
}
