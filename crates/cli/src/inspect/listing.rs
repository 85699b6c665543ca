//! Metadata and tensors of a model file, as lines or as JSON.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::json;
use tallow_gguf::{Array, GgufFile, Value};

use super::summary::Summary;
use crate::error::Result;
use crate::terminal::escaped;

/// Prints all metadata and tensors, and totals by format.
pub fn print(file: &GgufFile, out: &mut impl Write) -> Result<()> {
    let (keys, tensors) = (file.metadata().len(), file.tensors().len());
    writeln!(out, "GGUF version {}, {keys} metadata keys, {tensors} tensors", file.version())?;
    if file.shards().len() > 1 {
        for (index, shard) in file.shards().enumerate() {
            writeln!(out, "shard {index}: {}, {} bytes", shard.path.display(), shard.bytes)?;
        }
    }
    writeln!(out)?;
    for (key, value) in file.metadata().iter() {
        writeln!(out, "{} = {}", escaped(key), short(value))?;
    }
    writeln!(out)?;
    let mut totals: BTreeMap<&str, (usize, usize, usize)> = BTreeMap::new();
    let width = file.tensors().map(|t| t.name.len()).max().unwrap_or(0);
    for tensor in file.tensors() {
        let shape = format!("{:?}", tensor.shape);
        let of_shard = match file.shards().len() {
            0 | 1 => String::new(),
            _ => format!(" of shard {}", tensor.shard),
        };
        writeln!(
            out,
            "{:width$}  {:<8}{shape:<16}{:>12} bytes at {}{of_shard}",
            escaped(&tensor.name),
            tensor.type_name(),
            tensor.bytes,
            tensor.offset,
        )?;
        let total = totals.entry(tensor.type_name()).or_default();
        *total = (total.0 + 1, total.1 + tensor.elements(), total.2 + tensor.bytes);
    }
    writeln!(out)?;
    for (format, (count, elements, bytes)) in &totals {
        writeln!(out, "{format:<8}{count:>6} tensors {elements:>14} elements {bytes:>14} bytes")?;
    }
    let sum = totals.values().fold((0, 0), |sum, t| (sum.0 + t.1, sum.1 + t.2));
    writeln!(out, "total   {tensors:>6} tensors {:>14} elements {:>14} bytes", sum.0, sum.1)?;
    writeln!(out, "file size {} bytes", file.file_bytes())?;
    Ok(())
}

/// All of it as one object; long arrays are cut as in the lines.
pub fn json(file: &GgufFile, summary: &Summary) -> serde_json::Value {
    let metadata: serde_json::Map<String, serde_json::Value> =
        file.metadata().iter().map(|(key, value)| (key.to_owned(), json_value(value))).collect();
    let tensors: Vec<serde_json::Value> = file
        .tensors()
        .map(|t| {
            json!({
                "name": t.name, "type": t.type_name(), "shape": t.shape,
                "shard": t.shard, "offset": t.offset, "bytes": t.bytes,
            })
        })
        .collect();
    let shards: Vec<serde_json::Value> =
        file.shards().map(|s| json!({ "path": s.path.display().to_string(), "bytes": s.bytes })).collect();
    json!({
        "version": file.version(), "file_bytes": file.file_bytes(), "shards": shards,
        "metadata": metadata, "tensors": tensors, "summary": summary,
    })
}

/// A metadata value; of an array, the first elements with its length.
fn json_value(value: &Value) -> serde_json::Value {
    match value {
        Value::U8(x) => json!(x),
        Value::I8(x) => json!(x),
        Value::U16(x) => json!(x),
        Value::I16(x) => json!(x),
        Value::U32(x) => json!(x),
        Value::I32(x) => json!(x),
        Value::U64(x) => json!(x),
        Value::I64(x) => json!(x),
        Value::F32(x) => json!(x),
        Value::F64(x) => json!(x),
        Value::Bool(x) => json!(x),
        Value::String(text) => json!(text),
        Value::Array(array) => {
            let first = match array {
                Array::U8(all) => json!(head(all)),
                Array::I8(all) => json!(head(all)),
                Array::U16(all) => json!(head(all)),
                Array::I16(all) => json!(head(all)),
                Array::U32(all) => json!(head(all)),
                Array::I32(all) => json!(head(all)),
                Array::U64(all) => json!(head(all)),
                Array::I64(all) => json!(head(all)),
                Array::F32(all) => json!(head(all)),
                Array::F64(all) => json!(head(all)),
                Array::Bool(all) => json!(head(all)),
                Array::String(all) => json!(head(all)),
            };
            json!({ "type": array.element_type(), "length": array.len(), "first": first })
        }
    }
}

/// The elements of an array that are shown.
fn head<T>(all: &[T]) -> &[T] {
    &all[..all.len().min(SHOWN)]
}

/// A metadata value on one line; long ones are cut.
fn short(value: &Value) -> String {
    match value {
        Value::U8(x) => x.to_string(),
        Value::I8(x) => x.to_string(),
        Value::U16(x) => x.to_string(),
        Value::I16(x) => x.to_string(),
        Value::U32(x) => x.to_string(),
        Value::I32(x) => x.to_string(),
        Value::U64(x) => x.to_string(),
        Value::I64(x) => x.to_string(),
        Value::F32(x) => x.to_string(),
        Value::F64(x) => x.to_string(),
        Value::Bool(x) => x.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(array) => {
            let first = match array {
                Array::U8(all) => list(all),
                Array::I8(all) => list(all),
                Array::U16(all) => list(all),
                Array::I16(all) => list(all),
                Array::U32(all) => list(all),
                Array::I32(all) => list(all),
                Array::U64(all) => list(all),
                Array::I64(all) => list(all),
                Array::F32(all) => list(all),
                Array::F64(all) => list(all),
                Array::Bool(all) => list(all),
                Array::String(all) => listed(all.len(), all.iter().map(|text| quoted(text))),
            };
            format!("{} {} [{first}]", array.len(), array.element_type())
        }
    }
}

/// How many elements of an array are shown.
const SHOWN: usize = 8;

fn list<T: ToString>(all: &[T]) -> String {
    listed(all.len(), all.iter().map(ToString::to_string))
}

fn listed(count: usize, texts: impl Iterator<Item = String>) -> String {
    let mut shown: Vec<String> = texts.take(SHOWN).collect();
    if count > SHOWN {
        shown.push("..".into());
    }
    shown.join(", ")
}

/// Quoted, control characters escaped (a file must not move the reader's cursor), at most 100 characters.
fn quoted(text: &str) -> String {
    let cut: String = text.chars().take(100).collect();
    let dots = if cut.len() < text.len() { ".." } else { "" };
    format!("{cut:?}{dots}")
}
