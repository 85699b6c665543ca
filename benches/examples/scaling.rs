//! Time per node of each stage of the host's work, and the exponent of the fit `time = c * nodes^e`:
//! `cargo run --release -p tallow-benches --example scaling [most nodes [family]]`.

use std::io::Write;

use tallow_benches::{Family, SIZES, STAGES, exponent, stages};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let most = std::env::args().nth(1).map_or(Ok(usize::MAX), |n| n.parse())?;
    let mut out = std::io::stdout();
    writeln!(out, "microseconds a node ({})", STAGES.join(", "))?;
    let only = std::env::args().nth(2);
    for family in Family::ALL.into_iter().filter(|f| only.as_deref().is_none_or(|only| only == f.name())) {
        let mut times = vec![];
        for size in SIZES.into_iter().filter(|s| *s <= most) {
            // The best of several for what is over soon.
            let runs = (100_000 / size).clamp(1, 20);
            let mut best: Option<(usize, [std::time::Duration; 5])> = None;
            for _ in 0..runs {
                let (nodes, took) = stages(family, size)?;
                let minima = best.map_or(took, |(_, b)| std::array::from_fn(|i| b[i].min(took[i])));
                best = Some((nodes, minima));
            }
            let Some((nodes, took)) = best else { continue };
            write!(out, "{:8} {nodes:>7} nodes", family.name())?;
            for t in took {
                write!(out, " {:>9.3}", t.as_secs_f64() * 1e6 / nodes as f64)?;
            }
            writeln!(out)?;
            times.push((nodes, took));
        }
        write!(out, "{:8} exponent     ", family.name())?;
        for stage in 0..STAGES.len() {
            let points: Vec<_> = times.iter().map(|(n, t)| (*n, t[stage])).collect();
            write!(out, " {:>9.2}", exponent(&points))?;
        }
        writeln!(out)?;
    }
    Ok(())
}
