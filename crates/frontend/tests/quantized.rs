//! Tensors of blocks: what they mean, that kernels read them, and that nothing else does.
#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::sync::Arc;

use tallow::quantized::{QMatMul, QTensor};
use tallow::{DType, Device, Format, Module, Result, Tensor, compile};

const CPU: Device = Device::Cpu;

/// Numbers from -1 to 1 that look random.
fn wave(rows: usize, columns: usize, device: &Device) -> Result<Tensor> {
    let values = (0..rows * columns).map(|i| (i as f32 * 12.9898).sin()).collect::<Vec<_>>();
    Tensor::from_vec(values, (rows, columns), device)
}

/// The device of these tests: Vulkan where there is one, else the CPU again.
fn devices() -> Vec<Device> {
    [CPU].into_iter().chain(Device::best_vulkan().ok()).collect()
}

/// Formats whose elements the device can load: those of plain 64-bit numbers take a feature.
fn loadable(device: &Device) -> impl Iterator<Item = Format> {
    let (int64, float64) = match device {
        #[cfg(feature = "vulkan")]
        Device::Vulkan(vulkan) => (vulkan.caps().int64, vulkan.caps().float64),
        Device::Cpu => (true, true),
    };
    let loads = move |f: &Format| (int64 || *f != Format::I64) && (float64 || *f != Format::F64);
    Format::ALL.iter().copied().filter(loads)
}

#[test]
fn every_format_means_what_its_blocks_say() -> Result<()> {
    for device in devices() {
        for format in loadable(&device).filter(|f| f.can_quantize()) {
            let w = wave(6, 512, &device)?;
            let q = QTensor::quantize(&w, format)?;
            assert_eq!((q.dtype(), q.shape(), q.rank()), (format, w.shape(), 2));
            assert_eq!(q.storage_size_in_bytes(), 6 * 512 / format.block_elements() * format.block_bytes());
            let mut want = vec![0f32; 6 * 512];
            tallow_quant::dequantize(format, &q.data()?, &mut want).unwrap();
            let got = q.dequantize(&device)?.to_flat_vec::<f32>()?;
            assert_eq!(got, want, "{format:?} on {device}");
            // What is computed of it, also on another device.
            let doubled = q.dequantize(&CPU)?.affine(2.0, 0.0)?.to_flat_vec::<f32>()?;
            assert!(doubled.iter().zip(&want).all(|(a, b)| *a == 2.0 * b));
        }
    }
    Ok(())
}

/// Blocks that only the device has come back as they went there.
#[test]
fn resident_blocks_are_read_back() -> Result<()> {
    for device in devices() {
        for &format in Format::ALL {
            let (rows, columns) = (5, 3 * format.block_elements());
            let bytes: Vec<u8> = (0..5 * 3 * format.block_bytes()).map(|i| (i * 37 % 251) as u8).collect();
            let w = Tensor::resident(&bytes, DType::Block(format), (rows, columns), &device)?;
            assert_eq!(*w.raw_bytes()?, bytes, "{format:?} on {device}");
        }
    }
    Ok(())
}

/// Bytes of a fixture that `scripts/quant_fixtures.py` made.
fn fixture(format: Format, what: &str) -> Vec<u8> {
    let name = format!("../../tests/fixtures/quant/{format}.{what}");
    std::fs::read(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// The values of a fixture's blocks.
fn fixture_values(format: Format) -> Vec<f32> {
    let packed = fixture(format, "values.gz");
    let mut bytes = vec![];
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
    bytes.as_chunks::<4>().0.iter().map(|c| f32::from_le_bytes(*c)).collect()
}

/// Blocks with extreme fields become the very values of the fixtures wherever those are normal: whole tensors,
/// and in a product with the unit matrix, which loads eight elements at once.
#[test]
fn odd_blocks_mean_the_same_on_every_device() -> Result<()> {
    for device in devices() {
        for format in loadable(&device) {
            let blocks = fixture(format, "blocks");
            let want = fixture_values(format);
            let per = format.block_elements().max(32);
            let rows = want.len() / per;
            let bytes = rows * per / format.block_elements() * format.block_bytes();
            let q = QTensor::from_blocks(blocks[..bytes].to_vec(), [rows, per], format, &device)?;
            let same = |got: Vec<f32>, of: &str| {
                for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                    let held = want.is_normal() && got.to_bits() != want.to_bits();
                    // Subnormal numbers may be flushed to zero, of either sign.
                    let small =
                        (want.is_subnormal() || *want == 0.0) && (got.is_nan() || got.abs() > want.abs());
                    // Infinities and NaN have no promise on a device, but that they are not numbers.
                    let odd = !want.is_finite() && got.is_finite();
                    assert!(
                        !held && !small && !odd,
                        "{format} {of} on {device}: {i} is {got:e}, not {want:e}"
                    );
                }
            };
            same(q.dequantize(&device)?.to_flat_vec::<f32>()?, "alone");
            let layer = QMatMul::from_qtensor(q)?;
            for n in [1, per] {
                // Rows of the unit matrix times the transpose: columns of the weights. Only rows without odd
                // values stay what they are, since 0 times infinity is none.
                let first = if n == 1 { per / 2 + 5 } else { 0 };
                let unit: Vec<f32> = (first..first + n)
                    .flat_map(|i| (0..per).map(move |j| f32::from(u8::from(i == j))))
                    .collect();
                let y = layer.forward(&Tensor::from_vec(unit, (n, per), &device)?)?.to_vec2::<f32>()?;
                for (i, column) in y.iter().enumerate() {
                    for (row, got) in want.chunks_exact(per).zip(column) {
                        let want = row[first + i];
                        // Sums of one value and zeros: exact where the row is finite and all is normal.
                        let plain = row.iter().all(|v| v.is_finite() && (*v == 0.0 || v.is_normal()));
                        assert!(
                            !plain || *got == want,
                            "{format} times 1 of {n} on {device}: {got:e}, not {want:e}"
                        );
                    }
                }
            }
        }
    }
    Ok(())
}

/// One kernel, and the same weights for other activations, eagerly and compiled.
#[test]
fn products_unpack_as_they_read() -> Result<()> {
    for device in devices() {
        let w = wave(48, 256, &device)?;
        let q = Arc::new(QTensor::quantize(&w, Format::Q4_0)?);
        let layer = QMatMul::from_arc(q.clone())?;
        let unpacked = q.dequantize(&device)?;
        tallow::eval(&[&unpacked])?;
        for rows in [1, 3, 20] {
            let x = wave(rows, 256, &device)?;
            let y = layer.forward(&x)?;
            if device.is_vulkan() {
                let plan = y.explain()?;
                assert!(plan.contains("plan: 1 dispatch,"), "{plan}");
            }
            let want = x.matmul(&unpacked.t()?)?;
            // 256 products of at most 1, each sum rounded to 2^-24 of at most 256, in two orders.
            let worst = y.sub(&want)?.abs()?.max_all()?.to_scalar::<f32>()?;
            assert!(f64::from(worst) <= 2.0 * 256.0 * 256.0 * 2f64.powi(-24), "{worst} on {device}");
            let cube = layer.forward(&x.reshape((1, rows, 256))?)?;
            assert_eq!(cube.dims(), [1, rows, 48]);
            let half = layer.forward(&x.to_dtype(DType::F16)?)?;
            assert_eq!(half.dtype(), DType::F16);
            let input = tallow::Input::new("x", DType::F32, (rows, 256));
            let f = compile(&device, &[input], |x| Ok(vec![layer.forward(&x[0])?]))?;
            assert_eq!(f.run(&[&x])?[0].to_vec2::<f32>()?, y.to_vec2::<f32>()?);
        }
        // Weights of the same type are not taken for each other.
        let other = QMatMul::from_qtensor(QTensor::quantize(&w.neg()?, Format::Q4_0)?)?;
        let x = wave(1, 256, &device)?;
        let (a, b) = (layer.forward(&x)?.to_vec2::<f32>()?, other.forward(&x)?.to_vec2::<f32>()?);
        assert_ne!(a, b);
    }
    Ok(())
}

#[test]
fn blocks_are_read_by_dequantization_alone() -> Result<()> {
    let w = wave(2, 64, &CPU)?;
    let q = w.quantize(Format::Q8_0)?;
    assert_eq!(q.dtype(), DType::Block(Format::Q8_0));
    assert_eq!(format!("{q:?}"), "Tensor[dims 2, 64; q8_0]");
    let (packed, plain) = (format!("{q}"), format!("{}", q.dequantize()?));
    assert_eq!(packed.lines().next(), plain.lines().next());
    assert_eq!(w.dequantize()?.to_vec2::<f32>()?, w.to_vec2::<f32>()?);
    for refused in
        [q.add(&q), q.to_dtype(DType::F32), q.t(), q.sum_all(), q.quantize(Format::Q4_0), q.reshape(128)]
    {
        assert!(refused.is_err());
    }
    assert!(q.to_vec2::<f32>().is_err());
    let message = w.narrow(1, 0, 40)?.quantize(Format::Q4_0).unwrap_err().to_string();
    assert_eq!(message, "invalid arguments for quantize: rows of [2,40] are no whole q4_0 blocks of 32");
    assert!(w.sum_all()?.quantize(Format::Q4_0).is_err());
    assert!(w.to_dtype(DType::U8)?.quantize(Format::Q4_0).is_err());
    let layer = QMatMul::from_qtensor(QTensor::quantize(&w, Format::Q4_0)?)?;
    assert!(
        layer.forward(&w.narrow(1, 0, 32)?).unwrap_err().to_string().contains("shape mismatch in qmatmul")
    );
    let row = QTensor::quantize(&w.get(0)?, Format::Q4_0)?;
    assert!(QMatMul::from_qtensor(row).is_err());
    Ok(())
}

/// What is still to be computed is rounded where it is computed: blocks are returned, and read without being.
#[test]
fn expressions_are_quantized_on_their_device() -> Result<()> {
    for device in devices() {
        let x = wave(3, 64, &device)?;
        for format in tallow_ir::Op::QUANTIZED {
            let twice = (&x + &x)?;
            let blocks = twice.quantize(format)?;
            let known = wave(3, 64, &CPU)?;
            let known = (&known + &known)?.quantize(format)?.dequantize()?;
            // Within one graph, then from the blocks that a run has returned.
            for _ in 0..2 {
                let got = blocks.dequantize()?.to_device(&CPU)?;
                let off = (&got - &known)?.abs()?.max_all()?.to_scalar::<f32>()?;
                // Next to a half a level may be the other one: none are further apart than 24 of 127.
                assert!(off <= 2.0 * 24.0 / 127.0 * 1.01, "{format} on {device}: off by {off}");
                let stored = QTensor::quantize(&twice, format)?;
                assert_eq!(stored.data()?.len(), stored.storage_size_in_bytes());
                tallow::eval(&[&blocks])?;
            }
        }
    }
    Ok(())
}
