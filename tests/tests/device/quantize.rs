//! Blocks that the device makes, against those of the CPU's quantizers: code by code.

use tallow::Device;
use tallow_ir::{DType, Format, Graph, Op};
use tallow_quant::{dequantize, quantize};
use tallow_reference::Array;
use tallow_tests::Inputs;
use tallow_tests::random_inputs::Leaf;
use tallow_tests::rng::Rng;

use crate::harness::{device, device_with_range, run};

const BLOCK: usize = 32;

/// Values of many sizes and shapes: noise, halves, few values, one large one, constants, zeros.
fn values() -> Vec<f32> {
    let mut rng = Rng::new(17);
    let mut all: Vec<f32> = vec![];
    let mut number = |scale: f64| (rng.between(-1_000_000, 1_000_000) as f64 / 1e6 * scale) as f32;
    for scale in [1e-3, 0.37, 1.0, 5.0, 300.0, 1e4] {
        for _ in 0..60 {
            all.extend((0..BLOCK).map(|_| number(scale)));
        }
    }
    // Quotients that are halves, or next to them.
    for half in 0..24 {
        let mut block = [0f32; BLOCK];
        block[0] = if half % 2 == 0 { 127.0 } else { -16.0 };
        for (i, x) in block.iter_mut().enumerate().skip(1) {
            *x = (i as f32 - 16.0 + 0.5) * if half % 3 == 0 { 1.0 } else { 0.5 };
            *x = if i % 4 == 3 {
                x.next_up()
            } else if i % 4 == 2 {
                x.next_down()
            } else {
                *x
            };
        }
        all.extend(block);
    }
    // The largest magnitude twice, of both signs; one value alone; one value everywhere.
    for i in 0..8 {
        let mut block = [0f32; BLOCK];
        block[i] = 3.0;
        block[31 - i] = -3.0;
        all.extend(block);
        all.extend([0.25 * i as f32; BLOCK]);
        all.extend([-0.25 * i as f32; BLOCK]);
        let mut block = [0f32; BLOCK];
        block[4 * i] = if i % 2 == 0 { 1.5 } else { -1.5 };
        all.extend(block);
    }
    all
}

fn quantized(format: Format, elements: usize) -> Graph {
    let mut graph = Graph::new("rounded");
    let x = graph.input("x", DType::F32, [elements]).unwrap();
    let blocks = graph.add(Op::Quantize(format), &[x]).unwrap();
    graph.output("y", blocks).unwrap();
    graph
}

fn blocks(device: &Device, format: Format, x: &[f32]) -> Vec<u8> {
    let mut inputs = Inputs::default();
    let bytes = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    inputs.inputs.insert("x".into(), Leaf { dtype: DType::F32, shape: vec![x.len()], bytes });
    let found: Vec<(String, Array)> = run(device, &quantized(format, x.len()), &inputs).unwrap();
    found[0].1.to_bytes()
}

/// The levels of a block, and its scale and offset.
fn levels(format: Format, block: &[u8]) -> (Vec<i32>, f64, f64) {
    let half = |at: usize| f64::from(half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32());
    let offset = if matches!(format, Format::Q4_1 | Format::Q5_1) { half(2) } else { 0.0 };
    let scale = half(0);
    // With a scale of 1 and no offset, values are levels.
    let mut plain = block.to_vec();
    plain[..2].copy_from_slice(&half::f16::ONE.to_le_bytes());
    if matches!(format, Format::Q4_1 | Format::Q5_1) {
        plain[2..4].copy_from_slice(&[0, 0]);
    }
    let mut values = [0f32; BLOCK];
    dequantize(format, &plain, &mut values).unwrap();
    (values.iter().map(|x| *x as i32).collect(), scale, offset)
}

/// The exact step and start of a block's levels, and how many there are on the longer side.
fn exact(format: Format, x: &[f32]) -> (f64, f64, f64) {
    let most = x.iter().fold(0f32, |m, x| m.max(x.abs()));
    let largest = x.iter().fold(0f32, |m, x| if x.abs() > m.abs() { *x } else { m });
    let (low, high) = x.iter().fold((x[0], x[0]), |(l, h), x| (l.min(*x), h.max(*x)));
    let (most, largest, low, high) = (f64::from(most), f64::from(largest), f64::from(low), f64::from(high));
    match format {
        Format::Q8_0 | Format::Q8_1 => (most / 127.0, 0.0, 127.0),
        Format::Q4_0 => (largest / -8.0, 0.0, 8.0),
        Format::Q5_0 => (largest / -16.0, 0.0, 16.0),
        Format::Q4_1 => ((high - low) / 15.0, low, 15.0),
        Format::Q5_1 => ((high - low) / 31.0, low, 31.0),
        other => panic!("{other} has no such step"),
    }
}

/// Whether the device's block is the CPU's, but for levels whose exact quotient is as near to a half as the device's
/// arithmetic may move it. Vulkan's division is within 2.5 units in the last place, and there are two of them; the
/// difference, the product and the sum add half a unit each: 6.5 units of at most 2^-23 of the level, counted as 8.
fn check_levels(format: Format, x: &[f32], want: &[u8], got: &[u8]) -> Result<(), String> {
    if want == got {
        return Ok(());
    }
    let ((w, w_scale, w_offset), (g, g_scale, g_offset)) = (levels(format, want), levels(format, got));
    let (step, start, top) = exact(format, x);
    if w_offset != g_offset {
        return Err(format!("offset {g_offset}, not {w_offset}"));
    }
    // The scale may round to the other f16 only where it is as near to the middle of two.
    let moved = [step * (1.0 - 2f64.powi(-21)), step * (1.0 + 2f64.powi(-21))].map(half::f16::from_f64);
    if w_scale != g_scale && moved[0] == moved[1] {
        return Err(format!("scale {g_scale}, not {w_scale}"));
    }
    for (i, (w, g)) in w.iter().zip(&g).enumerate() {
        let quotient = if step == 0.0 { 0.0 } else { (f64::from(x[i]) - start) / step };
        let to_half = (quotient - quotient.floor() - 0.5).abs();
        if w != g && ((w - g).abs() > 1 || to_half > top * 8.0 * 2f64.powi(-23)) {
            return Err(format!("level {i} is {g}, not {w}; the quotient is {quotient}"));
        }
    }
    Ok(())
}

/// Searched scales may be others of the same worth: f32 sums of squares are off by some units in the last place, and a
/// scale that is rounded to f16 is off by 2^-11, which adds the square of that of the sum of squares.
fn check_error(format: Format, x: &[f32], want: &[u8], got: &[u8]) -> Result<(), String> {
    let error = |block: &[u8]| {
        let mut values = [0f32; BLOCK];
        dequantize(format, block, &mut values).unwrap();
        x.iter().zip(values).map(|(x, v)| (f64::from(*x) - f64::from(v)).powi(2)).sum::<f64>()
    };
    let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    let (want, got) = (error(want), error(got));
    let most = want * (1.0 + 1e-5) + squares * 2f64.powi(-21);
    if got <= most { Ok(()) } else { Err(format!("squared error {got}, not {want}")) }
}

fn check(device: &Device, x: &[f32]) {
    for format in Op::QUANTIZED {
        let want = quantize(format, x).unwrap();
        let got = blocks(device, format, x);
        assert_eq!(want.len(), got.len(), "{format}");
        let size = format.block_bytes();
        let mut equal = 0;
        for (i, ((x, want), got)) in x.chunks(BLOCK).zip(want.chunks(size)).zip(got.chunks(size)).enumerate()
        {
            equal += usize::from(want == got);
            let check = if format == Format::IQ4_NL { check_error } else { check_levels };
            check(format, x, want, got).unwrap_or_else(|why| panic!("{format} block {i}: {why}\n{x:?}"));
        }
        println!("{format}: {equal} of {} blocks are equal", x.len() / BLOCK);
        // Nearly all of them, or something else than rounding is at work.
        assert!(equal * 20 >= x.len() / BLOCK * 19, "{format}: only {equal} blocks are equal");
    }
}

#[test]
fn blocks_are_those_of_the_cpu() {
    let Some(device) = device() else { return };
    check(&device, &values());
    // An odd number of blocks: the last scale has half a word.
    check(&device, &values()[..33 * BLOCK]);
}

#[test]
fn blocks_are_those_of_the_cpu_in_windows() {
    let Some(device) = device_with_range(1 << 12) else { return };
    check(&device, &values());
}
