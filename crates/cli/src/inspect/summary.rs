//! Whether a model runs, and the memory that it takes.

use std::collections::BTreeMap;
use std::io::Write;

use serde::Serialize;
use tallow_gguf::{GgufError, GgufFile, Tokenizer, optional};
use tallow_models::{ARCHITECTURES, Decode, Error as ModelError, Fit, LoadOptions};
use tallow_models::{config::Config, model, model_graph::ModelGraph};

use crate::args::InspectArgs;
use crate::error::{Result, one_line};
use crate::fit::{MemoryReport, Target, bytes};
use crate::load::cache_types;
use crate::terminal::escaped;

/// Problems with tensors that are listed; a file can claim any number.
const PROBLEMS: usize = 16;

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
    /// What of it this program can have now.
    device_free_bytes: Option<u64>,
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
                    reasons.extend(report.problem().map(str::to_owned));
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
            device_free_bytes: target.free,
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
        memory: args.memory.bytes(),
        host_layers: args.memory.host_layers,
        host_memory: target.host_free,
        ..LoadOptions::default()
    };
    let model = ModelGraph::from_file(file)?;
    let fit = Fit::of(&model, target.caps.as_ref(), &options, target.free)?;
    Ok(MemoryReport::new(&fit, &options, model.config.architecture.is_recurrent()))
}
