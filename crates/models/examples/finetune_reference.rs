//! What `scripts/finetune_torch.py` trains on: the dequantized weights of a model, initial adapters and the windows of each
//! step, as one safetensors file. Prints the losses of the same training here, as JSON.
#![allow(clippy::print_stdout)]
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use tallow::Device;
use tallow_gguf::GgufFile;
use tallow_models::ModelFile;
use tallow_models::chat::template_of;
use tallow_models::train::{Batch, FinetuneOptions, Finetuner, LoraConfig};

type Tensors = Vec<(String, Vec<usize>, Dtype, Vec<u8>)>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, out] = paths.as_slice() else {
        return Err("usage: finetune_reference MODEL.gguf TEXT OUT.safetensors".into());
    };
    // As in the test that reads the losses of the script.
    let options = FinetuneOptions {
        steps: Some(50),
        batch: 2,
        context: Some(64),
        learning_rate: 2e-3,
        warmup: Some(5),
        log_every: 1,
        save_every: 50,
        ..FinetuneOptions::new(LoraConfig::new(8))
    };
    let file = ModelFile::open(model)?;
    let adapter = Path::new(out).with_extension("gguf");
    let template = template_of(file.tokenizer())?;
    let mut tuner =
        Finetuner::open(&file, Path::new(text), &template, options.clone(), &adapter, &Device::Cpu)?;
    if tuner.position().0 > 0 {
        // What is written has the adapters before their first step.
        return Err(format!("{} is from an earlier run: remove it", tuner.checkpoint().display()).into());
    }

    let mut all = base(&GgufFile::open(model)?)?;
    for adapter in tuner.net().adapters() {
        for (end, var) in ["lora_a", "lora_b"].into_iter().zip(adapter.vars()) {
            let values = var.flatten_all()?.to_vec1::<f32>()?;
            all.push((
                format!("{}.{end}", adapter.weight()),
                var.dims().to_vec(),
                Dtype::F32,
                bytes(&values),
            ));
        }
    }
    let (mut data, steps) = (tuner.data().clone(), tuner.position().1);
    let (mut tokens, mut targets) = (vec![], vec![]);
    for step in 0..steps {
        let Batch { tokens: x, targets: y, .. } = data.batch(step);
        tokens.extend(x.into_iter().flat_map(|id| i64::from(id).to_le_bytes()));
        targets.extend(y.into_iter().flat_map(|id| i64::from(id).to_le_bytes()));
    }
    let shape = vec![steps, options.batch, tuner.context()];
    all.push(("tokens".into(), shape.clone(), Dtype::I64, tokens));
    all.push(("targets".into(), shape, Dtype::I64, targets));

    let config = &file.model_graph().config;
    let settings = [
        ("heads", config.heads as f64),
        ("kv_heads", config.kv_heads as f64),
        ("layers", config.layers as f64),
        ("rms_eps", f64::from(config.norm_epsilon)),
        ("rope_base", f64::from(config.rope_base)),
        ("scale", options.lora.alpha / options.lora.rank as f64),
        ("learning_rate", options.learning_rate),
        ("warmup", options.warmup.unwrap_or(0) as f64),
        ("clip", options.clip),
    ];
    let metadata: HashMap<String, String> =
        settings.into_iter().map(|(name, value)| (name.to_owned(), value.to_string())).collect();
    let views = all
        .iter()
        .map(|(name, shape, dtype, bytes)| Ok((name, TensorView::new(*dtype, shape.clone(), bytes)?)));
    let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    std::fs::write(out, safetensors::serialize(views, Some(metadata))?)?;

    tuner.run(&mut |_| ControlFlow::Continue(()))?;
    println!("{}", serde_json::json!({"tallow": tuner.history().losses}));
    Ok(())
}

/// The weights of a file in f32, by its names and in its order of rows.
fn base(file: &GgufFile) -> Result<Tensors, Box<dyn std::error::Error>> {
    let mut all = vec![];
    for tensor in file.tensors() {
        let mut values = vec![0.0; tensor.elements()];
        tallow_quant::dequantize(tensor.format()?, file.tensor_data(tensor)?, &mut values)?;
        all.push((tensor.name.clone(), tensor.shape.clone(), Dtype::F32, bytes(&values)));
    }
    Ok(all)
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
