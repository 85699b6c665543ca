//! Whether a model runs, and the memory that it takes.

use std::collections::BTreeMap;
use std::io::Write;

use serde::Serialize;
use tallow::Device;
use tallow::caps::{self, DeviceCaps};
use tallow_gguf::{GgufError, GgufFile, Tokenizer, optional};
use tallow_models::{
    ARCHITECTURES, Decode, Error as ModelError, LoadOptions, Memory, in_flight::MAX_IN_FLIGHT,
};
use tallow_models::{config::Config, model, model_graph::ModelGraph};

use crate::args::InspectArgs;
use crate::device::{choose, total_memory};
use crate::error::{Result, one_line};
use crate::load::cache_types;
use crate::terminal::escaped;

/// Problems with tensors that are listed; a file can claim any number.
const PROBLEMS: usize = 16;

/// Where the model would run.
pub struct Target {
    /// The device's name.
    name: String,
    /// What it can do; `None` for the interpreter.
    caps: Option<DeviceCaps>,
    /// Its memory in bytes, where that is known.
    memory: Option<u64>,
}

/// The device that `--device` names, which may be a profile; else the best Vulkan device, or the CPU.
pub fn target(requested: Option<&str>) -> Result<Target> {
    if let Some((name, caps)) = requested.and_then(|name| Some((name, caps::profile(name)?))) {
        return Ok(Target { name: format!("{name} (a profile)"), caps: Some(caps), memory: None });
    }
    let device = match requested {
        Some(_) => choose(requested)?,
        // Without the warning that running here would be slow, as nothing is run.
        None => Device::best_vulkan().unwrap_or(Device::Cpu),
    };
    let memory = if device.is_cpu() { Some(total_memory()) } else { device.memory_bytes() };
    Ok(Target { name: device.name(), caps: device.caps().cloned(), memory })
}

/// What is known of a model without loading it.
#[derive(Debug, Serialize)]
pub struct Summary {
    architecture: Component,
    supported_architectures: &'static [&'static str],
    tokenizer: Component,
    tokenizer_pre: Option<String>,
    chat_template: bool,
    formats: Vec<FormatUse>,
    parameters: u64,
    device: String,
    device_memory_bytes: Option<u64>,
    /// `None` where it cannot be told, for a reason that is among the others.
    memory: Option<MemoryReport>,
    runs: bool,
    reasons: Vec<String>,
}

/// Something that a file names, and whether there is support for it.
#[derive(Debug, Serialize)]
struct Component {
    name: Option<String>,
    supported: bool,
}

/// A format of tensors.
#[derive(Debug, Serialize)]
struct FormatUse {
    name: String,
    tensors: usize,
    supported: bool,
}

/// The memory that the loaded model takes, in bytes.
#[derive(Debug, Serialize)]
struct MemoryReport {
    context: usize,
    cache_type_k: String,
    cache_type_v: String,
    weight_bytes: u64,
    cache_bytes: u64,
    /// `None` on the interpreter, as are the next ones.
    prefill_arena_bytes: Option<u64>,
    arena_bytes: Option<u64>,
    other_bytes: u64,
    total_bytes: u64,
}

impl Summary {
    /// Checks a file, and plans the steps of its model as `generate` loads them.
    pub fn of(file: &GgufFile, target: &Target, args: &InspectArgs) -> Summary {
        let metadata = file.metadata();
        let text = |key| metadata.get_str(key).ok().map(escaped);
        let problems = model::problems(file, PROBLEMS);
        let supported = Config::from_metadata(metadata).is_ok() && text("general.architecture").is_some();
        let mut reasons = model_reasons(file, &problems, supported);
        let tokenizer = Tokenizer::from_metadata(metadata);
        if let Err(error) = &tokenizer {
            reasons.push(one_line(error));
        }
        let mut memory = None;
        if problems.is_empty() {
            match memory_of(file, target, args) {
                Ok(report) => {
                    reasons.extend(too_large(&report, target));
                    memory = Some(report);
                }
                Err(error) => reasons.push(one_line(&error)),
            }
        }
        let architecture = text("general.architecture");
        Summary {
            architecture: Component {
                supported: architecture.as_deref().is_some_and(|name| ARCHITECTURES.contains(&name)),
                name: architecture,
            },
            supported_architectures: ARCHITECTURES,
            tokenizer: Component { name: text("tokenizer.ggml.model"), supported: tokenizer.is_ok() },
            tokenizer_pre: text("tokenizer.ggml.pre"),
            chat_template: matches!(optional(metadata.get_str("tokenizer.chat_template")), Ok(Some(_))),
            formats: formats(file),
            parameters: file.tensors().map(|t| t.elements() as u64).fold(0, u64::saturating_add),
            device: target.name.clone(),
            device_memory_bytes: target.memory,
            memory,
            runs: reasons.is_empty(),
            reasons: reasons.iter().map(|reason| escaped(reason)).collect(),
        }
    }

    /// Prints it, the verdict last.
    pub fn print(&self, out: &mut impl Write) -> Result<()> {
        let named = |part: &Component| part.name.clone().unwrap_or_else(|| "none".to_owned());
        let architectures = self.supported_architectures.join(", ");
        let is = |supported| if supported { "supported" } else { "not supported" };
        let known = is(self.architecture.supported);
        writeln!(out, "architecture     {}: {known} ({architectures} are)", named(&self.architecture))?;
        let pre = self.tokenizer_pre.as_ref().map_or(String::new(), |pre| format!(", pre {pre}"));
        let known = is(self.tokenizer.supported);
        writeln!(out, "tokenizer        {}{pre}: {known}", named(&self.tokenizer))?;
        writeln!(out, "chat template    {}", if self.chat_template { "present" } else { "none" })?;
        for format in &self.formats {
            let (name, tensors, known) = (&format.name, format.tensors, is(format.supported));
            writeln!(out, "weight format    {name}: {known}, {tensors} tensors")?;
        }
        writeln!(out, "parameters       {}", self.parameters)?;
        let has = self.device_memory_bytes.map_or(String::new(), |has| format!(", {}", bytes(has)));
        writeln!(out, "device           {}{has}", self.device)?;
        if let Some(memory) = &self.memory {
            memory.print(out)?;
        }
        match self.runs {
            true => writeln!(out, "runs: yes")?,
            false => writeln!(out, "runs: no: {}", self.reasons.join("; "))?,
        }
        Ok(())
    }
}

impl MemoryReport {
    fn new(memory: &Memory, options: &LoadOptions) -> MemoryReport {
        MemoryReport {
            context: memory.context,
            cache_type_k: options.cache.keys.to_string(),
            cache_type_v: options.cache.values.to_string(),
            weight_bytes: memory.weights,
            cache_bytes: memory.cache,
            prefill_arena_bytes: memory.arenas.map(|arenas| arenas.prefill),
            arena_bytes: memory.arenas.map(|arenas| arenas.decode),
            other_bytes: memory.other,
            total_bytes: memory.total(),
        }
    }

    fn print(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "weights          {}", bytes(self.weight_bytes))?;
        let (keys, values) = (&self.cache_type_k, &self.cache_type_v);
        let what = format!("{} tokens, keys {keys}, values {values}", self.context);
        writeln!(out, "key-value cache  {}, {what}", bytes(self.cache_bytes))?;
        match (self.prefill_arena_bytes, self.arena_bytes) {
            // An encoder has one step, and no cache.
            (Some(arena), Some(0)) => {
                writeln!(out, "arena            {}", bytes(arena))?;
                writeln!(out, "inputs, outputs  {}", bytes(self.other_bytes))?;
            }
            (Some(prefill), Some(decode)) => {
                writeln!(out, "prefill arena    {}", bytes(prefill))?;
                let more = format!("each step in flight has one, at most {MAX_IN_FLIGHT} do");
                writeln!(out, "decode arena     {}; {more}", bytes(decode))?;
                writeln!(out, "inputs, outputs  {}", bytes(self.other_bytes))?;
            }
            _ => {
                writeln!(out, "unpacked to f32  {}", bytes(self.other_bytes))?;
                writeln!(out, "arenas           none: the interpreter allocates each value as it goes")?;
            }
        }
        writeln!(out, "memory           {}", bytes(self.total_bytes))?;
        Ok(())
    }
}

/// Why the file is no model that can be loaded. Tensors of one unsupported format are one reason.
fn model_reasons(file: &GgufFile, problems: &[ModelError], configured: bool) -> Vec<String> {
    let mut reasons = Vec::new();
    let mut unsupported: BTreeMap<u32, String> = BTreeMap::new();
    let mut formats = |error: &GgufError| match error {
        GgufError::UnsupportedFormat { ggml_id, .. } => {
            unsupported.entry(*ggml_id).or_insert_with(|| one_line(error));
            true
        }
        _ => false,
    };
    for problem in problems {
        match problem {
            ModelError::Gguf(error) if formats(error) => {}
            other => reasons.push(one_line(other)),
        }
    }
    if !configured {
        // Which tensors such a model needs is not known.
        for error in file.tensors().filter_map(|tensor| tensor.format().err()) {
            formats(&error);
        }
    }
    reasons.extend(unsupported.into_values());
    if problems.len() == PROBLEMS {
        reasons.push("there may be more problems with tensors".to_owned());
    }
    reasons
}

/// Formats of the file's tensors by name.
fn formats(file: &GgufFile) -> Vec<FormatUse> {
    let mut found: BTreeMap<u32, FormatUse> = BTreeMap::new();
    for tensor in file.tensors() {
        let new = || FormatUse {
            name: match tensor.type_name() {
                "unknown" => format!("type {}", tensor.ggml_id),
                known => known.to_owned(),
            },
            tensors: 0,
            supported: tensor.format().is_ok(),
        };
        found.entry(tensor.ggml_id).or_insert_with(new).tensors += 1;
    }
    found.into_values().collect()
}

/// The memory that `generate` takes with its default sampling.
fn memory_of(file: &GgufFile, target: &Target, args: &InspectArgs) -> Result<MemoryReport, ModelError> {
    let options = LoadOptions {
        context: args.context,
        cache: cache_types(&args.cache),
        decode: Decode::Token,
        ..LoadOptions::default()
    };
    let memory = Memory::of(&ModelGraph::from_file(file)?, target.caps.as_ref(), &options)?;
    Ok(MemoryReport::new(&memory, &options))
}

/// Why the model does not fit the device, where it does not.
fn too_large(report: &MemoryReport, target: &Target) -> Option<String> {
    let (needed, has) = (report.total_bytes, target.memory?);
    let (needed, has) = (needed > has).then(|| (bytes(needed), bytes(has)))?;
    Some(format!("it takes {needed}, and {} has {has}", target.name))
}

/// Bytes, and how many that is in the unit that suits them.
fn bytes(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, bits)| bytes >> bits > 0) {
        Some((unit, bits)) => format!("{bytes} bytes ({:.1} {unit})", bytes as f64 / f64::from(1 << bits)),
        None => format!("{bytes} bytes"),
    }
}
