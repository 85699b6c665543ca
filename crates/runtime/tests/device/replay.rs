//! Recording once and running often.

use std::time::Duration;

use tallow_ir::caps::OptionalFeature;
use tallow_runtime::record::{BindRange, Grid, RecordCommand, RecordOptions, RecordSpec, Timing};
use tallow_runtime::vulkan::{MemoryUse, Recording};
use tallow_runtime::{Error, RuntimeOptions, Wait};

use crate::harness::*;

const COUNT_OF_VALUES: usize = 1000;
const GROUPS: u32 = 16;

fn ramp(step: f32) -> Vec<f32> {
    (0..COUNT_OF_VALUES).map(|i| i as f32 * step).collect()
}

#[test]
fn two_buffers_are_added() {
    let Some(context) = context() else { return };
    let add = pipeline(&context, "add", ADD, 3, 0);
    let buffers = [
        shared(&context, "a", &ramp(1.0)),
        shared(&context, "b", &ramp(0.5)),
        shared(&context, "c", &ramp(0.0)),
    ];
    let commands = vec![HEAD, dispatch("add", 0, &[0, 1, 2], &buffers, GROUPS, &[]), TAIL];
    let recording = record(&context, commands, &[add], &buffers);
    recording.run().unwrap();
    assert_eq!(floats(&buffers[2], COUNT_OF_VALUES), ramp(1.5));
}

#[test]
fn a_chain_runs_in_order() {
    let Some(context) = context() else { return };
    let scale = pipeline(&context, "scale", SCALE, 2, 4);
    let buffers = [shared(&context, "a", &ramp(1.0)), shared(&context, "b", &ramp(0.0))];
    let mut commands = vec![HEAD];
    let mut expected = ramp(1.0);
    for step in 0..6 {
        if step > 0 {
            commands.push(BETWEEN);
        }
        let (from, to) = (step % 2, 1 - step % 2);
        let factor = 1.0 + step as f32;
        commands.push(dispatch("scale", 0, &[from, to], &buffers, GROUPS, &factor.to_le_bytes()));
        expected.iter_mut().for_each(|value| *value = *value * factor + 1.0);
    }
    commands.push(TAIL);
    let recording = record(&context, commands, &[scale], &buffers);
    recording.run().unwrap();
    assert_eq!(floats(&buffers[0], COUNT_OF_VALUES), expected);
    let counts = recording.counts();
    assert_eq!((counts.dispatches, counts.command_buffers), (6, 1));
    assert_eq!((counts.barriers_head, counts.barriers_between, counts.barriers_tail), (1, 5, 1));
    assert_eq!(counts.descriptor_sets, 2, "equal bindings share a set");
}

#[test]
fn a_binding_sees_its_range_alone() {
    let Some(context) = context() else { return };
    let scale = pipeline(&context, "scale", SCALE, 2, 4);
    let values = vec![1.0; 1024];
    let buffers = [shared(&context, "a", &values), shared(&context, "b", &values)];
    let range = |buffer, offset, bytes| BindRange { buffer, offset, bytes };
    let command = RecordCommand::Dispatch {
        pipeline: 0,
        bindings: vec![range(0, 0, 1024), range(1, 1024, 80)],
        grid: Grid::Direct([16, 1, 1]),
        push: 2.0_f32.to_le_bytes().to_vec(),
        label: "scale".to_string(),
    };
    record(&context, vec![HEAD, command, TAIL], &[scale], &buffers).run().unwrap();
    let mut expected = values;
    expected[256..276].fill(3.0);
    assert_eq!(floats(&buffers[1], 1024), expected);
}

#[test]
fn an_indirect_grid_is_read_at_every_run() {
    let Some(context) = context() else { return };
    let count = pipeline(&context, "count", COUNT, 1, 0);
    let grid = context.buffer("grid", 64, MemoryUse::Shared).unwrap();
    let total = context.buffer("total", 4, MemoryUse::Shared).unwrap();
    let command = RecordCommand::Dispatch {
        pipeline: 0,
        bindings: vec![BindRange { buffer: 1, offset: 0, bytes: 4 }],
        grid: Grid::Indirect { buffer: 0, offset: 16 },
        push: vec![],
        label: "count".to_string(),
    };
    let recording = record(&context, vec![HEAD, command, TAIL], &[count], &[grid.clone(), total.clone()]);
    for groups in [[3_u32, 2, 1], [1, 1, 1], [0, 1, 1], [7, 5, 2]] {
        grid.write(16, bytemuck::cast_slice(&groups)).unwrap();
        total.write(0, &[0; 4]).unwrap();
        recording.run().unwrap();
        let mut counted = [0_u32];
        total.read(0, bytemuck::cast_slice_mut(&mut counted)).unwrap();
        assert_eq!(counted[0], groups.iter().product::<u32>(), "{groups:?}");
    }
    assert_eq!(recording.counts().indirect_dispatches, 1);
}

#[test]
fn a_grid_written_by_a_kernel_is_used_after_a_barrier() {
    let Some(context) = context() else { return };
    let write = "#version 450
        layout(local_size_x = 1) in;
        layout(std430, binding = 0) writeonly buffer Grid { uint grid[]; };
        void main() { grid[0] = 5; grid[1] = 2; grid[2] = 1; }";
    let pipelines = [pipeline(&context, "write", write, 1, 0), pipeline(&context, "count", COUNT, 1, 0)];
    let buffers = [
        context.buffer("grid", 16, MemoryUse::Device).unwrap(),
        context.buffer("total", 4, MemoryUse::Shared).unwrap(),
    ];
    let counted = RecordCommand::Dispatch {
        pipeline: 1,
        bindings: vec![BindRange { buffer: 1, offset: 0, bytes: 4 }],
        grid: Grid::Indirect { buffer: 0, offset: 0 },
        push: vec![],
        label: "count".to_string(),
    };
    let clear = RecordCommand::Fill { buffer: 1, offset: 0, bytes: 4, value: 100 };
    let commands = vec![HEAD, dispatch("write", 0, &[0], &buffers, 1, &[]), clear, BETWEEN, counted, TAIL];
    let recording = record(&context, commands, &pipelines, &buffers);
    for _ in 0..3 {
        recording.run().unwrap();
        let mut total = [0_u32];
        buffers[1].read(0, bytemuck::cast_slice_mut(&mut total)).unwrap();
        assert_eq!(total[0], 110);
    }
    assert_eq!(recording.counts().fills, 1);
}

#[test]
fn a_recording_is_replayed_with_changing_inputs() {
    let Some(context) = context() else { return };
    let pipelines = [pipeline(&context, "add", ADD, 3, 0), pipeline(&context, "scale", SCALE, 2, 4)];
    let buffers = [
        shared(&context, "a", &ramp(0.0)),
        shared(&context, "b", &ramp(1.0)),
        context.buffer("sum", 4 * COUNT_OF_VALUES as u64, MemoryUse::Device).unwrap(),
        shared(&context, "out", &ramp(0.0)),
    ];
    let commands = vec![
        HEAD,
        dispatch("add", 0, &[0, 1, 2], &buffers, GROUPS, &[]),
        BETWEEN,
        dispatch("scale", 1, &[2, 3], &buffers, GROUPS, &3.0_f32.to_le_bytes()),
        TAIL,
    ];
    let recording = record(&context, commands, &pipelines, &buffers);
    let before = context.counters();
    for run in 0..100 {
        let input: Vec<f32> = (0..COUNT_OF_VALUES).map(|i| (i * run) as f32).collect();
        buffers[0].write(0, bytemuck::cast_slice(&input)).unwrap();
        recording.run().unwrap();
        let expected: Vec<f32> = (0..COUNT_OF_VALUES).map(|i| (i * run + i) as f32 * 3.0 + 1.0).collect();
        assert_eq!(floats(&buffers[3], COUNT_OF_VALUES), expected, "run {run}");
    }
    let after = context.counters();
    assert_eq!((before.recordings, after.recordings), (1, 1));
    assert_eq!((before.pipelines_created, after.pipelines_created), (2, 2));
    assert_eq!((after.runs, after.submits - before.submits), (100, 100));
}

#[test]
fn state_flows_from_run_to_run() {
    let Some(context) = context() else { return };
    let count = pipeline(&context, "count", COUNT, 1, 0);
    let total = context.buffer("total", 4, MemoryUse::Shared).unwrap();
    total.write(0, &[0; 4]).unwrap();
    let buffers = [total.clone()];
    let recording =
        record(&context, vec![HEAD, dispatch("count", 0, &[0], &buffers, 7, &[]), TAIL], &[count], &buffers);
    for _ in 0..20 {
        recording.run().unwrap();
    }
    let mut counted = [0_u32];
    total.read(0, bytemuck::cast_slice_mut(&mut counted)).unwrap();
    assert_eq!(counted[0], 140);
}

#[test]
fn copies_and_fills_are_ordered_by_barriers() {
    let Some(context) = context() else { return };
    let scale = pipeline(&context, "scale", SCALE, 2, 4);
    let bytes = 4 * COUNT_OF_VALUES as u64;
    let buffers = [
        context.buffer("a", bytes, MemoryUse::Device).unwrap(),
        context.buffer("b", bytes, MemoryUse::Device).unwrap(),
        context.buffer("out", bytes, MemoryUse::Readback).unwrap(),
    ];
    let fill = RecordCommand::Fill { buffer: 0, offset: 0, bytes, value: 2.0_f32.to_bits() };
    let copy = RecordCommand::Copy { source: 1, source_offset: 0, target: 2, target_offset: 0, bytes };
    let scaled = dispatch("scale", 0, &[0, 1], &buffers, GROUPS, &10.0_f32.to_le_bytes());
    let commands = vec![HEAD, fill, BETWEEN, scaled, BETWEEN, copy, TAIL];
    let recording = record(&context, commands, &[scale], &buffers);
    for _ in 0..3 {
        recording.run().unwrap();
        assert_eq!(floats(&buffers[2], COUNT_OF_VALUES), vec![21.0; COUNT_OF_VALUES]);
    }
    assert_eq!((recording.counts().copies, recording.counts().fills), (1, 1));
}

#[test]
fn a_recording_can_be_split_into_submissions() {
    let Some(context) = context() else { return };
    let scale = pipeline(&context, "scale", SCALE, 2, 4);
    let buffers = [shared(&context, "a", &ramp(1.0)), shared(&context, "b", &ramp(0.0))];
    let mut commands = vec![HEAD];
    for step in 0..5 {
        if step > 0 {
            commands.push(BETWEEN);
        }
        let (from, to) = (step % 2, 1 - step % 2);
        commands.push(dispatch("scale", 0, &[from, to], &buffers, GROUPS, &2.0_f32.to_le_bytes()));
    }
    commands.push(TAIL);
    let spec = RecordSpec { commands };
    let pipelines = [scale];
    for (split_after, submissions) in [(None, 1), (Some(0), 5), (Some(1), 5), (Some(2), 3), (Some(9), 1)] {
        buffers[0].write(0, bytemuck::cast_slice(&ramp(1.0))).unwrap();
        let options = RecordOptions { split_after, ..RecordOptions::default() };
        let recording = Recording::new(&context, &spec, &pipelines, &buffers, options).unwrap();
        let before = context.counters().submits;
        recording.run().unwrap();
        assert_eq!(recording.counts().command_buffers, submissions, "{split_after:?}");
        assert_eq!(context.counters().submits - before, submissions as u64);
        let expected: Vec<f32> = ramp(1.0).iter().map(|value| value * 32.0 + 31.0).collect();
        assert_eq!(floats(&buffers[1], COUNT_OF_VALUES), expected, "{split_after:?}");
    }
}

#[test]
fn every_dispatch_is_timed() {
    let Some(context) = context() else { return };
    let scale = pipeline(&context, "scale", SCALE, 2, 4);
    let buffers = [shared(&context, "a", &ramp(1.0)), shared(&context, "b", &ramp(0.0))];
    let push = 1.0_f32.to_le_bytes();
    let commands = vec![
        HEAD,
        dispatch("first", 0, &[0, 1], &buffers, GROUPS, &push),
        BETWEEN,
        dispatch("second", 0, &[1, 0], &buffers, GROUPS, &push),
        TAIL,
    ];
    let spec = RecordSpec { commands };
    let options = RecordOptions { timing: Timing::Dispatches, ..RecordOptions::default() };
    let recorded = Recording::new(&context, &spec, &[scale], &buffers, options);
    if !context.caps().has(OptionalFeature::Timestamps) {
        assert!(matches!(recorded, Err(Error::NoTimings { .. })));
        return;
    }
    let recording = recorded.unwrap();
    assert!(matches!(recording.timings(), Err(Error::NoTimings { .. })), "before the first run");
    for _ in 0..3 {
        let start = std::time::Instant::now();
        recording.run().unwrap();
        let wall = start.elapsed().as_nanos() as u64;
        let timings = recording.timings().unwrap();
        assert_eq!(timings.iter().map(|(label, _)| label.as_str()).collect::<Vec<_>>(), ["first", "second"]);
        let sum: u64 = timings.iter().map(|(_, nanoseconds)| nanoseconds).sum();
        assert!(sum > 0 && sum <= wall, "{sum} of {wall} ns");
        let run = recording.run_time().unwrap();
        assert!(sum <= run && run <= wall, "{sum} of {run} of {wall} ns");
    }
}

#[test]
fn a_run_is_timed_without_timestamps_inside() {
    let Some(context) = context() else { return };
    if !context.caps().has(OptionalFeature::Timestamps) {
        return;
    }
    let scale = pipeline(&context, "scale", SCALE, 2, 4);
    let buffers = [shared(&context, "a", &ramp(1.0)), shared(&context, "b", &ramp(0.0))];
    let push = 1.0_f32.to_le_bytes();
    let fill = RecordCommand::Fill { buffer: 1, offset: 0, bytes: 16, value: 0 };
    let commands = vec![HEAD, dispatch("only", 0, &[0, 1], &buffers, GROUPS, &push), BETWEEN, fill, TAIL];
    for split_after in [None, Some(1)] {
        let options = RecordOptions { timing: Timing::Run, split_after, ..RecordOptions::default() };
        let spec = RecordSpec { commands: commands.clone() };
        let recording =
            Recording::new(&context, &spec, std::slice::from_ref(&scale), &buffers, options).unwrap();
        assert!(matches!(recording.run_time(), Err(Error::NoTimings { .. })), "before the first run");
        for _ in 0..3 {
            let start = std::time::Instant::now();
            recording.run().unwrap();
            let wall = start.elapsed().as_nanos() as u64;
            let run = recording.run_time().unwrap();
            assert!(run > 0 && run <= wall, "{run} of {wall} ns");
        }
        let error = recording.timings().unwrap_err().to_string();
        assert!(error.contains("as a whole"), "{error}");
    }
}

#[test]
fn a_recording_without_timestamps_has_no_timings() {
    let Some(context) = context() else { return };
    let recording = record(&context, vec![HEAD, TAIL], &[], &[]);
    recording.run().unwrap();
    let error = recording.timings().unwrap_err().to_string();
    assert!(error.contains("without timestamps"), "{error}");
}

/// A kernel that keeps the device busy for a while: 2^22 dependent steps in each invocation. Written out in part, since Mesa's
/// software device leaves loops after 65535 iterations, those of all loops of an invocation together.
const SLOW: &str = "#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer A { uint a[]; };
#define STEP x = x * 1664525u + 1013904223u;
#define STEPS STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP
void main() {
    uint i = gl_GlobalInvocationID.x;
    uint x = a[i];
    for (uint k = 0; k < (1u << 15); ++k) {
        STEPS STEPS STEPS STEPS STEPS STEPS STEPS STEPS
    }
    a[i] = x;
}";

#[test]
fn one_run_is_in_flight_at_a_time() {
    let Some(context) = context() else { return };
    let slow = pipeline(&context, "slow", SLOW, 1, 0);
    let buffers = [context.buffer("a", 4 * 64 * 16, MemoryUse::Device).unwrap()];
    context.fill(&buffers[0], 0, buffers[0].size(), 1).unwrap();
    let commands = vec![HEAD, dispatch("slow", 0, &[0], &buffers, 16, &[]), TAIL];
    let recording = record(&context, commands, &[slow], &buffers);
    let handle = recording.submit().unwrap();
    let second = recording.submit();
    // On a fast device the first run may be done by now; then there was nothing to refuse.
    if let Ok(second) = second {
        assert!(handle.is_done().unwrap());
        second.wait(None).unwrap();
    } else {
        assert!(matches!(second, Err(Error::Busy)));
    }
    handle.wait(None).unwrap();
    assert!(handle.is_done().unwrap());
    recording.run().unwrap();
}

#[test]
fn waiting_has_a_limit_and_the_run_goes_on() {
    for wait in [Wait::Block, Wait::Poll] {
        let Some(context) = context_with(&RuntimeOptions { wait, ..options() }) else { return };
        let slow = pipeline(&context, "slow", SLOW, 1, 0);
        let buffers = [shared(&context, "a", &[f32::from_bits(1); 64 * 16])];
        let commands = vec![HEAD, dispatch("slow", 0, &[0], &buffers, 16, &[]), TAIL];
        let recording = record(&context, commands, &[slow], &buffers);
        let handle = recording.submit().unwrap();
        let limit = Duration::from_nanos(1);
        match handle.wait(Some(limit)) {
            Err(error) => assert_eq!(error, Error::Timeout { limit }),
            Ok(()) => assert!(handle.is_done().unwrap()),
        }
        handle.wait(Some(Duration::from_secs(600))).unwrap();
        // Who came back too early would find the ones, or some of them.
        let stepped = (0..1 << 22).fold(1u32, |x, _| x.wrapping_mul(1664525).wrapping_add(1013904223));
        let found: Vec<u32> = floats(&buffers[0], 64 * 16).iter().map(|x| x.to_bits()).collect();
        assert_eq!(found, [stepped; 64 * 16], "{wait:?}");
        assert!(handle.is_done().unwrap());
    }
}

#[test]
fn a_run_outlives_everything_that_was_dropped() {
    let Some(context) = context() else { return };
    let slow = pipeline(&context, "slow", SLOW, 1, 0);
    let buffers = [context.buffer("a", 4 * 64 * 16, MemoryUse::Device).unwrap()];
    let commands = vec![HEAD, dispatch("slow", 0, &[0], &buffers, 16, &[]), TAIL];
    let recording = record(&context, commands, &[slow], &buffers);
    let handle = recording.submit().unwrap();
    drop((recording, buffers, context));
    handle.wait(None).unwrap();
    let Some(context) = crate::harness::context() else { return };
    let slow = pipeline(&context, "slow", SLOW, 1, 0);
    let buffers = [context.buffer("a", 4 * 64 * 16, MemoryUse::Device).unwrap()];
    let commands = vec![HEAD, dispatch("slow", 0, &[0], &buffers, 16, &[]), TAIL];
    // Dropped without waiting: dropping waits.
    let _ = record(&context, commands, &[slow], &buffers).submit().unwrap();
}

#[test]
fn illegal_command_lists_are_refused() {
    let Some(context) = context() else { return };
    let add = pipeline(&context, "add", ADD, 3, 0);
    let buffers = [shared(&context, "a", &ramp(1.0))];
    let spec = RecordSpec { commands: vec![HEAD, dispatch("add", 0, &[0, 0], &buffers, 1, &[])] };
    let pipelines = [add];
    let error = Recording::new(&context, &spec, &pipelines, &buffers, RecordOptions::default()).unwrap_err();
    assert!(matches!(&error, Error::BadCommand { command: 1, .. }), "{error}");
    assert!(error.to_string().contains("2 buffers bound, 3 declared"), "{error}");

    let Some(other) = crate::harness::context() else { return };
    let spec = RecordSpec { commands: vec![] };
    let error = Recording::new(&other, &spec, &pipelines, &[], RecordOptions::default()).unwrap_err();
    assert!(error.to_string().contains("another context"), "{error}");
    let error = Recording::new(&other, &spec, &[], &buffers, RecordOptions::default()).unwrap_err();
    assert!(error.to_string().contains("another context"), "{error}");
}

#[test]
fn threads_share_a_context() {
    let Some(context) = context() else { return };
    let scale = pipeline(&context, "scale", SCALE, 2, 4);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (context, scale) = (&context, scale.clone());
            scope.spawn(move || {
                let buffers = [shared(context, "a", &ramp(thread as f32)), shared(context, "b", &ramp(0.0))];
                let push = 2.0_f32.to_le_bytes();
                let commands = vec![HEAD, dispatch("scale", 0, &[0, 1], &buffers, GROUPS, &push), TAIL];
                let recording = record(context, commands, &[scale], &buffers);
                for _ in 0..25 {
                    recording.run().unwrap();
                }
                let expected: Vec<f32> = ramp(thread as f32).iter().map(|v| v * 2.0 + 1.0).collect();
                assert_eq!(floats(&buffers[1], COUNT_OF_VALUES), expected);
            });
        }
    });
}
