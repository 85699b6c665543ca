//! The project's quantizer against files that llama.cpp made from the same weights.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use tallow_gguf::{Format, GgufFile, GgufWriter, TensorSpec, Value};

/// SHA-256 of the file that `llama-quantize storyteller-nano-f16.gguf storyteller-nano-Q8_0.gguf Q8_0` writes.
const NANO_Q8_0: &str = "0082cc7795e11e762852486ba38ebd5d40570f4f72f8d6fad59db4434004837a";

fn model(name: &str) -> GgufFile {
    GgufFile::open(tallow_testmodels::model(name)).unwrap()
}

/// The data of a tensor of `source`, quantized.
fn requantize(source: &GgufFile, name: &str, format: Format) -> Vec<u8> {
    let tensor = source.require(name).unwrap();
    let mut values = vec![0.0; tensor.elements()];
    let data = source.tensor_data(tensor).unwrap();
    tallow_quant::dequantize(tensor.format().unwrap(), data, &mut values).unwrap();
    tallow_quant::quantize(format, &values).unwrap()
}

/// (storyteller-nano-Q4_0 is not stored. It is made to be tested, and its hash is that of llama.cpp's file.)
#[test]
fn q4_0_q4_k_and_q6_k_are_byte_equal() {
    let source = model("storyteller-nano-f16");
    for (name, expected_formats) in [
        ("storyteller-nano-Q4_0", [(Format::Q4_0, 28), (Format::Q6_K, 1)]),
        ("storyteller-nano-Q4_K_M", [(Format::Q4_K, 24), (Format::Q6_K, 5)]),
    ] {
        let target = model(name);
        let mut compared = BTreeMap::new();
        for tensor in target.tensors() {
            let format = tensor.format().unwrap();
            if format == Format::F32 {
                continue;
            }
            let made = requantize(&source, &tensor.name, format);
            assert!(
                made == target.tensor_data(tensor).unwrap(),
                "{name}: {} in {format} differs",
                tensor.name
            );
            *compared.entry(format).or_insert(0) += 1;
        }
        assert_eq!(compared, expected_formats.into(), "{name}");
    }
}

#[test]
fn a_whole_q8_0_file_is_byte_equal() {
    let source = model("storyteller-nano-f16");
    let mut metadata = source.metadata().clone();
    metadata.remove("general.file_type");
    metadata.insert("general.quantization_version", Value::U32(2));
    metadata.insert("general.file_type", Value::U32(7));
    // llama-quantize sorts the tensors; the files that it made have its order.
    let sorted = model("storyteller-nano-Q4_K_M");
    let specs: Vec<TensorSpec> = sorted
        .tensors()
        .map(|tensor| TensorSpec {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            format: if tensor.shape.len() == 1 { Format::F32 } else { Format::Q8_0 },
        })
        .collect();
    let mut writer = GgufWriter::create(Vec::new(), &metadata, specs.clone()).unwrap();
    for spec in specs {
        writer.tensor(&spec.name, &requantize(&source, &spec.name, spec.format)).unwrap();
    }
    let digest = Sha256::digest(writer.finish().unwrap());
    let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hash, NANO_Q8_0);
}
