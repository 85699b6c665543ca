//! Runs of a function execute a recording where they can, whatever happens to the memory between them.

use tallow::{DType, Device, Function, Input, State, Symbol, Tensor, compile, eval, nn};
use tallow_tests::device::own_devices as devices;
use tallow_tests::tensors::{assert_close as close, random};

use crate::lazy_resources::{ALONE, around_the_ring, idle};

const WIDTH: usize = 33;

/// Rows of batches at most, more than a matvec has.
const ROWS: usize = 17;

/// Six layers of a batch, whose last one also goes into a sum over all runs. The result has so many rows, each the sum over
/// the last layer and a number of its own.
fn layers(device: &Device, rows: usize, sum: &State) -> Function {
    let weights: Vec<Tensor> = (0..6).map(|i| random(40 + i, &[WIDTH, WIDTH], device).unwrap()).collect();
    let own = random(50, &[rows, 1], device).unwrap();
    let batch = Input::new("x", DType::F32, (Symbol::new("batch", ROWS as u32), WIDTH));
    let function = compile(device, &[batch], |inputs| {
        let mut x = inputs[0].clone();
        for w in &weights {
            x = nn::ops::softmax(&x.matmul(w)?, 1)?;
            x = x.broadcast_sub(&x.sum_keepdim(0)?)?;
        }
        sum.set(&(sum.read()? + x.sum_keepdim(0)?)?)?;
        Ok(vec![own.broadcast_add(&x.sqr()?.sum_keepdim(0)?)?])
    });
    function.unwrap()
}

/// The values that runs have on the interpreter: results, and the sums at the end.
fn expected(batches: &[Tensor], order: &[usize], rows: usize) -> (Vec<Tensor>, Tensor) {
    let sum = State::zeros((1, WIDTH), DType::F32, &Device::Cpu).unwrap();
    let f = layers(&Device::Cpu, rows, &sum);
    let cpu = |x: &Tensor| x.to_device(&Device::Cpu).unwrap();
    let results = order.iter().map(|i| f.run(&[&cpu(&batches[*i])]).unwrap().remove(0));
    (results.collect(), sum.read().unwrap())
}

/// What happens to batches and results between runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Between {
    /// Batches are there, results are dropped.
    Nothing,
    /// Each result is in use until the end.
    ResultsStay,
    /// Each batch is uploaded anew.
    Uploads,
    /// Free memory goes back to the driver.
    Trims,
    /// Somebody holds what the state was.
    StateIsRead,
}

#[test]
fn recorded_runs_compute_what_the_interpreter_does() {
    let _alone = ALONE.lock();
    for device in devices() {
        let Device::Vulkan(vulkan) = &device else { panic!("{device} is no Vulkan device") };
        // Of results up to 1 MiB, and beyond, where copies would take too long.
        for (rows, most_recorded) in [(7, 3), (9000, 4)] {
            let batches: Vec<Tensor> =
                (0..3).map(|i| random(i, &[ROWS - i as usize, WIDTH], &device).unwrap()).collect();
            let order: Vec<usize> = (0..if rows < 100 { 24 } else { 9 }).map(|i| i * i % 3).collect();
            let (want, want_sum) = expected(&batches, &order, rows);
            for between in [
                Between::Nothing,
                Between::ResultsStay,
                Between::Uploads,
                Between::Trims,
                Between::StateIsRead,
            ] {
                let sum = State::zeros((1, WIDTH), DType::F32, &device).unwrap();
                let f = layers(&device, rows, &sum);
                let (mut results, mut sums) = (vec![], vec![]);
                let before = vulkan.work_done().0;
                for (run, i) in order.iter().enumerate() {
                    let uploaded = match between {
                        Between::Uploads => batches[*i].to_device(&Device::Cpu).unwrap(),
                        _ => batches[*i].clone(),
                    };
                    let result = f.run(&[&uploaded.to_device(&device).unwrap()]).unwrap().remove(0);
                    match between {
                        Between::ResultsStay => results.push(result),
                        _ => close(&result, &want[run], 1e-4),
                    }
                    match between {
                        Between::Trims => _ = vulkan.trim().unwrap(),
                        Between::StateIsRead => sums.push(sum.read().unwrap()),
                        _ => {}
                    }
                }
                results.iter().zip(&want).for_each(|(result, want)| close(result, want, 1e-4));
                close(&sum.read().unwrap(), &want_sum, 1e-3);
                let recorded = vulkan.work_done().0 - before;
                println!("{rows} rows, {between:?}: {recorded} recordings of {} runs", order.len());
                if matches!(between, Between::Nothing | Between::Uploads)
                    || rows < 100 && between != Between::Trims
                {
                    assert!((1..=most_recorded).contains(&recorded), "{rows} rows, {between:?}: {recorded}");
                }
            }
        }
    }
}

/// A function that is dropped takes its recordings with it, once the device is done with them.
#[test]
fn recordings_go_with_their_function() {
    let _alone = ALONE.lock();
    for device in devices() {
        let x = random(5, &[ROWS, WIDTH], &device).unwrap();
        let want = expected(std::slice::from_ref(&x), &[0], 60).0.remove(0);
        let round = || {
            let sum = State::zeros((1, WIDTH), DType::F32, &device).unwrap();
            let f = layers(&device, 60, &sum);
            let mut last = f.run(&[&x]).unwrap().remove(0);
            for _ in 0..5 {
                last = f.run(&[&x]).unwrap().remove(0);
            }
            drop(f);
            close(&last, &want, 1e-4);
        };
        // Other work, so that no command buffer of the ring holds a recording any more.
        let other = || eval(&[&x.affine(2.0, 1.0).unwrap()]).unwrap();
        let rounds = || {
            around_the_ring(&device, round);
            around_the_ring(&device, other);
            idle(&device)
        };
        let before = rounds();
        assert_eq!(rounds(), before);
    }
}

/// Two functions update one state. Between their runs the host reads the state, sets it, or updates a part of it.
#[test]
fn functions_share_a_state() {
    let _alone = ALONE.lock();
    let n = 300;
    let run = |device: &Device| -> Vec<Vec<f32>> {
        let state = State::new(&random(60, &[n], device).unwrap()).unwrap();
        let input = || [Input::new("x", DType::F32, n)];
        let add = compile(device, &input(), |x| {
            state.set(&state.read()?.add(&x[0])?)?;
            Ok(vec![])
        });
        // Its result is the state's memory.
        let mul = compile(device, &input(), |x| {
            state.set(&state.read()?.mul(&x[0])?)?;
            Ok(vec![state.read()?])
        });
        let (add, mul) = (add.unwrap(), mul.unwrap());
        let x = random(61, &[n], device).unwrap();
        let (mut all, mut last) = (vec![], None);
        for i in 0..60 {
            match i * 7 % 12 {
                0 => all.push(state.read().unwrap()),
                1 => state.set(&x).unwrap(),
                2 => state.slice_set(&x.narrow(0, 3, 4).unwrap(), 0, 5).unwrap(),
                3 => all.extend(mul.run(&[&x]).unwrap()),
                4 => last = mul.run(&[&x]).unwrap().pop(),
                5 => all.extend(last.take()),
                6 | 7 => drop(mul.run(&[&x]).unwrap()),
                _ => drop(add.run(&[&x]).unwrap()),
            }
        }
        all.push(state.read().unwrap());
        all.iter().map(|tensor| tensor.to_vec1().unwrap()).collect()
    };
    let want = run(&Device::Cpu);
    assert!(want.len() > 10);
    for device in devices() {
        assert_eq!(run(&device), want);
    }
}
