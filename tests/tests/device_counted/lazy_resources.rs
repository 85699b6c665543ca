//! Lazy evaluation takes no more memory and no more objects, on either side, however long it goes on.

use std::process::Command;
use std::sync::Mutex;

use allocation_counter::measure;
use tallow::{Device, Result, Tensor, eval};
use tallow_runtime::vulkan::Objects;
use tallow_tests::device::own_devices as devices;
use tallow_tests::tensors::{assert_close as close, random};

/// Held by each test: validation layers (1.3.239) crash where devices are closed while others are in use.
pub static ALONE: Mutex<()> = Mutex::new(());

/// What a device has: bytes in use, bytes cached, and its Vulkan objects.
pub type Figures = (u64, u64, Objects);

/// What it has once all is done.
pub fn figures(device: &Device) -> Figures {
    let Device::Vulkan(vulkan) = device else { panic!("{device} is no Vulkan device") };
    device.synchronize().unwrap();
    let memory = device.memory().unwrap();
    (memory.in_use, memory.cached, vulkan.objects())
}

/// What it has once all is done and what is cached is given back.
pub fn idle(device: &Device) -> Figures {
    trim(device);
    figures(device)
}

fn trim(device: &Device) {
    let Device::Vulkan(vulkan) = device else { return };
    vulkan.trim().unwrap();
}

/// Lets each command buffer of the ring come to its turn.
pub fn around_the_ring(device: &Device, mut work: impl FnMut()) {
    for _ in 0..20 {
        work();
        device.synchronize().unwrap();
    }
}

/// The size of values, and how many of them a loop computes: small ones whose appends are what costs, and large ones that
/// take memory of their own.
fn loops() -> [(usize, usize); 2] {
    let steps = if std::env::var_os("TALLOW_FULL").is_some() { 100_000 } else { 2_000 };
    [(16, steps), (400_000, steps / 10)]
}

/// `x = (x + b) / 2`, so many times, each evaluated by itself.
fn halve(x: &mut Tensor, b: &Tensor, steps: usize) {
    for _ in 0..steps {
        *x = x.add(b).unwrap().affine(0.5, 0.0).unwrap();
        eval(&[x]).unwrap();
    }
}

fn operands(device: &Device, n: usize) -> (Tensor, Tensor) {
    (random(2, &[n], device).unwrap(), random(1, &[n], device).unwrap())
}

fn distance(x: &Tensor, b: &Tensor) -> f32 {
    x.sub(b).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
}

/// A loop takes the memory of two of its values, however long it runs, and gives it back.
#[test]
fn loops_run_in_constant_memory() {
    let _alone = ALONE.lock();
    for device in devices() {
        for (n, steps) in loops() {
            // What stream, staging and programs keep is there from now on.
            for _ in 0..3 {
                let (mut x, b) = operands(&device, n);
                around_the_ring(&device, || halve(&mut x, &b, 1));
                distance(&x, &b);
            }
            let without = idle(&device);
            let (mut x, b) = operands(&device, n);
            around_the_ring(&device, || halve(&mut x, &b, 1));
            let before = figures(&device);
            // On this thread, which alone computes.
            let host = measure(|| {
                halve(&mut x, &b, steps);
                device.synchronize().unwrap();
            });
            assert_eq!(figures(&device), before, "{n} elements");
            // Vectors of the stream's ring may grow with what one submission holds.
            assert!(host.count_current < 50 && host.bytes_current < 16 << 10, "{n} elements: {host:?}");
            assert!(distance(&x, &b) < 1e-3, "it approaches b");
            drop((x, b));
            assert_eq!(idle(&device), without, "{n} elements");
        }
    }
}

/// Bytes of this process in memory.
fn resident_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<usize>().ok()? << 10)
}

/// The driver's memory of the host is constant, too: what is counted above is what Rust allocates. In a process of its own,
/// since other tests take and give back memory meanwhile.
#[test]
fn loops_do_not_grow_the_process() {
    let _alone = ALONE.lock();
    let test = "lazy_resources::the_process_of_a_loop";
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", test, "--ignored", "--nocapture"];
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "run by loops_do_not_grow_the_process"]
fn the_process_of_a_loop() {
    for device in devices() {
        for (n, steps) in loops() {
            let (mut x, b) = operands(&device, n);
            around_the_ring(&device, || halve(&mut x, &b, steps / 100));
            // Heap and validation layer take a while to find their size. A leak grows in every round.
            let (most, mut grown) = ((steps * 100).max(1 << 20), vec![]);
            while grown.len() < 4 && grown.last().is_none_or(|more| *more > most) {
                let Some(before) = resident_bytes() else { return };
                halve(&mut x, &b, steps);
                device.synchronize().unwrap();
                grown.push(resident_bytes().unwrap().saturating_sub(before));
            }
            println!("{n} elements: {grown:?} bytes more after {steps} steps each");
            assert!(grown.last() <= Some(&most), "{n} elements: {grown:?} bytes");
        }
    }
}

/// A program that allocates values, intermediate ones, scratch and uploads.
fn program(device: &Device) -> Result<Vec<f32>> {
    let x = random(21, &[65, 70], device)?;
    let w = random(22, &[70, 40], device)?;
    let y = x.matmul(&w)?.tanh()?;
    eval(&[&y])?;
    let large = random(23, &[40, 900], device)?;
    let z = tallow::nn::ops::softmax(&y.matmul(&large)?, 1)?.matmul(&large.t()?)?;
    z.sum(0)?.add(&y.max(0)?)?.to_vec1()
}

/// Wherever memory runs out, a program gives an error that says so or, with what is cached given back, the right values;
/// nothing is lost but what could not be computed, and nothing leaks.
#[test]
fn allocations_that_fail_are_errors_and_leak_nothing() {
    let _alone = ALONE.lock();
    for device in devices() {
        let Device::Vulkan(vulkan) = &device else { continue };
        let want = program(&device).unwrap();
        let tensor = random(24, &[33], &device).unwrap().affine(2.0, 1.0).unwrap();
        eval(&[&tensor]).unwrap();
        around_the_ring(&device, || drop(program(&device).unwrap()));
        let before = idle(&device);
        for count in [1, u64::MAX] {
            let mut failed = 0;
            for after in 0.. {
                trim(&device);
                vulkan.fail_allocations(Some((after, count)));
                let result = program(&device);
                vulkan.fail_allocations(None);
                match result {
                    Ok(values) => assert_eq!(values, want, "after {after} allocations"),
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.contains("out of memory for ") && text.contains(" in use"), "{text}");
                        failed += 1;
                    }
                }
                assert_eq!(idle(&device), before, "after {after} allocations");
                if after > 30 {
                    break;
                }
            }
            assert!(failed >= 5, "{failed} failures");
        }
        close(&tensor, &random(24, &[33], &Device::Cpu).unwrap().affine(2.0, 1.0).unwrap(), 1e-6);
    }
}

/// A function whose intermediate values find no memory says which budget they would fit.
#[test]
fn a_function_without_memory_names_a_budget() {
    let _alone = ALONE.lock();
    for device in devices() {
        let Device::Vulkan(vulkan) = &device else { continue };
        let inputs = [tallow::Input::new("x", tallow::DType::F32, (300, 300))];
        let function =
            tallow::compile(&device, &inputs, |x| Ok(vec![x[0].matmul(&x[0])?.matmul(&x[0])?])).unwrap();
        let x = random(26, &[300, 300], &device).unwrap();
        eval(&[&x]).unwrap();
        let mut named = 0;
        for after in 0..6 {
            trim(&device);
            vulkan.fail_allocations(Some((after, u64::MAX)));
            let result = function.run(&[&x]);
            vulkan.fail_allocations(None);
            let text = result.err().map(|error| error.to_string()).unwrap_or_default();
            if text.contains("out of memory for intermediate values") {
                assert!(
                    text.contains(" bytes are left for them") && text.contains("Remat::Budget("),
                    "{text}"
                );
                named += 1;
            }
        }
        assert!(named > 0);
        function.run(&[&x]).unwrap();
    }
}

/// Tensors are dropped while submissions that read them are under way, and their memory is taken by others meanwhile.
#[test]
fn tensors_may_be_dropped_while_they_are_read() {
    let _alone = ALONE.lock();
    let n = 50_000;
    let want = random(25, &[n], &Device::Cpu).unwrap().affine(2.0, 1.0).unwrap().sqr().unwrap();
    for device in devices() {
        let round = || {
            let y = {
                let x = random(25, &[n], &device).unwrap().affine(2.0, 1.0).unwrap();
                let y = x.sqr().unwrap();
                eval(&[&x]).unwrap();
                eval(&[&y]).unwrap();
                // `x` goes here, and nothing was waited for.
                y
            };
            let other = random(26, &[n], &device).unwrap().affine(3.0, 1.0).unwrap();
            eval(&[&other]).unwrap();
            close(&y, &want, 1e-6);
        };
        around_the_ring(&device, round);
        let before = idle(&device);
        for _ in 0..30 {
            round();
        }
        assert_eq!(idle(&device), before);
    }
}

/// One thread of 16: products and functions of its own values, of which it reads some.
fn one_thread(device: &Device, thread: u32) {
    let (x, want) = (random(thread, &[70, 90], device), random(thread, &[70, 90], &Device::Cpu));
    let (mut x, mut want) = (x.unwrap(), want.unwrap());
    for round in 0..12 {
        let f = |x: &Tensor| x.matmul(&x.t()?)?.tanh()?.matmul(x)?.affine(0.1, f64::from(round));
        x = f(&x).unwrap();
        want = f(&want).unwrap();
        if round % 3 == 0 {
            eval(&[&x]).unwrap();
        }
        if round % 4 == 3 {
            close(&x, &want, 1e-3);
        }
    }
}

/// Threads share the stream, the blocks and the plans, and leave nothing behind.
#[test]
fn threads_evaluate_at_once() {
    let _alone = ALONE.lock();
    for device in devices() {
        let eval_both = || {
            std::thread::scope(|scope| {
                for thread in 0..16u32 {
                    let device = &device;
                    scope.spawn(move || one_thread(device, thread));
                }
            });
        };
        eval_both();
        // Threads that compile the same at once each keep what they made.
        around_the_ring(&device, || eval(&[&random(1, &[9], &device).unwrap().exp().unwrap()]).unwrap());
        let before = idle(&device);
        eval_both();
        assert_eq!(idle(&device), before);
    }
}
