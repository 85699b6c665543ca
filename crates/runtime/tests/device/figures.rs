//! Prints what transfers and replays cost: `cargo test -p tallow-runtime figures -- --ignored --nocapture`.

use std::time::Instant;

use tallow_runtime::record::{RecordOptions, RecordSpec};
use tallow_runtime::vulkan::{MemoryUse, Recording};

use crate::harness::*;

#[test]
#[ignore = "prints figures, asserts none; for a quiet machine"]
fn figures() {
    let Some(context) = context() else { return };
    eprintln!("{:#?}", context.caps());

    let bytes = 512 << 20;
    let mut data = vec![1_u8; bytes];
    let buffer = context.buffer("data", bytes as u64, MemoryUse::Device).unwrap();
    for _ in 0..3 {
        let start = Instant::now();
        context.upload(&buffer, 0, &data).unwrap();
        let upload = bytes as f64 / start.elapsed().as_secs_f64() / 1e9;
        let start = Instant::now();
        context.download(&buffer, 0, &mut data).unwrap();
        let download = bytes as f64 / start.elapsed().as_secs_f64() / 1e9;
        eprintln!("upload {upload:.1} GB/s, download {download:.1} GB/s");
    }

    let scale = pipeline(&context, "scale", SCALE, 2, 4);
    let values = vec![1.0; 1000];
    let buffers = [shared(&context, "a", &values), shared(&context, "b", &values)];
    for (dispatches, with_barriers) in [(0, false), (1, false), (200, false), (200, true)] {
        let mut commands = vec![HEAD];
        for step in 0..dispatches {
            if with_barriers && step > 0 {
                commands.push(BETWEEN);
            }
            commands.push(dispatch("scale", 0, &[0, 1], &buffers, 16, &1.0_f32.to_le_bytes()));
        }
        commands.push(TAIL);
        let spec = RecordSpec { commands };
        let pipelines = [scale.clone()];
        let options = RecordOptions::default();
        let recording = Recording::new(&context, &spec, &pipelines, &buffers, options).unwrap();
        recording.run().unwrap();
        let start = Instant::now();
        let runs = 200;
        for _ in 0..runs {
            recording.run().unwrap();
        }
        let each = start.elapsed().as_secs_f64() * 1e6 / f64::from(runs);
        eprintln!("{dispatches} dispatches, barriers {with_barriers}: {each:.1} us a run");
    }
}
