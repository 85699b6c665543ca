//! A program that is found again runs without lists of its own: an evaluation allocates for its results only.

use allocation_counter::measure;
use tallow::nn::ops::softmax;
use tallow::{Device, Result, Tensor, eval};
use tallow_tests::device::own_devices as devices;
use tallow_tests::tensors::random;

use super::lazy_resources::ALONE;

/// The results of one round of a program: of `[n, 8]` and `[8, 8]`, which are on the device.
type Program = fn(&Tensor, &Tensor) -> Result<Vec<Tensor>>;

fn chain(x: &Tensor, steps: usize) -> Result<Vec<Tensor>> {
    let mut y = x.clone();
    for _ in 0..steps / 2 {
        y = (&y + x)?.tanh()?;
    }
    Ok(vec![y])
}

/// What is evaluated, by name.
const PROGRAMS: [(&str, Program); 5] = [
    ("a short chain", |x, _| chain(x, 20)),
    ("a long chain", |x, _| chain(x, 400)),
    ("constants", |x, _| Ok(vec![((x * 2.5)? + 0.125)?.affine(0.5, 0.25)?])),
    ("several kernels", |x, w| Ok(vec![softmax(&x.matmul(w)?.matmul(w)?, 0)?.matmul(w)?])),
    ("several results", |x, w| Ok(vec![Tensor::cat(&[x, x], 0)?, x.matmul(w)?, x.sum(1)?])),
];

/// A tensor whose value is on the device.
fn on_device(seed: u32, shape: &[usize], device: &Device) -> Result<Tensor> {
    let tensor = random(seed, shape, device)?.affine(0.5, 0.0)?;
    eval(&[&tensor])?;
    Ok(tensor)
}

/// How often each of the later rounds asked the heap for memory, and how many results there were.
fn allocations(device: &Device, program: Program) -> Result<Vec<(u64, usize)>> {
    let w = on_device(1, &[8, 8], device)?;
    let mut counts = vec![];
    for round in 0..40 {
        let x = on_device(round, &[3 + round as usize % 7, 8], device)?;
        let results = program(&x, &w)?;
        let wanted: Vec<&Tensor> = results.iter().collect();
        let count = measure(|| eval(&wanted).unwrap()).count_total;
        counts.push((count, results.len()));
        device.synchronize()?;
    }
    Ok(counts.split_off(20))
}

#[test]
fn an_evaluation_allocates_for_its_results_only() {
    let _alone = ALONE.lock().unwrap();
    for device in devices() {
        for (name, program) in PROGRAMS {
            let counts = allocations(&device, program).unwrap();
            assert!(counts.iter().all(|(count, results)| *count <= *results as u64), "{name}: {counts:?}");
        }
    }
}

/// Plans with symbols have room for the maxima; results have memory for the extents at hand.
#[test]
fn results_of_plans_with_symbols_take_their_own_size() {
    let _alone = ALONE.lock().unwrap();
    for device in devices() {
        let result = |rows: usize| {
            let x = on_device(rows as u32, &[rows, 4096], &device).unwrap();
            let before = device.memory().unwrap().in_use;
            let y = x.sqr().unwrap();
            eval(&[&y]).unwrap();
            device.synchronize().unwrap();
            device.memory().unwrap().in_use - before
        };
        // The second plan has symbols of up to 256 rows, and the first runs take memory for the stream, too.
        for rows in [5, 6, 5, 6, 5, 6, 7, 8, 9, 10] {
            result(rows);
        }
        for rows in [7, 3, 11] {
            let bytes = rows as u64 * 4096 * 4;
            let taken = result(rows);
            // A class of sizes has up to a quarter more.
            assert!((bytes..=bytes * 5 / 4).contains(&taken), "{rows} rows: {taken} bytes, not {bytes}");
        }
        let explained = on_device(1, &[9, 4096], &device).unwrap().sqr().unwrap().explain().unwrap();
        assert!(explained.contains("symbol n0 in 2..=256"), "{explained}");
    }
}
