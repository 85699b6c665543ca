//! Prints the decode (or prefill) graph of a model in text form; with a device profile, as it is compiled for that device.
#![allow(clippy::print_stdout)]
use tallow_ir::{caps, dot, matrix};
use tallow_models::model_graph::{ModelGraph, Rows};
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: dump MODEL.gguf [decode|prefill [PROFILE]]")?;
    let rows = if args.next().as_deref() == Some("prefill") { Rows::UpTo(512) } else { Rows::One };
    let model = ModelGraph::from_file(&tallow_gguf::GgufFile::open(path)?)?;
    let mut graph = model.step(rows, model.config.context)?;
    if let Some(name) = args.next() {
        let caps = caps::profile(&name).ok_or("unknown profile")?;
        if caps.int_dot_accelerated {
            graph = dot::quantize_activations(&graph, &caps)?;
        }
        graph = matrix::round_operands(&graph, &caps)?;
    }
    print!("{graph}");
    Ok(())
}
