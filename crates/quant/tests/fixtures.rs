//! Every format against fixtures that the PyPI package gguf made (`scripts/quant_fixtures.py`).

use std::io::Read;
use std::path::PathBuf;

use flate2::read::GzDecoder;
use tallow_quant::{Format, dequantize, dequantize_at, quantize};

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/quant").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The values of a format's blocks.
fn values(format: Format) -> Vec<f32> {
    let packed = fixture(&format!("{format}.values.gz"));
    let mut bytes = vec![];
    GzDecoder::new(&packed[..]).read_to_end(&mut bytes).expect("a gzip file");
    floats(&bytes)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|c| f32::from_le_bytes(*c)).collect()
}

/// Equal bits, where a NaN equals every NaN.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

#[test]
fn dequantize_is_bit_exact_for_every_format() {
    for &format in Format::ALL {
        let blocks = fixture(&format!("{format}.blocks"));
        let expected = values(format);
        assert!(expected.len() >= 500, "{format}: a fixture with so few values proves little");
        // A scale of 8 bits is no NaN; that of NVFP4 is no infinity either.
        let whole = matches!(format, Format::I8 | Format::I16 | Format::I32 | Format::I64);
        let has = |odd: fn(&f32) -> bool| expected.iter().any(odd);
        assert!(has(|v| v.is_nan()) || matches!(format, Format::MXFP4 | Format::NVFP4) || whole, "{format}");
        assert!(has(|v| v.is_infinite()) || format == Format::NVFP4 || whole, "{format}");
        let mut got = vec![0.0; expected.len()];
        dequantize(format, &blocks, &mut got).expect("whole blocks");
        for (i, (&got, &expected)) in got.iter().zip(&expected).enumerate() {
            assert!(same(got, expected), "{format}: element {i} is {got:e}, expected {expected:e}");
            let alone = dequantize_at(format, &blocks, i).expect("in range");
            assert!(same(alone, expected), "{format}: element {i} alone is {alone:e}, expected {expected:e}");
        }
    }
}

#[test]
fn codebooks_are_those_of_the_package() {
    for &format in Format::ALL {
        let Some(codebook) = format.codebook() else { continue };
        let expected = fixture(&format!("{format}.codebook"));
        let got: Vec<u8> = codebook.points.iter().flat_map(|point| point.to_le_bytes()).collect();
        assert!(got == expected, "{format}: the codebook {} is another", codebook.name);
    }
}

/// Formats that the package has no quantizer for. `tallow-gguf` tests Q4_K and Q6_K on model files; the others need
/// not equal ggml's blocks, `fit.rs` tests how near they are.
const WITHOUT_FIXTURE: [Format; 15] = [
    Format::Q2_K,
    Format::Q3_K,
    Format::Q4_K,
    Format::Q5_K,
    Format::Q6_K,
    Format::IQ4_NL,
    Format::IQ4_XS,
    Format::NVFP4,
    Format::IQ3_XXS,
    Format::IQ3_S,
    Format::IQ2_XXS,
    Format::IQ2_XS,
    Format::IQ2_S,
    Format::IQ1_S,
    Format::IQ1_M,
];

#[test]
fn quantize_is_byte_exact() {
    for &format in Format::ALL {
        if !format.can_quantize() || WITHOUT_FIXTURE.contains(&format) {
            continue;
        }
        let source = if format.is_plain() { "source_floats.f32" } else { "source_blocks.f32" };
        let got = quantize(format, &floats(&fixture(source))).expect("whole blocks");
        let expected = fixture(&format!("{format}.quantized"));
        let size = format.block_bytes();
        assert_eq!(got.len(), expected.len());
        for (i, (got, expected)) in got.chunks(size).zip(expected.chunks(size)).enumerate() {
            // Which of its NaNs f16 rounds to is the hardware's affair.
            let nan = |bytes: &[u8]| dequantize_at(format, bytes, 0).expect("one block").is_nan();
            let same_nan = format == Format::F16 && nan(got) && nan(expected);
            assert!(same_nan || got == expected, "{format}: block {i} is {got:?}, expected {expected:?}");
        }
    }
}

/// A quantized block's error stays within a step of its grid, on ordinary and on odd values.
#[test]
fn quantized_values_are_near() {
    let source = floats(&fixture("source_blocks.f32"));
    for (format, steps) in [
        (Format::Q4_0, 8.0),
        (Format::Q4_1, 7.4),
        (Format::Q5_0, 16.0),
        (Format::Q5_1, 15.4),
        (Format::Q8_0, 127.0),
        (Format::Q8_1, 127.0),
        (Format::Q8_K, 126.0),
        (Format::Q4_K, 8.0),
        (Format::Q6_K, 31.0),
        (Format::Q5_K, 15.0),
        (Format::NVFP4, 2.9),
        (Format::TQ1_0, 1.99),
        (Format::TQ2_0, 1.99),
        (Format::MXFP4, 3.0),
    ] {
        let bytes = quantize(format, &source).expect("whole blocks");
        let mut back = vec![0.0; source.len()];
        dequantize(format, &bytes, &mut back).expect("whole blocks");
        let mut checked = 0;
        for (row, (x, y)) in source.chunks(256).zip(back.chunks(256)).enumerate() {
            let amax = x.iter().fold(0.0f32, |max, v| max.max(v.abs()));
            // An f16 scale ends at 65504 and at 6e-8; between, it holds 11 bits.
            if !(1e-2..1e4).contains(&amax) {
                continue;
            }
            checked += 1;
            for (x, y) in x.iter().zip(y) {
                assert!(
                    (x - y).abs() <= amax / steps,
                    "{format}: row {row}: {x} became {y} (largest {amax})"
                );
            }
        }
        assert!(checked >= 10, "{format}: only {checked} rows were ordinary");
    }
}

/// `docs/quantization.md` has a row for each format, in the table's order.
#[test]
fn the_page_lists_every_format() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/quantization.md");
    let page = std::fs::read_to_string(&path).expect("the page is there");
    let rows: String = Format::ALL
        .iter()
        .map(|format| {
            let (spec, quantizes) = (format.spec(), if format.can_quantize() { "yes" } else { "no" });
            let bits = spec.block_bytes as f64 * 8.0 / spec.block_elements as f64;
            let (id, elements, bytes) = (spec.ggml_id, spec.block_elements, spec.block_bytes);
            format!("| `{format}` | {id} | {elements} | {bytes} | {bits} | {quantizes} |\n")
        })
        .collect();
    assert!(page.ends_with(&format!("|---|---|---|---|---|---|\n{rows}")), "the rows should be\n{rows}");
}

#[test]
fn odd_values_never_panic() {
    let odd = [f32::NAN, f32::INFINITY, -f32::INFINITY, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-42, -0.0];
    for &format in Format::ALL {
        for &first in &odd {
            for &rest in &odd {
                let mut values = [rest; 256];
                values[0] = first;
                values[100] = 1.0;
                match quantize(format, &values) {
                    Ok(bytes) => dequantize(format, &bytes, &mut values).expect("whole blocks"),
                    Err(e) => assert!(!format.can_quantize(), "{e}"),
                }
            }
        }
    }
}

/// Found by the fuzzer: a group so large beside the block's scale, which is an f16, that its number overflowed.
#[test]
fn groups_of_all_magnitudes_never_panic() {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u32
    };
    for &format in Format::ALL.iter().filter(|f| f.can_quantize()) {
        for _ in 0..100 {
            let mut values = [0.0f32; 256];
            for group in values.as_chunks_mut::<8>().0 {
                // Any exponent but that of infinities, the same for all of the group.
                let exponent = random() % 255;
                group
                    .iter_mut()
                    .for_each(|v| *v = f32::from_bits((random() & 1) << 31 | exponent << 23 | random() >> 1));
            }
            let bytes = quantize(format, &values).expect("whole blocks");
            dequantize(format, &bytes, &mut values).expect("whole blocks");
        }
    }
}

#[test]
fn zeros_stay_zero() {
    for &format in Format::ALL.iter().filter(|f| f.can_quantize()) {
        let bytes = quantize(format, &[0.0; 512]).expect("whole blocks");
        let mut back = [1.0; 512];
        dequantize(format, &bytes, &mut back).expect("whole blocks");
        assert!(back.iter().all(|&v| v == 0.0), "{format}");
    }
}

#[test]
fn wrong_sizes_name_format_and_sizes() {
    let text = |result: Result<(), _>| result.map_err(|e: tallow_quant::QuantError| e.to_string());
    assert_eq!(
        text(dequantize(Format::Q4_0, &[0; 17], &mut [0.0; 32])),
        Err("q4_0: expected 18 bytes, got 17".to_owned())
    );
    assert_eq!(
        text(quantize(Format::Q6_K, &[0.0; 32]).map(drop)),
        Err("q6_k: 32 elements are not whole blocks of 256".to_owned())
    );
    assert_eq!(
        text(quantize(Format::I16, &[0.0; 256]).map(drop)),
        Err("i16: values cannot be quantized to this format, it can only be read".to_owned())
    );
    assert_eq!(
        text(dequantize_at(Format::Q8_0, &[0; 34], 32).map(drop)),
        Err("q8_0: element 32 of 32".to_owned())
    );
}
