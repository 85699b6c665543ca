//! A program for a quantized model as Candle's users write it. The whole model runs on the device because of one line,
//! the first `use`; with the second one in its place it is Candle's own.
//!
//! `cargo run -p tallow-candle --example candle_quantized -- [MODEL.gguf [TOKENS]]`
#![allow(clippy::print_stdout)]

use tallow_candle::models::quantized_llama::ModelWeights;
// use candle_transformers::models::quantized_llama::ModelWeights;

use std::io::Write;

use candle_core::quantized::gguf_file;
use candle_core::{Device, Result, Tensor};
use candle_transformers::generation::{LogitsProcessor, Sampling};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/storyteller-main-Q4_K_M.gguf");
    let path = arguments.next().unwrap_or_else(|| default.into());
    let count = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(100);
    let device = Device::Cpu;

    let mut file = std::fs::File::open(&path)?;
    let content = gguf_file::Content::read(&mut file)?;
    let mut model = ModelWeights::from_gguf(content, &mut file, &device)?;

    // Any tokenizer does; this one is in the file.
    let head = tallow_gguf::GgufFile::open(&path).map_err(candle_core::Error::wrap)?;
    let tokenizer =
        tallow_gguf::Tokenizer::from_metadata(head.metadata()).map_err(candle_core::Error::wrap)?;
    let prompt = "Once upon a time there was a";
    let tokens = tokenizer.encode(prompt, true).map_err(candle_core::Error::wrap)?;
    let mut sampler = LogitsProcessor::from_sampling(42, Sampling::TopP { p: 0.9, temperature: 0.7 });

    print!("{prompt}");
    let started = std::time::Instant::now();
    let mut text = tokenizer.decode_stream();
    let logits = model.forward(&Tensor::new(tokens.as_slice(), &device)?.unsqueeze(0)?, 0)?;
    let mut next = sampler.sample(&logits.squeeze(0)?)?;
    let mut written = 0;
    while written < count && !tokenizer.is_end(next) {
        if let Some(piece) = text.push(next) {
            print!("{piece}");
            std::io::stdout().flush()?;
        }
        let input = Tensor::new(&[next], &device)?.unsqueeze(0)?;
        let logits = model.forward(&input, tokens.len() + written)?;
        next = sampler.sample(&logits.squeeze(0)?)?;
        written += 1;
    }
    let rate = written as f64 / started.elapsed().as_secs_f64();
    println!("\n{written} tokens, {rate:.1} a second, on {}", tallow_candle::device().name());
    Ok(())
}
