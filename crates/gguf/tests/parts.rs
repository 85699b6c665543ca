//! Files of parts that were read elsewhere.
#![allow(clippy::unwrap_used)]

use tallow_gguf::{Format, GgufFile, Metadata, TensorSpec, Value};

fn part(name: &str, shape: &[usize], format: Format, bytes: usize) -> (TensorSpec, Vec<u8>) {
    let data = (0..bytes).map(|i| i as u8).collect();
    (TensorSpec { name: name.into(), shape: shape.to_vec(), format }, data)
}

#[test]
fn parts_are_a_file() {
    let mut metadata = Metadata::new();
    metadata.insert("k", Value::U32(7));
    let parts = [
        part("a", &[2, 32], Format::Q8_0, 68),
        part("b", &[3], Format::F32, 12),
        part("c", &[0], Format::F16, 0),
    ];
    let file = GgufFile::from_parts(metadata, parts.clone()).unwrap();
    assert_eq!((file.metadata().get_u32("k").unwrap(), file.file_bytes()), (7, 80));
    for (spec, data) in &parts {
        let info = file.require(&spec.name).unwrap();
        assert_eq!((&info.shape, info.format().unwrap()), (&spec.shape, spec.format));
        assert_eq!(file.tensor_data(info).unwrap(), data);
    }
    let mut other = file.require("a").unwrap().clone();
    other.offset += 1;
    assert!(file.tensor_data(&other).is_err());
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    for (parts, says) in [
        (vec![part("a", &[2, 32], Format::Q8_0, 67)], "67 bytes"),
        (vec![part("a", &[2, 16], Format::Q8_0, 34)], "34 bytes"),
        (vec![part("a", &[usize::MAX, 2], Format::F32, 4)], "4 bytes"),
        (vec![part("a", &[1], Format::F32, 4), part("a", &[1], Format::F32, 4)], "twice"),
    ] {
        let error = GgufFile::from_parts(Metadata::new(), parts).unwrap_err().to_string();
        assert!(error.contains("tensor a") && error.contains(says), "{error}");
    }
}
