//! A model that is small enough for many tests, other models of the repository, and adapters of them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tallow::{Device, Tensor};
use tallow_gguf::{Format, GgufFile, GgufWriter, TensorSpec};
use tallow_models::lora::{LoraPair, write_adapter};
use tallow_models::train::{ExportType, Net, Preset, TokenizerFile, to_gguf};
use tallow_models::{LoraAdapter, ModelFile};
use tallow_quant::{dequantize, quantize};

use crate::training::write_tokenizer;

pub fn nano(name: &str) -> ModelFile {
    ModelFile::open(tallow_testmodels::model(&format!("storyteller-nano-{name}"))).unwrap()
}

pub fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// An untrained model of 0.2 million parameters whose tokens are bytes, with its matrices in `format`.
pub fn tiny(folder: &Path, format: Format) -> PathBuf {
    write_tokenizer(&folder.join("tokenizer.json"));
    let tokenizer = TokenizerFile::open(&folder.join("tokenizer.json")).unwrap().metadata;
    let mut config = Preset::Test.net();
    config.vocab_size = 259;
    let names = [("model.norm.weight".to_owned(), vec![config.n_embd])];
    let mut tensors: HashMap<String, Tensor> = HashMap::new();
    let (width, narrow, feed) = (config.n_embd, config.n_embd / 2, config.n_ff);
    let of_layer = |layer: usize| {
        [
            ("input_layernorm", vec![width]),
            ("post_attention_layernorm", vec![width]),
            ("self_attn.q_proj", vec![width, width]),
            ("self_attn.k_proj", vec![narrow, width]),
            ("self_attn.v_proj", vec![narrow, width]),
            ("self_attn.o_proj", vec![width, width]),
            ("mlp.gate_proj", vec![feed, width]),
            ("mlp.up_proj", vec![feed, width]),
            ("mlp.down_proj", vec![width, feed]),
        ]
        .map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape))
    };
    let embedding = [("model.embed_tokens.weight".to_owned(), vec![config.vocab_size, width])];
    for (name, shape) in names.into_iter().chain(embedding).chain((0..config.n_layer).flat_map(of_layer)) {
        let count: usize = shape.iter().product();
        // Without the process's sequence of draws, which other tests rely on.
        let mut state = name.bytes().fold(7u32, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
        let mut draw = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let of = |x: f32| if shape.len() == 1 { 1.0 } else { 0.2 * x };
        let data: Vec<f32> = (0..count).map(|_| of(draw())).collect();
        tensors.insert(name, Tensor::from_vec(data, shape, &Device::Cpu).unwrap());
    }
    let net = Net::from_tensors(&config, &tensors, &Device::Cpu).unwrap();
    let mut bytes = vec![];
    to_gguf(&net, &tokenizer, "tiny", ExportType::F32, &mut bytes).unwrap();
    let path = folder.join(format!("tiny-{}.gguf", format.name()));
    std::fs::write(&path, in_format(&GgufFile::parse(bytes).unwrap(), format, &HashMap::new())).unwrap();
    path
}

/// A file with its matrices in a format, and `updates` added to some.
pub fn in_format(file: &GgufFile, format: Format, updates: &HashMap<String, Vec<f32>>) -> Vec<u8> {
    let format_of = |shape: &[usize]| if shape.len() > 1 { format } else { Format::F32 };
    let specs = file.tensors().map(|tensor| TensorSpec {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        format: format_of(&tensor.shape),
    });
    let mut bytes = Vec::new();
    let mut writer = GgufWriter::create(&mut bytes, file.metadata(), specs.collect()).unwrap();
    for tensor in file.tensors() {
        let mut values = vec![0.0; tensor.elements()];
        dequantize(tensor.format().unwrap(), file.tensor_data(tensor).unwrap(), &mut values).unwrap();
        for (value, update) in values.iter_mut().zip(updates.get(&tensor.name).into_iter().flatten()) {
            *value += update;
        }
        writer.tensor(&tensor.name, &quantize(format_of(&tensor.shape), &values).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    bytes
}

/// The adapter file of a decoder.
pub fn adapter_of(net: &Net, alpha: f64) -> LoraAdapter {
    let pairs: Vec<LoraPair> = net.adapters().map(|adapter| adapter.pair().unwrap()).collect();
    let mut bytes = vec![];
    write_adapter(&mut bytes, "llama", "test", alpha as f32, Format::F32, &pairs).unwrap();
    LoraAdapter::new(GgufFile::parse(bytes).unwrap()).unwrap()
}

/// Gives each `B` values other than 0.
pub fn change(net: &Net) {
    for (number, adapter) in net.adapters().enumerate() {
        let [_, b] = adapter.vars();
        let value = |at: usize| ((at * 37 + number * 11) % 101) as f32 / 2000.0 - 0.025;
        let data = (0..b.elem_count()).map(value).collect();
        b.set(&Tensor::from_vec(data, b.dims().to_vec(), &Device::Cpu).unwrap()).unwrap();
    }
}
