//! `tallow quantize`: a model's weights in other formats.
//!
//! Tensors pass one after the other, and each in parts of rows on all cores, so that the memory that it takes is the
//! largest tensor of the result and some rows of floats. The file appears under its name when it is whole.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Mutex;

use indicatif::{ProgressBar, ProgressStyle};
use tallow_gguf::{
    Format, GgufError, GgufFile, GgufWriter, Metadata, SPLIT_KEYS, TensorInfo, TensorSpec, Value,
};
use tallow_models::formats::is_quantized;
use tallow_quant::QuantError;

use crate::args::QuantizeArgs;
use crate::error::{Error, QuantizeError, Result};
use crate::importance::Importance;
use crate::mixes::{Chooser, Mix, Model, Overrides};
use crate::unfinished::Unfinished;

/// The version of ggml's quantized formats, `GGML_QNT_VERSION`.
const QUANTIZATION_VERSION: u32 = 2;
/// Elements that a core takes at a time: 1 MiB of floats.
const PART: usize = 1 << 18;

/// A tensor and what becomes of it.
pub struct Job<'a> {
    /// What the source has.
    pub tensor: &'a TensorInfo,
    /// Format of the data to convert.
    pub from: Format,
    /// Format of the result.
    pub to: Format,
    /// Mean squares of the columns' inputs, a row for each matrix.
    pub importance: Option<Vec<f32>>,
}

/// Runs the command.
pub fn quantize(args: &QuantizeArgs) -> Result<()> {
    let mix = Mix::from_name(&args.format)
        .ok_or_else(|| QuantizeError::UnknownMix { requested: args.format.clone() })?;
    let overrides = Overrides {
        pure: args.pure,
        token_embedding: format_of("--token-embedding-type", args.token_embedding_type.as_deref())?,
        output: format_of("--output-tensor-type", args.output_tensor_type.as_deref())?,
    };
    let threads = match args.threads {
        Some(0) => return Err(QuantizeError::Threads.into()),
        Some(threads) => threads,
        None => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
    };
    let about = |error: GgufError| crate::load::about(&args.model, error.into());
    let file = GgufFile::open(&args.model).map_err(about)?;
    if file.shards().any(|shard| same_file(&shard.path, &args.out)) {
        return Err(QuantizeError::Itself(args.out.clone()).into());
    }
    let importance =
        args.imatrix.as_deref().map(Importance::open).transpose().map_err(QuantizeError::from)?;
    let model = model_of(&file, importance.is_some());
    let chooser = Chooser::new(mix, model, overrides);
    let jobs =
        plan(&file, chooser, importance.as_ref(), args.allow_requantize).map_err(|error| match error {
            Plan::Read(error) => about(error),
            Plan::Refused(error) => error.into(),
        })?;
    let metadata = metadata(&file, mix, args.imatrix.as_deref().zip(importance.as_ref()));
    let written =
        write(&args.out, &|job| file.tensor_data(job.tensor).map(Cow::Borrowed), &metadata, &jobs, threads)?;
    report(args, &file, &jobs, written)
}

/// The format that an option names.
fn format_of(option: &'static str, requested: Option<&str>) -> Result<Option<Format>, QuantizeError> {
    let Some(requested) = requested else { return Ok(None) };
    let known = Format::from_name(requested).filter(|format| format.can_quantize());
    // Those of activations, which no file holds.
    let known = known.filter(|format| !matches!(format, Format::Q8_1 | Format::Q8_K));
    known.map(Some).ok_or_else(|| QuantizeError::UnknownFormat { option, requested: requested.into() })
}

/// Whether both paths lead to one file.
pub fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// What the choice of formats depends on; a file that does not say is taken for a model without groups.
pub fn model_of(file: &GgufFile, importance: bool) -> Model {
    let metadata = file.metadata();
    let architecture = metadata.get_str("general.architecture").unwrap_or_default();
    let number = |key: &str| metadata.get_u32(&format!("{architecture}.{key}")).ok();
    let heads = number("attention.head_count").unwrap_or(1);
    let shared = number("attention.head_count_kv").unwrap_or(heads).max(1);
    Model {
        layers: number("block_count").unwrap_or(0) as usize,
        heads_per_kv: (heads / shared) as usize,
        has_output: file.tensor("output.weight").is_some(),
        importance,
    }
}

/// Why there is no plan.
pub enum Plan {
    /// The source is to blame.
    Read(GgufError),
    /// The request is.
    Refused(QuantizeError),
}

/// What becomes of each tensor, in the order of the file to be written: by layer, then by name, as llama.cpp sorts them.
pub fn plan<'a>(
    file: &'a GgufFile,
    mut chooser: Chooser,
    importance: Option<&Importance>,
    allow_requantize: bool,
) -> Result<Vec<Job<'a>>, Plan> {
    let mut tensors: Vec<&TensorInfo> = file.tensors().collect();
    tensors.sort_by(|a, b| (layer_of(&a.name), &a.name).cmp(&(layer_of(&b.name), &b.name)));
    let mut jobs = Vec::new();
    for tensor in tensors {
        let from = tensor.format().map_err(Plan::Read)?;
        let columns = tensor.shape.last().copied().unwrap_or(1);
        let integer = matches!(from, Format::I8 | Format::I16 | Format::I32 | Format::I64);
        let quantized = !integer && is_quantized(&tensor.name, tensor.shape.len());
        let to = if quantized { chooser.choose(&tensor.name, columns) } else { from };
        if to != from && !from.is_plain() && !allow_requantize {
            let tensor = tensor.name.clone();
            return Err(Plan::Refused(QuantizeError::Requantize { tensor, format: from }));
        }
        let mut means = None;
        if let Some(importance) = importance.filter(|_| to != from && to.uses_importance()) {
            let matrices = tensor.shape.iter().rev().skip(2).product();
            means = importance.means(&tensor.name, matrices, columns).map_err(|got| {
                let expected = format!("{matrices} x {columns}");
                Plan::Refused(QuantizeError::ImportanceShape { tensor: tensor.name.clone(), expected, got })
            })?;
        }
        if needs_importance(to) && to != from && means.is_none() && !is_end(&tensor.name) {
            tracing::warn!("tensor {}: {to} without an importance matrix loses much", tensor.name);
        }
        jobs.push(Job { tensor, from, to, importance: means });
    }
    Ok(jobs)
}

/// The formats that are of little use without importance.
fn needs_importance(format: Format) -> bool {
    use Format::{IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_XXS};
    [IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_XXS].contains(&format)
}

/// The tensors at the ends of a model, which importance matrices do not cover.
fn is_end(name: &str) -> bool {
    matches!(name, "token_embd.weight" | "output.weight")
}

/// The number in `blk.N.`; tensors of no layer come first.
fn layer_of(name: &str) -> Option<u64> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// The source's metadata, with what the file is now.
pub fn metadata(file: &GgufFile, mix: &Mix, importance: Option<(&Path, &Importance)>) -> Metadata {
    let mut metadata = file.metadata().clone();
    // One whole file is written, however many were read.
    for key in SPLIT_KEYS {
        metadata.remove(key);
    }
    let mut set = |key: &str, value: Value| {
        metadata.remove(key);
        metadata.insert(key, value);
    };
    set("general.quantization_version", Value::U32(QUANTIZATION_VERSION));
    set("general.file_type", Value::U32(mix.file_type));
    if let Some((path, importance)) = importance {
        set("quantize.imatrix.file", Value::String(path.display().to_string()));
        if let Some(dataset) = importance.datasets.first() {
            set("quantize.imatrix.dataset", Value::String(dataset.clone()));
        }
        set("quantize.imatrix.entries_count", Value::U32(importance.len() as u32));
        if let Some(chunks) = importance.chunks {
            set("quantize.imatrix.chunks_count", Value::U32(chunks));
        }
    }
    metadata
}

/// The data of a job's tensor, in the format that the job begins with.
pub type Source<'a> = dyn Fn(&Job<'a>) -> Result<Cow<'a, [u8]>, GgufError> + 'a;

/// Writes the result beside its place and moves it there; gives its size in bytes.
pub fn write<'a>(
    out: &Path,
    source: &Source<'a>,
    metadata: &Metadata,
    jobs: &[Job<'a>],
    threads: usize,
) -> Result<u64, QuantizeError> {
    let failed = |source: GgufError| QuantizeError::Write { path: out.into(), source };
    let io = |error: std::io::Error| failed(error.into());
    let (unfinished, target) = Unfinished::create(out).map_err(io)?;
    let specs = jobs.iter().map(|job| TensorSpec {
        name: job.tensor.name.clone(),
        shape: job.tensor.shape.clone(),
        format: job.to,
    });
    let mut writer =
        GgufWriter::create(BufWriter::new(&target), metadata, specs.collect()).map_err(failed)?;
    let bar = ProgressBar::new(jobs.iter().map(|job| job.tensor.bytes as u64).sum());
    if let Ok(style) = ProgressStyle::with_template("{msg:28} {wide_bar} {bytes}/{total_bytes} {eta}") {
        bar.set_style(style);
    }
    for job in jobs {
        bar.set_message(format!("{} {}", job.tensor.name, job.to));
        let data = source(job).map_err(failed)?;
        if job.to == job.from {
            writer.tensor(&job.tensor.name, &data).map_err(failed)?;
            bar.inc(data.len() as u64);
        } else {
            let converted = convert(job, &data, threads, &bar)
                .map_err(|source| QuantizeError::Tensor { tensor: job.tensor.name.clone(), source })?;
            writer.tensor(&job.tensor.name, &converted).map_err(failed)?;
        }
    }
    bar.finish_and_clear();
    // Finishing flushes what the buffer holds.
    writer.finish().map_err(failed)?;
    unfinished.finish(&target).map_err(io)
}

/// The tensor's data in its new format. Parts of whole rows, none across two matrices, are shared among threads.
fn convert(job: &Job<'_>, data: &[u8], threads: usize, bar: &ProgressBar) -> Result<Vec<u8>, QuantError> {
    let columns = job.tensor.shape.last().copied().unwrap_or(1);
    let (from, to) = (job.from.row_bytes(columns)?, job.to.row_bytes(columns)?);
    let rows = job.tensor.shape.iter().rev().skip(1).product::<usize>();
    let mut made = vec![0; job.to.row_bytes(job.tensor.elements())?];
    if made.is_empty() {
        return Ok(made);
    }
    // All rows of a matrix share its importance.
    let matrix = job.tensor.shape.iter().rev().nth(1).copied().unwrap_or(1).max(1);
    let step = (PART / columns.max(1)).clamp(1, matrix);
    let parts = (0..rows.div_ceil(matrix))
        .flat_map(|m| (m * matrix..(m + 1) * matrix).step_by(step).map(move |r| (m, r)));
    let mut rest = made.as_mut_slice();
    let mut queue = Vec::new();
    for (m, row) in parts {
        let count = step.min((m + 1) * matrix - row);
        let (part, tail) = rest.split_at_mut(count * to);
        rest = tail;
        queue.push((m, &data[row * from..][..count * from], count * columns, part));
    }
    let queue = Mutex::new(queue.into_iter());
    let work = || -> Result<(), QuantError> {
        let mut values = Vec::new();
        loop {
            // A thread that panicked has taken its part away; the others go on.
            let next = queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
            let Some((m, data, elements, part)) = next else { return Ok(()) };
            values.resize(elements, 0.0);
            tallow_quant::dequantize(job.from, data, &mut values)?;
            let bytes = match &job.importance {
                None => tallow_quant::quantize(job.to, &values)?,
                Some(means) => {
                    tallow_quant::quantize_weighted(job.to, &values, &means[m * columns..][..columns])?
                }
            };
            part.copy_from_slice(&bytes);
            bar.inc(data.len() as u64);
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for other in others {
            let result = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            done = done.and(result);
        }
        done
    })?;
    Ok(made)
}

/// Prints what became of the model: a line for each format, and one for all.
fn report(args: &QuantizeArgs, file: &GgufFile, jobs: &[Job<'_>], written: u64) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut totals: BTreeMap<(Format, Format), (usize, usize)> = BTreeMap::new();
    let mut elements = 0;
    for job in jobs {
        let total = totals.entry((job.from, job.to)).or_default();
        *total = (total.0 + 1, total.1 + job.tensor.elements());
        elements += job.tensor.elements();
    }
    for ((from, to), (count, elements)) in totals {
        let change = if from == to { format!("{to} as before") } else { format!("{from} to {to}") };
        writeln!(out, "{change:<18}{count:>6} tensors {elements:>14} elements")?;
    }
    let bits = written as f64 * 8.0 / (elements.max(1)) as f64;
    let (name, before) = (args.out.display(), file.file_bytes());
    writeln!(out, "{name}: {written} bytes, {bits:.2} bits an element; was {before} bytes")?;
    out.flush().map_err(Error::from)
}
