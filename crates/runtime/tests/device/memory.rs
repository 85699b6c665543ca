//! Buffers, uploads and downloads, with and without memory that host and device share.

use std::sync::Arc;

use tallow_ir::caps::OptionalFeature;
use tallow_runtime::vulkan::{Buffer, Context, MemoryUse};
use tallow_runtime::{Error, RuntimeOptions};

use crate::harness::*;

/// A context as it is, and one that must use staging copies.
fn contexts() -> Vec<Arc<Context>> {
    let mut staged = options();
    staged.disable.push(OptionalFeature::Unified);
    [options(), staged].iter().filter_map(context_with).collect()
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1_u32;
    (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

fn download(context: &Context, buffer: &Buffer) -> Vec<u8> {
    let mut data = vec![0; buffer.size() as usize];
    context.download(buffer, 0, &mut data).unwrap();
    data
}

#[test]
fn bytes_survive_the_round_trip() {
    for context in contexts() {
        // Longer than the staging ring, and no multiple of anything.
        for bytes in [1, 1000, (8 << 20) + 3, (40 << 20) + 5] {
            let data = noise(bytes);
            let buffer = context.buffer("data", bytes as u64, MemoryUse::Device).unwrap();
            let mut steps = Vec::new();
            context
                .upload_with_progress(&buffer, 0, &data, &mut |done, total| steps.push((done, total)))
                .unwrap();
            assert!(download(&context, &buffer) == data, "{bytes} bytes");
            assert!(steps.windows(2).all(|pair| pair[0].0 < pair[1].0), "progress rises");
            assert_eq!(steps.last(), Some(&(bytes as u64, bytes as u64)));
            assert!(bytes < 8 << 20 || steps.len() > 1, "large uploads report on the way");
        }
        let counters = context.counters();
        assert_eq!(counters.bytes_uploaded, counters.bytes_downloaded);
        assert_eq!(counters.submits > 0, !context.caps().unified_memory, "staging is used where it must be");
    }
}

/// A thread of rayon's that waits takes up other tasks: none may want a lock that it holds. The tasks come from outside
/// the pool, since its threads look for what others have left to do before they look there.
#[test]
fn uploads_may_be_tasks_of_rayon() {
    let data = Arc::new(noise(4 << 20));
    for context in contexts() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
        let (done, finished) = std::sync::mpsc::channel();
        for _ in 0..64 {
            let (context, data, done) = (context.clone(), data.clone(), done.clone());
            pool.spawn(move || {
                let buffer = context.buffer("data", data.len() as u64, MemoryUse::Device).unwrap();
                context.upload(&buffer, 0, &data).unwrap();
                done.send(download(&context, &buffer) == *data).unwrap();
            });
        }
        for _ in 0..64 {
            let same = finished.recv_timeout(std::time::Duration::from_secs(60));
            assert!(same.expect("no upload waits for its own thread"));
        }
    }
}

#[test]
fn parts_of_a_buffer_can_be_replaced() {
    for context in contexts() {
        let mut expected = noise(4096);
        let buffer = context.buffer("data", 4096, MemoryUse::Device).unwrap();
        context.upload(&buffer, 0, &expected).unwrap();
        context.upload(&buffer, 1001, &[7; 50]).unwrap();
        expected[1001..1051].fill(7);
        context.fill(&buffer, 8, 12, 0x0403_0201).unwrap();
        expected[8..20].copy_from_slice(&[1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4]);
        context.upload(&buffer, 4096, &[]).unwrap();
        assert_eq!(download(&context, &buffer), expected);
        let mut part = [0; 50];
        context.download(&buffer, 1001, &mut part).unwrap();
        assert_eq!(part, [7; 50]);
    }
}

#[test]
fn transfers_are_ordered_with_runs() {
    for context in contexts() {
        let scale = pipeline(&context, "scale", SCALE, 2, 4);
        let bytes = 4 * 1000;
        let buffers = [
            context.buffer("a", bytes, MemoryUse::Device).unwrap(),
            context.buffer("b", bytes, MemoryUse::Device).unwrap(),
        ];
        let push = 2.0_f32.to_le_bytes();
        let commands = vec![HEAD, dispatch("scale", 0, &[0, 1], &buffers, 16, &push), TAIL];
        let recording = record(&context, commands, &[scale], &buffers);
        for run in 0..10 {
            let input: Vec<f32> = (0..1000).map(|i| (i + run) as f32).collect();
            context.upload(&buffers[0], 0, bytemuck::cast_slice(&input)).unwrap();
            let handle = recording.submit().unwrap();
            // No wait between the run and the download: the queue orders them.
            let output = download(&context, &buffers[1]);
            let expected: Vec<f32> = input.iter().map(|value| value * 2.0 + 1.0).collect();
            assert_eq!(bytemuck::cast_slice::<u8, f32>(&output), expected);
            handle.wait(None).unwrap();
        }
    }
}

#[test]
fn every_use_has_memory_and_its_rules() {
    for context in contexts() {
        for memory in MemoryUse::ALL {
            let buffer = context.buffer("data", 1 << 16, memory).unwrap();
            let unreachable = memory == MemoryUse::Device && !context.caps().unified_memory;
            assert_eq!(buffer.is_mapped(), !unreachable, "{memory:?}");
            assert_eq!(buffer.device_address().is_some(), context.caps().buffer_device_address);
            let data = noise(1 << 16);
            context.upload(&buffer, 0, &data).unwrap();
            assert_eq!(download(&context, &buffer), data, "{memory:?}");
            if unreachable {
                let error = buffer.write(0, &[1]).unwrap_err();
                assert_eq!(error, Error::NotMapped { name: "data".to_string() });
            } else {
                buffer.write(5, &[1, 2, 3]).unwrap();
                let mut read = [0; 4];
                buffer.read(4, &mut read).unwrap();
                assert_eq!(read, [data[4], 1, 2, 3]);
            }
        }
    }
}

#[test]
fn nothing_reaches_past_the_end() {
    for context in contexts() {
        let buffer = context.buffer("small", 16, MemoryUse::Shared).unwrap();
        for (offset, bytes) in [(16, 1), (0, 17), (u64::MAX, 1), (17, 0)] {
            let mut data = vec![0; bytes];
            let expected =
                Error::OutOfBounds { name: "small".to_string(), offset, bytes: bytes as u64, size: 16 };
            assert_eq!(buffer.write(offset, &data), Err(expected.clone()));
            assert_eq!(buffer.read(offset, &mut data), Err(expected.clone()));
            assert_eq!(context.upload(&buffer, offset, &data), Err(expected.clone()));
            assert_eq!(context.download(&buffer, offset, &mut data), Err(expected.clone()));
            assert_eq!(context.fill(&buffer, offset, bytes as u64, 0), Err(expected));
        }
        assert!(matches!(context.fill(&buffer, 2, 4, 0), Err(Error::BadBuffer { .. })));
    }
}

#[test]
fn impossible_sizes_are_errors() {
    let Some(context) = context() else { return };
    for bytes in [0, context.caps().max_allocation_bytes + 1, u64::MAX] {
        let error = context.buffer("odd", bytes, MemoryUse::Device).unwrap_err();
        assert!(matches!(&error, Error::BadBuffer { .. }), "{bytes}: {error}");
    }
}

#[test]
fn dropped_buffers_give_their_memory_back() {
    let Some(context) = context() else { return };
    let before = context.allocated_bytes();
    let buffers: Vec<_> =
        (0..20).map(|_| context.buffer("data", 1 << 20, MemoryUse::Device).unwrap()).collect();
    assert!(context.allocated_bytes() >= before + (20 << 20));
    drop(buffers);
    assert_eq!(context.allocated_bytes(), before);
}

#[test]
fn the_storage_range_can_be_lowered() {
    let lowered = RuntimeOptions { max_storage_buffer_range: Some(1 << 20), ..options() };
    let Some(context) = context_with(&lowered) else { return };
    assert_eq!(context.caps().max_storage_buffer_range, 1 << 20);
}
