//! Runs of a function that draws random numbers differ in two numbers that the host writes, and in nothing else.

use allocation_counter::measure;
use tallow::{DType, Device, Function, Input, Tensor, compile, eval, nn};
use tallow_tests::device::own_devices as devices;

use crate::lazy_resources::{ALONE, around_the_ring, figures};

const ROWS: usize = 37;
const COLUMNS: usize = 301;

fn dropped_sums(device: &Device) -> Function {
    let input = Input::new("x", DType::F32, (ROWS, COLUMNS));
    let function = compile(device, &[input], |x| {
        let hidden = nn::Dropout::new(0.5).forward(&x[0], true)?;
        Ok(vec![nn::dropout(&hidden, 0.25)?.sum(1)?])
    });
    function.unwrap()
}

#[test]
fn a_run_that_draws_moves_records_and_takes_nothing() {
    let _alone = ALONE.lock();
    for device in devices() {
        let Device::Vulkan(vulkan) = &device else { panic!("{device} is no Vulkan device") };
        let function = dropped_sums(&device);
        let x = Tensor::ones((ROWS, COLUMNS), DType::F32, &device).unwrap();
        eval(&[&x]).unwrap();
        let read = || function.run(&[&x]).unwrap()[0].to_vec1::<f32>().unwrap();
        let mut before = read();
        around_the_ring(&device, || _ = read());
        let (moved, work, had) = (vulkan.bytes_moved(), vulkan.work_done(), figures(&device));
        for _ in 0..5 {
            let sums = read();
            assert_ne!(sums, before);
            before = sums;
        }
        assert_eq!(vulkan.bytes_moved(), (moved.0, moved.1 + 5 * 4 * ROWS as u64));
        assert_eq!((vulkan.work_done(), figures(&device)), (work, had));

        // The recorded form, whose runs allocate nothing on the host either.
        let executable = function.executable().unwrap();
        let bytes = vec![0u8; 4 * ROWS * COLUMNS];
        let run = || drop(executable.run(&[], &[("x", &bytes)]).unwrap());
        (0..3).for_each(|_| run());
        let (work, had) = (vulkan.work_done(), figures(&device));
        let host = measure(|| (0..5).for_each(|_| run()));
        assert_eq!(host.count_total, 0, "{host:?}");
        assert_eq!((vulkan.work_done(), figures(&device)), (work, had));
    }
}
