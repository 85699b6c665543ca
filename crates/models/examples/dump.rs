//! Prints the decode (or prefill) graph of a model in text form.
#![allow(clippy::print_stdout)]
use tallow_models::model_graph::{ModelGraph, Rows};
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: dump MODEL.gguf [prefill]")?;
    let rows = if std::env::args().nth(2).is_some() { Rows::UpTo(512) } else { Rows::One };
    let model = ModelGraph::from_file(&tallow_gguf::GgufFile::open(path)?)?;
    print!("{}", model.step(rows, model.config.context)?);
    Ok(())
}
