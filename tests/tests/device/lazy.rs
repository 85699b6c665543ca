//! Programs of lazy tensors: values stay on the device, and only what the host reads is moved.

use tallow::{DType, Device, Result, Tensor, eval};
use tallow_tests::device::own_devices as devices;
use tallow_tests::tensors::{assert_close as close, random};

/// Bytes uploaded and downloaded by `work`.
fn moved(device: &Device, work: impl FnOnce() -> Result<()>) -> (u64, u64) {
    let Device::Vulkan(vulkan) = device else { panic!("{device} is no Vulkan device") };
    let before = vulkan.bytes_moved();
    work().unwrap();
    let after = vulkan.bytes_moved();
    (after.0 - before.0, after.1 - before.1)
}

/// `x = relu(x w)`, forced each time.
fn products(device: &Device, steps: usize) -> Result<Tensor> {
    let n = 96;
    let mut x = random(1, &[n, n], device)?.to_dtype(DType::F16)?;
    let scale = (2.0 * 3.0 / n as f64).sqrt();
    let w = random(2, &[n, n], device)?.affine(scale, 0.0)?.to_dtype(DType::F16)?;
    for _ in 0..steps {
        x = x.matmul(&w)?.relu()?;
        eval(&[&x])?;
    }
    Ok(x)
}

/// `y = tanh(y q + 1)`, forced each time.
fn chain(device: &Device, steps: usize) -> Result<Tensor> {
    let shape = [129, 257];
    let (mut y, q) = (random(3, &shape, device)?, random(4, &shape, device)?);
    for _ in 0..steps {
        y = y.mul(&q)?.affine(1.0, 1.0)?.tanh()?;
        eval(&[&y])?;
    }
    Ok(y)
}

/// One step of a perceptron of two layers by hand: new weights, and the loss.
fn step(w: &[Tensor; 2], x: &Tensor, target: &Tensor) -> Result<([Tensor; 2], Tensor)> {
    let hidden = x.matmul(&w[0])?.relu()?;
    let logits = hidden.matmul(&w[1])?;
    let p = tallow::nn::ops::softmax(&logits, 1)?;
    let loss = target.mul(&p.log()?)?.sum_all()?.affine(-1.0 / 16.0, 0.0)?;
    let d_logits = p.sub(target)?.affine(1.0 / 16.0, 0.0)?;
    let d_w1 = hidden.t()?.matmul(&d_logits)?;
    let d_hidden = d_logits.matmul(&w[1].t()?)?.mul(&hidden.gt(0f32)?.to_dtype(DType::F32)?)?;
    let d_w0 = x.t()?.matmul(&d_hidden)?;
    let update = |w: &Tensor, d: &Tensor| w.sub(&d.affine(0.1, 0.0)?);
    let updated = [update(&w[0], &d_w0)?, update(&w[1], &d_w1)?];
    eval(&[&updated[0], &updated[1], &loss])?;
    Ok((updated, loss))
}

fn perceptron(device: &Device, steps: usize) -> Result<Tensor> {
    let x = random(5, &[16, 50], device)?;
    let classes: Vec<u32> = (0..16).map(|i| i * 7 % 10).collect();
    let target = Tensor::from_vec(classes, 16, device)?.one_hot(10)?;
    let mut w = [random(6, &[50, 33], device)?.affine(0.1, 0.0)?, random(7, &[33, 10], device)?];
    let mut loss = Tensor::zeros((), DType::F32, device)?;
    for _ in 0..steps {
        (w, loss) = step(&w, &x, &target)?;
    }
    Ok(loss)
}

trait OneHot {
    fn one_hot(&self, classes: u32) -> Result<Tensor>;
}

impl OneHot for Tensor {
    fn one_hot(&self, classes: u32) -> Result<Tensor> {
        let all = Tensor::arange(0u32, classes, self.device())?.unsqueeze(0)?;
        self.unsqueeze(1)?.broadcast_eq(&all)?.to_dtype(DType::F32)
    }
}

#[test]
fn loops_compute_what_the_interpreter_does() {
    for device in devices() {
        close(&products(&device, 4).unwrap(), &products(&Device::Cpu, 4).unwrap(), 0.02);
        close(&chain(&device, 5).unwrap(), &chain(&Device::Cpu, 5).unwrap(), 1e-4);
        close(&perceptron(&device, 5).unwrap(), &perceptron(&Device::Cpu, 5).unwrap(), 1e-3);
    }
}

/// Operands are uploaded once, results are read once, and nothing else crosses the bus.
#[test]
fn loops_move_only_what_is_read() {
    for device in devices() {
        let (n, x) = (96, 4);
        let (up, down) = moved(&device, || products(&device, 20).map(drop));
        assert_eq!((up, down), (2 * n * n * x, 0), "operands are uploaded in f32, nothing is read");
        let (up, down) = moved(&device, || chain(&device, 20).map(drop));
        assert_eq!((up, down), (2 * 129 * 257 * 4, 0));
        let (up, down) = moved(&device, || {
            let loss = perceptron(&device, 20)?.to_scalar::<f32>()?;
            assert!(loss.is_finite());
            Ok(())
        });
        assert_eq!((up, down), ((16 * 50 + 16 + 10 + 50 * 33 + 33 * 10) * 4, 4));
        let p = random(8, &[100, 300], &device).unwrap();
        let q = random(9, &[100, 300], &device).unwrap();
        eval(&[&p.mul(&q).unwrap()]).unwrap();
        let means = || (0..10).try_for_each(|_| p.mul(&q)?.tanh()?.mean_all()?.to_scalar::<f32>().map(drop));
        assert_eq!(moved(&device, means), (0, 40));
    }
}

/// Values that are read stay readable, whatever was computed, dropped and uploaded meanwhile.
#[test]
fn blocks_are_used_again_in_order() {
    for device in devices() {
        let mut results = vec![];
        for round in 0u32..40 {
            // Small, at the border of what goes with the commands, and larger.
            for n in [1usize, 77, 16_384, 16_385, 50_000] {
                let x = random(round, &[n], &device).unwrap();
                let y = x.affine(2.0, f64::from(round)).unwrap();
                let z = y.mul(&x).unwrap().sum_all().unwrap();
                eval(&[&y, &z]).unwrap();
                if round % 5 == 0 {
                    results.push((round, n, y));
                }
            }
            if round % 13 == 0 {
                device.synchronize().unwrap();
            }
        }
        for (round, n, y) in results {
            let want = random(round, &[n], &Device::Cpu).unwrap().affine(2.0, f64::from(round)).unwrap();
            close(&y, &want, 1e-6);
        }
    }
}

/// Blocks rounded on the device are operands of later plans, where they lie.
#[test]
fn quantized_blocks_stay_on_the_device() {
    for device in devices() {
        let x = random(3, &[8, 64], &device).unwrap();
        let w = random(4, &[32, 64], &device).unwrap();
        let blocks = w.affine(2.0, 0.0).unwrap().quantize(tallow::Format::Q8_0).unwrap();
        eval(&[&blocks, &x.affine(2.0, 0.0).unwrap()]).unwrap();
        let (up, down) = moved(&device, || {
            eval(&[&x.matmul(&blocks.dequantize()?.t()?)?])?;
            device.synchronize()
        });
        assert_eq!((up, down), (0, 0));
        let want = random(4, &[32, 64], &Device::Cpu)
            .unwrap()
            .affine(2.0, 0.0)
            .unwrap()
            .quantize(tallow::Format::Q8_0)
            .unwrap();
        close(&blocks.dequantize().unwrap(), &want.dequantize().unwrap(), 0.01);
    }
}

/// A constant that is another one each time is given to one program; the first value has a program of its own.
#[test]
fn constants_that_change_compile_once() {
    for device in devices().into_iter().chain([Device::Cpu]) {
        let x = random(11, &[7, 33], &device).unwrap();
        let pipelines = |device: &Device| match device {
            Device::Vulkan(vulkan) => vulkan.work_done().1,
            Device::Cpu => 0,
        };
        let mut before = 0;
        let want = random(11, &[7, 33], &Device::Cpu).unwrap().to_flat_vec::<f32>().unwrap();
        for step in 0u16..200 {
            // Not 1 or 0, which `affine` itself leaves out.
            let rate = 1.005 - f64::from(step) / 100.0;
            let updated = x.affine(rate, 0.25).unwrap().tanh().unwrap().affine(2.0, -rate).unwrap();
            let got = updated.to_flat_vec::<f32>().unwrap();
            for (got, x) in got.iter().zip(&want) {
                let want = (x * rate as f32 + 0.25).tanh() * 2.0 - rate as f32;
                assert!((got - want).abs() < 1e-5, "{rate}: {got}, not {want}");
            }
            if step == 1 {
                before = pipelines(&device);
            }
        }
        assert_eq!(pipelines(&device), before, "the first two steps compile all there is");
    }
}

/// A function takes and gives tensors on the device, whatever their extents, and computes what it captures once.
#[test]
fn functions_take_and_give_tensors_on_the_device() {
    use tallow::{Input, Symbol, compile};
    for device in devices() {
        let w = random(31, &[40, 40], &device).unwrap();
        let rows = Symbol::new("rows", 100);
        let build = |x: &[Tensor], w: &Tensor| {
            // Of the run's extents, although of no input.
            let ones = Tensor::ones((Symbol::new("rows", 100), 40), DType::F32, w.device())?;
            let captured = w.matmul(w)?.tanh()?.t()?;
            let y = x[0]
                .matmul(&captured)?
                .add(&ones.mul(&w.narrow(0, 0, 1)?.broadcast_as(ones.sym_dims())?)?)?;
            Ok(vec![y.tanh()?, y.sum(1)?])
        };
        let inputs = [Input::new("x", DType::F32, (rows, 40))];
        let f = compile(&device, &inputs, |x| build(x, &w)).unwrap();
        let text = f.graph().to_string();
        assert_eq!(text.matches("matmul").count(), 1, "w w is computed once:\n{text}");
        let cpu = w.to_device(&Device::Cpu).unwrap();
        let on_cpu = compile(&Device::Cpu, &inputs, |x| build(x, &cpu)).unwrap();
        let mut x = random(32, &[100, 40], &device).unwrap();
        let mut want = random(32, &[100, 40], &Device::Cpu).unwrap();
        eval(&[&x.affine(2.0, 0.0).unwrap()]).unwrap();
        let (mut sum, mut want_sum) = (x.sum(1).unwrap(), want.sum(1).unwrap());
        let (up, down) = moved(&device, || {
            for rows in [100usize, 77, 31, 1] {
                let out = f.run(&[&x.narrow(0, 0, rows)?])?;
                (x, sum) = (out[0].clone(), out[1].clone());
            }
            device.synchronize()
        });
        assert_eq!((up, down), (0, 0));
        for rows in [100usize, 77, 31, 1] {
            let out = on_cpu.run(&[&want.narrow(0, 0, rows).unwrap()]).unwrap();
            (want, want_sum) = (out[0].clone(), out[1].clone());
        }
        close(&x, &want, 1e-3);
        close(&sum, &want_sum, 1e-3);
    }
}
