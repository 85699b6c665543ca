//! States: tensors that change, in place where nobody holds the old value.

use tallow::{DType, Device, Dim, Input, Result, State, Symbol, Tensor, compile, eval};
use tallow_tests::device::own_devices as devices;
use tallow_tests::rng::Rng;

/// The devices, and the interpreter.
fn all_devices() -> Vec<Device> {
    [vec![Device::Cpu], devices()].concat()
}

fn numbers(rng: &mut Rng, count: usize) -> Vec<u32> {
    (0..count).map(|_| rng.below(1 << 20) as u32).collect()
}

/// What a state must hold, and what was read of it.
struct Model {
    rows: usize,
    columns: usize,
    data: Vec<u32>,
    /// Values read earlier, and what they were then.
    held: Vec<(Tensor, Vec<u32>)>,
}

impl Model {
    fn write(&mut self, row: usize, values: &[u32]) {
        let start = row * self.columns;
        self.data[start..start + values.len()].copy_from_slice(values);
    }

    /// Everything that was read is what it was.
    fn check(&self, state: &State, what: &str) {
        for (at, (tensor, expected)) in self.held.iter().enumerate() {
            assert_eq!(&tensor.to_flat_vec::<u32>().unwrap(), expected, "{what}: value {at} changed");
        }
        let now = state.read().unwrap().to_flat_vec::<u32>().unwrap();
        assert_eq!(now, self.data, "{what}: the state");
    }
}

/// A random step on a state and its model; returns what it did.
fn step(rng: &mut Rng, state: &State, model: &mut Model, device: &Device) -> Result<String> {
    let (rows, columns) = (model.rows, model.columns);
    Ok(match rng.below(11) {
        0 | 1 => {
            let count = rng.between(1, rows as i64) as usize;
            let row = rng.below(rows - count + 1);
            let values = numbers(rng, count * columns);
            let src = Tensor::from_vec(values.clone(), (count, columns), device)?;
            state.slice_set(&src, 0, row)?;
            model.write(row, &values);
            format!("write {count} rows at {row}")
        }
        2 => {
            // Of the state's own value: read and written by one evaluation.
            let row = rng.below(rows);
            let from = rng.below(rows);
            let src = (state.read()?.narrow(0, from, 1)? + 1.0)?;
            state.slice_set(&src, 0, row)?;
            let values: Vec<u32> =
                model.data[from * columns..(from + 1) * columns].iter().map(|v| v.wrapping_add(1)).collect();
            model.write(row, &values);
            format!("row {row} from row {from}")
        }
        3 => {
            state.set(&(state.read()? * 3.0)?)?;
            model.data.iter_mut().for_each(|v| *v = v.wrapping_mul(3));
            "triple".into()
        }
        4 => {
            model.held.push((state.read()?, model.data.clone()));
            "read and hold".into()
        }
        5 => {
            // Not computed until it is compared, perhaps long after updates.
            let sum: Vec<u32> = model.data.iter().map(|v| v.wrapping_add(7)).collect();
            model.held.push(((state.read()? + 7.0)?, sum));
            "hold an expression".into()
        }
        6 if !model.held.is_empty() => {
            let at = rng.below(model.held.len());
            model.held.swap_remove(at);
            format!("drop {at}")
        }
        7 | 8 => {
            // Each place once, some beyond the end and, where the type has them, below 0.
            let count = rng.between(1, rows as i64) as usize;
            let mut places: Vec<i64> =
                rng.permutation(rows + 3)[..count].iter().map(|at| *at as i64).collect();
            let below = rng.chance(50);
            if below {
                places[0] = -1 - rng.below(5) as i64;
            }
            let values = numbers(rng, count * columns);
            let src = Tensor::from_vec(values.clone(), (count, columns), device)?;
            let indices: Vec<i32> = places.iter().map(|at| *at as i32).collect();
            let indices = Tensor::from_vec(indices, count, device)?;
            let indices = if below { indices } else { indices.to_dtype(DType::U32)? };
            state.index_set(&indices, &src, 0)?;
            for (place, values) in places.iter().zip(values.chunks(columns)) {
                if (0..rows as i64).contains(place) {
                    model.write(*place as usize, values);
                }
            }
            format!("write rows at {places:?}")
        }
        9 => {
            eval(&[&state.read()?])?;
            "evaluate".into()
        }
        _ => {
            let held: Vec<&Tensor> = model.held.iter().map(|(tensor, _)| tensor).take(2).collect();
            eval(&held)?;
            "evaluate what is held".into()
        }
    })
}

#[test]
fn what_was_read_does_not_change() {
    for device in all_devices() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let (rows, columns) = (rng.between(1, 9) as usize, *rng.pick(&[1, 3, 16, 129, 4099]));
            let data = numbers(&mut rng, rows * columns);
            let first = Tensor::from_vec(data.clone(), (rows, columns), &device).unwrap();
            let state = State::new(&first).unwrap();
            drop(first);
            let mut model = Model { rows, columns, data, held: vec![] };
            for number in 0..25 {
                let did = step(&mut rng, &state, &mut model, &device).unwrap();
                if rng.chance(20) {
                    model.check(&state, &format!("{device}, seed {seed}, step {number}, {did}"));
                }
            }
            model.check(&state, &format!("{device}, seed {seed}, at the end"));
        }
    }
}

/// What several kernels of one plan read is overwritten by the last of them alone, if at all.
#[test]
fn what_other_kernels_read_is_not_overwritten() {
    for device in devices() {
        let dims = [96, 64];
        let values: Vec<f32> = (0..dims[0] * dims[1]).map(|i| (i % 89) as f32 / 89.0).collect();
        let made = |device: &Device| Tensor::from_vec(values.clone(), &dims[..], device).unwrap();
        let all = |x: &Tensor| -> Result<Vec<Tensor>> {
            // The product reads x after the scan, and when the map may be done.
            let first = (x * 3.0)?.tanh()?;
            let sums = x.cumsum(1)?;
            let product = x.t()?.matmul(&sums)?;
            Ok(vec![first, product, sums])
        };
        let x = made(&device);
        eval(&[&(&x + 0.0).unwrap()]).unwrap();
        let results = all(&x).unwrap();
        drop(x);
        eval(&results.iter().collect::<Vec<_>>()).unwrap();
        for (at, (got, want)) in results.iter().zip(all(&made(&Device::Cpu)).unwrap()).enumerate() {
            let got = got.to_device(&Device::Cpu).unwrap();
            let apart = (got - want).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(apart < 1e-2, "{device}: result {at} is off by {apart}");
        }
    }
}

/// A running mean and a table of rows, read and updated by a compiled function at a position that each run gives.
#[test]
fn functions_update_states() {
    let pos = || Symbol::new("pos", 7);
    for device in all_devices() {
        let ring = State::zeros((3, 5), DType::F32, &device).unwrap();
        let places = Input::new("places", DType::U32, 1);
        let write = compile(&device, &[Input::new("row", DType::F32, (1, 5)), places], |x| {
            ring.index_set(&x[1], &(&x[0] * 2.0)?, 0)?;
            Ok(vec![ring.read()?.sum(0)?])
        })
        .unwrap();
        for at in 0..5u32 {
            let row = Tensor::full(at as f32, (1, 5), &device).unwrap();
            let place = Tensor::new([at % 4], &device).unwrap();
            let sum = write.run(&[&row, &place]).unwrap().remove(0).to_vec1::<f32>().unwrap();
            // 0, 1 and 2, of which the first is replaced by 4; place 3 is beyond the end.
            assert_eq!(sum[4], [0.0, 2.0, 6.0, 6.0, 14.0][at as usize], "{device}");
        }
        let table = State::zeros((8, 5), DType::F32, &device).unwrap();
        let mean = State::zeros(5, DType::F32, &device).unwrap();
        let f = compile(&device, &[Input::new("row", DType::F32, (1, 5))], |x| {
            table.slice_set(&x[0], 0, pos())?;
            let known = table.read()?.narrow(0, 0, &Dim::from(pos()) + &Dim::one())?;
            let old = mean.read()?;
            mean.set(&((old * 0.5)? + (x[0].flatten_all()? * 0.5)?)?)?;
            Ok(vec![known.sum(0)?, mean.read()?])
        })
        .unwrap();
        let mut expected = [0f32; 5];
        let before = mean.read().unwrap();
        for at in 0..6 {
            let row: Vec<f32> = (0..5).map(|i| (at * 5 + i) as f32).collect();
            let x = Tensor::from_vec(row.clone(), (1, 5), &device).unwrap();
            let out = f.run_at(&[("pos", at)], &[&x]).unwrap();
            let sums: Vec<f32> = (0..5).map(|i| (0..=at).map(|a| (a * 5 + i) as f32).sum()).collect();
            assert_eq!(out[0].to_vec1::<f32>().unwrap(), sums, "{device}");
            expected.iter_mut().zip(&row).for_each(|(mean, x)| *mean = *mean * 0.5 + x * 0.5);
            assert_eq!(out[1].to_vec1::<f32>().unwrap(), expected, "{device}");
        }
        // What was read, before or as a result, stays; the state goes on outside of the function.
        assert_eq!(before.to_vec1::<f32>().unwrap(), [0.0; 5]);
        table.slice_set(&Tensor::ones((2, 5), DType::F32, &device).unwrap(), 0, 6).unwrap();
        let all = table.read().unwrap().to_vec2::<f32>().unwrap();
        assert_eq!((all[5][4], all[6][0], all[7][4]), (29.0, 1.0, 1.0));
        assert!(f.executable().is_err());
    }
}

/// Updates whose source is a view of the state itself.
#[test]
fn functions_move_rows_within_a_state() {
    for device in all_devices() {
        let rows: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let state = State::new(&Tensor::from_vec(rows, (4, 3), &device).unwrap()).unwrap();
        let unchanged = State::new(&Tensor::ones(3, DType::F32, &device).unwrap()).unwrap();
        let f = compile(&device, &[], |_| {
            unchanged.set(&unchanged.read()?)?;
            // Rows overlap those that are read.
            state.slice_set(&state.read()?.narrow(0, 1, 3)?, 0, 0)?;
            state.set(&state.read()?.flip(1)?)?;
            Ok(vec![state.read()?.sum_all()?, unchanged.read()?])
        })
        .unwrap();
        let out = f.run(&[]).unwrap();
        assert_eq!(out[0].to_scalar::<f32>().unwrap(), (3..12).sum::<i32>() as f32 + 30.0, "{device}");
        let rows = state.read().unwrap().to_vec2::<f32>().unwrap();
        let expected = [[5.0, 4.0, 3.0], [8.0, 7.0, 6.0], [11.0, 10.0, 9.0], [11.0, 10.0, 9.0]];
        assert_eq!(rows, expected, "{device}");
        assert_eq!(out[1].to_vec1::<f32>().unwrap(), [1.0; 3]);
    }
}

#[test]
fn misuse_is_an_error() {
    let device = Device::Cpu;
    let state = State::zeros((4, 3), DType::F32, &device).unwrap();
    let rows = |count| Tensor::zeros((count, 3), DType::F32, &device).unwrap();
    assert!(state.slice_set(&rows(2), 0, 3).is_err(), "beyond the end");
    assert!(state.slice_set(&rows(1), 1, 0).is_err(), "another extent");
    assert!(state.slice_set(&rows(1).to_dtype(DType::F16).unwrap(), 0, 0).is_err(), "another type");
    assert!(state.slice_set(&rows(1), 0, Symbol::new("pos", 3)).is_err(), "a symbol outside of a function");
    assert!(state.set(&rows(3)).is_err(), "another shape");
    let at = |places: &[u32]| Tensor::new(places, &device).unwrap();
    assert!(state.index_set(&at(&[1]), &rows(2), 0).is_err(), "fewer places than rows");
    assert!(
        state.index_set(&at(&[1, 2]).to_dtype(DType::F32).unwrap(), &rows(2), 0).is_err(),
        "places of floats"
    );
    assert_eq!(state.read().unwrap().to_vec2::<f32>().unwrap(), vec![vec![0.0; 3]; 4]);
    let old = compile(&device, &[Input::new("x", DType::F32, (1, 3))], |x| {
        let old = state.read()?;
        state.slice_set(&x[0], 0, 0)?;
        Ok(vec![old])
    });
    assert!(old.unwrap_err().to_string().contains("before"), "what an update overwrites is no result");
    let both = compile(&device, &[Input::new("x", DType::F32, (1, 3))], |x| {
        let old = state.read()?;
        state.slice_set(&x[0], 0, 0)?;
        Ok(vec![(state.read()? - old)?])
    });
    assert!(both.is_err(), "old and new at once");
    let mut leaked = None;
    let f = compile(&device, &[], |_| {
        leaked = Some(state.read()?);
        Ok(vec![state.read()?.sum_all()?])
    });
    assert!(f.is_ok());
    assert!(leaked.unwrap().to_vec2::<f32>().is_err(), "what a state holds in a run has no value outside");
    if let Some(vulkan) = crate::harness::device() {
        assert!(state.set(&Tensor::zeros((4, 3), DType::F32, &vulkan).unwrap()).is_err(), "another device");
    }
}
