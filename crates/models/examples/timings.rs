//! Time of each kernel of one decode step, medians over steps, with a cache of some type:
//! `TALLOW_TIMINGS=1 timings MODEL.gguf [STEPS [TYPE]]`.
#![allow(clippy::print_stdout)]

use tallow::Device;
use tallow_models::{CacheType, CacheTypes, LoadOptions, ModelFile};

fn median(mut all: Vec<u64>) -> u64 {
    all.sort_unstable();
    all[all.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: timings MODEL.gguf [STEPS [TYPE]]")?;
    let steps: u32 = std::env::args().nth(2).unwrap_or_else(|| "100".into()).parse()?;
    let kind: CacheType = std::env::args().nth(3).unwrap_or_else(|| "f16".into()).parse()?;
    let options = LoadOptions { cache: CacheTypes { keys: kind, values: kind }, ..LoadOptions::default() };
    let device = Device::best_vulkan()?;
    let mut model = ModelFile::open(path)?.load(&device, &options, &mut |_| {})?;
    model.feed(&[0, 10, 20, 30])?;
    let (mut kernels, mut totals, mut walls) = (vec![], vec![], vec![]);
    for step in 0..steps {
        let start = std::time::Instant::now();
        model.feed(&[step % 1000 + 100])?;
        walls.push(start.elapsed().as_nanos() as u64);
        let timings = model.decode().timings();
        totals.push(timings.iter().map(|(_, ns)| ns).sum::<u64>());
        kernels.push(timings);
    }
    println!("{} on {}", model.decode().graph().name(), device.name());
    let names: Vec<String> = kernels.first().into_iter().flatten().map(|(n, _)| n.clone()).collect();
    for (i, name) in names.iter().enumerate() {
        let ns = median(kernels.iter().map(|k| k[i].1).collect());
        println!("{:>8.2} us  {name}", ns as f64 / 1e3);
    }
    println!("{:>8.2} us  sum of kernels", median(totals) as f64 / 1e3);
    println!("{:>8.2} us  wall of a step with read-back", median(walls) as f64 / 1e3);
    Ok(())
}
