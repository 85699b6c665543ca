//! The validation layer hears of missing barriers, and of nothing else.

use std::sync::Arc;

use tallow_runtime::record::{RecordCommand, RecordOptions, RecordSpec};
use tallow_runtime::vulkan::{Buffer, Context, MemoryUse, Pipeline, Recording};
use tallow_runtime::{Error, RuntimeOptions};

use crate::harness::*;

fn validating() -> Option<Arc<Context>> {
    context_with(&RuntimeOptions { validate: true, ..options() })
}

struct Work {
    context: Arc<Context>,
    pipelines: [Arc<Pipeline>; 1],
    buffers: [Arc<Buffer>; 3],
}

fn work() -> Option<Work> {
    let context = validating()?;
    let pipelines = [pipeline(&context, "scale", SCALE, 2, 4)];
    let buffers = ["a", "b", "c"].map(|name| context.buffer(name, 4000, MemoryUse::Shared).unwrap());
    Some(Work { context, pipelines, buffers })
}

impl Work {
    fn scale(&self, from: usize, to: usize) -> RecordCommand {
        dispatch("scale", 0, &[from, to], &self.buffers, 16, &1.0_f32.to_le_bytes())
    }

    fn record(&self, commands: Vec<RecordCommand>) -> Result<Recording, Error> {
        let spec = RecordSpec { commands };
        Recording::new(&self.context, &spec, &self.pipelines, &self.buffers, RecordOptions::default())
    }
}

fn hazards(result: Result<impl Sized, Error>) -> String {
    match result {
        Err(Error::Validation(messages)) => messages.join("\n"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the layer reported nothing"),
    }
}

#[test]
fn with_its_barriers_a_chain_is_clean() {
    let Some(work) = work() else { return };
    let commands = vec![HEAD, work.scale(0, 1), BETWEEN, work.scale(1, 2), BETWEEN, work.scale(2, 0), TAIL];
    let recording = work.record(commands).unwrap();
    for _ in 0..20 {
        recording.run().unwrap();
    }
    assert_eq!(work.context.take_validation_errors(), Vec::<String>::new());
}

#[test]
fn a_dropped_barrier_is_a_hazard() {
    let Some(work) = work() else { return };
    // Read after write, then write after read: each must be noticed for itself.
    for (second, hazard) in [((1, 2), "READ_AFTER_WRITE"), ((2, 0), "WRITE_AFTER_READ")] {
        let commands = vec![HEAD, work.scale(0, 1), work.scale(second.0, second.1), TAIL];
        let report = hazards(work.record(commands));
        assert!(report.contains(hazard), "{report}");
        let commands = vec![HEAD, work.scale(0, 1), BETWEEN, work.scale(second.0, second.1), TAIL];
        work.record(commands).unwrap().run().unwrap();
    }
}

#[test]
fn a_dropped_head_barrier_is_a_hazard_at_the_second_submission() {
    let Some(work) = work() else { return };
    let whole = work.record(vec![HEAD, work.scale(0, 1), BETWEEN, work.scale(1, 0), TAIL]).unwrap();
    for _ in 0..3 {
        whole.run().unwrap();
    }
    // In itself each command buffer is fine; the hazard lies between two submissions.
    let headless = work.record(vec![work.scale(0, 1), BETWEEN, work.scale(1, 0), TAIL]).unwrap();
    let report = hazards(headless.run());
    assert!(report.contains("SYNC-HAZARD"), "{report}");
}

#[test]
fn split_recordings_are_clean_and_watched() {
    let Some(work) = work() else { return };
    let options = RecordOptions { split_after: Some(1), ..RecordOptions::default() };
    let record = |commands| {
        let spec = RecordSpec { commands };
        Recording::new(&work.context, &spec, &work.pipelines, &work.buffers, options)
    };
    let commands = vec![HEAD, work.scale(0, 1), BETWEEN, work.scale(1, 2), TAIL];
    let whole = record(commands).unwrap();
    for _ in 0..3 {
        whole.run().unwrap();
    }
    let broken = record(vec![HEAD, work.scale(0, 1), work.scale(1, 2), TAIL]).unwrap();
    let report = hazards(broken.run());
    assert!(report.contains("READ_AFTER_WRITE"), "{report}");
}

#[test]
fn an_error_is_reported_once() {
    let Some(work) = work() else { return };
    let commands = vec![HEAD, work.scale(0, 1), work.scale(1, 2), TAIL];
    hazards(work.record(commands));
    assert_eq!(work.context.take_validation_errors(), Vec::<String>::new());
    work.record(vec![HEAD, work.scale(0, 1), TAIL]).unwrap().run().unwrap();
}

#[test]
fn transfers_and_runs_pass_validation() {
    let Some(work) = work() else { return };
    let recording = work.record(vec![HEAD, work.scale(0, 1), TAIL]).unwrap();
    for run in 0..5 {
        work.context.fill(&work.buffers[0], 0, 4000, run).unwrap();
        recording.run().unwrap();
        work.context.fill(&work.buffers[1], 0, 4000, run).unwrap();
    }
    work.context.wait_idle().unwrap();
}
