//! The host's work at graphs of 100 to 100 000 nodes: building, passes, GLSL, planning, finding a compiled graph again.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tallow_benches::{Family, SIZES, STAGES, stages};

fn host(c: &mut Criterion) {
    for family in Family::ALL {
        for (number, stage) in STAGES.iter().enumerate() {
            let mut group = c.benchmark_group(format!("{}/{stage}", family.name()));
            group
                .sample_size(10)
                .warm_up_time(Duration::from_millis(100))
                .measurement_time(Duration::from_secs(1));
            for size in SIZES {
                group.throughput(Throughput::Elements(size as u64));
                group.bench_function(BenchmarkId::from_parameter(size), |b| {
                    b.iter_custom(|times| {
                        (0..times).map(|_| stages(family, size).expect("the graph compiles").1[number]).sum()
                    });
                });
            }
            group.finish();
        }
    }
}

criterion_group!(benches, host);
criterion_main!(benches);
