//! A model that this project quantized itself: nano F16 to Q8_0, against the expected outputs of a Q8_0
//! file that another program made.

use crate::support::{check, models};
use tallow_gguf::{Format, GgufFile, GgufWriter, TensorSpec};
use tallow_models::ModelFile;
use tallow_quant::{dequantize, quantize};

/// Every matrix in Q8_0, vectors as they are.
fn to_q8_0(file: &GgufFile) -> Vec<u8> {
    let format = |shape: &[usize], old| if shape.len() > 1 { Format::Q8_0 } else { old };
    let tensors: Vec<_> = file.tensors().collect();
    let specs = tensors.iter().map(|t| TensorSpec {
        name: t.name.clone(),
        shape: t.shape.clone(),
        format: format(&t.shape, t.format().unwrap()),
    });
    let mut bytes = Vec::new();
    let mut writer = GgufWriter::create(&mut bytes, file.metadata(), specs.collect()).unwrap();
    for tensor in tensors {
        let data = file.tensor_data(tensor).unwrap();
        let mut values = vec![0.0; tensor.elements()];
        dequantize(tensor.format().unwrap(), data, &mut values).unwrap();
        let format = format(&tensor.shape, tensor.format().unwrap());
        writer.tensor(&tensor.name, &quantize(format, &values).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    bytes
}

#[test]
fn nano_q8_0() {
    let f16 = GgufFile::open(models().join("storyteller-nano-f16.gguf")).unwrap();
    let q8_0 = GgufFile::parse(to_q8_0(&f16)).unwrap();
    check("storyteller-nano-Q8_0", ModelFile::new(q8_0).unwrap());
}
