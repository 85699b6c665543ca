//! Arbitrary bytes as blocks of every format: read at once and one by one, laid out for a device and back, and as
//! values to quantize.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tallow_quant::{Format, dequantize, dequantize_at, quantize, repack, repacked_bytes, unpack};

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let format = Format::ALL[usize::from(*choice) % Format::ALL.len()];
    let blocks = bytes.len() / format.block_bytes();
    let (whole, rest) = bytes.split_at(blocks * format.block_bytes());
    let elements = blocks * format.block_elements();

    let mut values = vec![0.0; elements];
    dequantize(format, whole, &mut values).expect("whole blocks can be read");
    for (index, value) in values.iter().enumerate() {
        let alone = dequantize_at(format, whole, index).expect("the element exists");
        assert!(alone.to_bits() == value.to_bits() || alone.is_nan() && value.is_nan(), "{format} {index}");
    }
    assert!(dequantize_at(format, whole, elements).is_err());

    let device = repack(format, whole).expect("whole blocks can be laid out");
    assert_eq!(device.len(), repacked_bytes(format, elements));
    assert_eq!(unpack(format, &device, elements).expect("and brought back"), whole, "{format}");

    if !rest.is_empty() {
        assert!(dequantize(format, bytes, &mut values).is_err());
        assert!(dequantize_at(format, bytes, 0).is_err());
        assert!(repack(format, bytes).is_err());
    }

    // Any floats, infinities and NaN too: what becomes of those is not specified, but they have blocks.
    let floats: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let floats = &floats[..floats.len() / format.block_elements() * format.block_elements()];
    if format.can_quantize() {
        let quantized = quantize(format, floats).expect("whole blocks can be made");
        let mut back = vec![0.0; floats.len()];
        dequantize(format, &quantized, &mut back).expect("and read");
    } else {
        assert!(quantize(format, floats).is_err());
    }
});
