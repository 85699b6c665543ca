//! Blocks that the device rearranges: the bytes that the CPU's rearranging gives, and back again the file's.

use std::sync::Arc;

use tallow_ir::caps::OptionalFeature;
use tallow_ir::{DType, TensorType};
use tallow_quant::{Format, codebooks, repack, repacked_bytes};
use tallow_runtime::executable::{DeviceState, DeviceWeight};
use tallow_runtime::vulkan::{Context, MemoryUse};
use tallow_runtime::{Error, RuntimeOptions};

use crate::harness::*;

/// Contexts with memory that host and device share, and without; each with this limit of a binding, if there is one.
fn contexts(limit: Option<u64>) -> Vec<Arc<Context>> {
    let shared = RuntimeOptions { max_storage_buffer_range: limit, ..options() };
    let mut apart = shared.clone();
    apart.disable.push(OptionalFeature::Unified);
    [shared, apart].iter().filter_map(context_with).collect()
}

/// Bytes that differ from their neighbours in blocks and planes.
fn noise(bytes: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

/// Uploads blocks over what was there before, and compares every byte with the CPU's.
fn check(context: &Arc<Context>, format: Format, blocks: usize) {
    let spec = format.spec();
    let file = noise(blocks * spec.block_bytes, 1 + blocks as u32);
    let expected = repack(format, &file).unwrap();
    // Bytes behind the planes, which must stay.
    let size = expected.len() + 64;
    let buffer = context.buffer("planes", size as u64, MemoryUse::Device).unwrap();
    context.fill(&buffer, 0, size as u64, 0xaaaa_aaaa).unwrap();
    let mut steps = vec![];
    context.upload_blocks(&buffer, format, &file, &mut |done, total| steps.push((done, total))).unwrap();
    let mut found = vec![0; size];
    context.download(&buffer, 0, &mut found).unwrap();
    let wrong = (0..expected.len()).find(|i| expected[*i] != found[*i]);
    assert_eq!(wrong, None, "{format}, {blocks} blocks: the first wrong byte");
    assert!(
        found[expected.len()..].iter().all(|byte| *byte == 0xaa),
        "{format}, {blocks} blocks: past the end"
    );
    assert!(steps.windows(2).all(|pair| pair[0].0 < pair[1].0), "progress rises");
    assert_eq!(steps.last().copied(), (blocks > 0).then_some((file.len() as u64, file.len() as u64)));
}

#[test]
fn the_device_rearranges_blocks_as_the_host_does() {
    for context in contexts(None) {
        for &format in Format::ALL {
            for blocks in [0, 1, 2, 3, 5, 15, 16, 17, 33, 129, 1000] {
                check(&context, format, blocks);
            }
        }
    }
}

/// Weights of some MiB, with bindings of at most 1 MiB: several runs, the last of which is no whole one; with bindings of
/// 8 KiB, so that every run is short; and of 256 bytes, which is too little for the kernel.
#[test]
fn adjacent_groups_of_blocks_are_contiguous() {
    for (limit, bytes) in [(1 << 20, (5 << 19) + 1), (8192, 100_000), (256, 10_000)] {
        for context in contexts(Some(limit)) {
            for &format in Format::ALL {
                check(&context, format, bytes / format.block_bytes() + 1);
            }
        }
    }
}

/// More than the ring holds at once, without a limit of the test's own.
#[test]
fn weights_larger_than_the_ring_are_rearranged() {
    for context in contexts(None) {
        for format in [Format::Q4_0, Format::Q6_K, Format::MXFP4] {
            check(&context, format, (40 << 20) / format.block_bytes() + 7);
        }
    }
}

#[test]
fn weights_and_states_give_back_the_files_bytes() {
    for context in contexts(Some(1 << 20)) {
        for &format in Format::ALL {
            let shape = [37, 3 * format.block_elements()];
            let ty = TensorType::new(DType::Block(format), shape);
            let file = noise(37 * 3 * format.block_bytes(), 9);
            let weight = DeviceWeight::upload(&context, "w", &ty, &file, &mut |_, _| {}).unwrap();
            assert_eq!(weight.read(&context).unwrap(), file, "{format}");
            let elements = shape.iter().product();
            assert_eq!(weight.bytes(), repacked_bytes(format, elements) as u64, "{format}");
            let state = DeviceState::zeroed(&context, "s", &ty).unwrap();
            assert!(state.read(&context).unwrap().iter().all(|byte| *byte == 0), "{format}");
            state.write(&context, &file).unwrap();
            assert_eq!(state.read(&context).unwrap(), file, "{format}");
            let short = DeviceWeight::upload(&context, "w", &ty, &file[1..], &mut |_, _| {});
            assert!(short.unwrap_err().to_string().contains("bytes for"), "{format}");
        }
        // What is of no device is held once for all weights, and is small.
        assert!(codebooks().len() <= 16 << 10);
    }
}

/// The memory for a file's blocks is bounded, and on the device it is gone when the weight is there.
#[test]
fn blocks_leave_no_memory_behind() {
    for context in contexts(None) {
        let format = Format::Q4_0;
        let file = noise((24 << 20) / 18 * 18, 3);
        let planes = repacked_bytes(format, file.len() / 18 * 32) as u64;
        let upload = || {
            let buffer = context.buffer("planes", planes, MemoryUse::Device).unwrap();
            let before = context.allocated_bytes();
            let mut most = 0;
            context
                .upload_blocks(&buffer, format, &file, &mut |_, _| most = most.max(context.allocated_bytes()))
                .unwrap();
            (before, most, context.allocated_bytes())
        };
        // The ring of the host's buffers is made once and kept.
        let (before, most, _) = upload();
        assert!(most <= before + (5 << 23), "{before} became {most}");
        let (before, most, after) = upload();
        assert!(after == before && most <= before + (1 << 23), "{before} became {most}, then {after}");
        // The ring is all that is left, until it is given back; the next upload makes it again.
        assert!(context.allocated_bytes() > 0);
        context.release_staging();
        assert_eq!(context.allocated_bytes(), 0);
        upload();
    }
}

#[test]
fn what_is_no_blocks_or_does_not_fit_is_refused() {
    for context in contexts(None) {
        let buffer = context.buffer("small", 64, MemoryUse::Device).unwrap();
        let upload =
            |bytes: usize| context.upload_blocks(&buffer, Format::Q4_0, &vec![0; bytes], &mut |_, _| {});
        assert!(matches!(upload(19), Err(Error::BadBuffer { .. })));
        assert!(matches!(upload(4 * 18), Err(Error::OutOfBounds { .. })));
        assert_eq!(upload(3 * 18), Ok(()));
    }
}

/// As uploads of bytes may ([`crate::memory`]): the first of them makes the kernel, with rayon.
#[test]
fn uploads_of_blocks_may_be_tasks_of_rayon() {
    let file = Arc::new(noise((2 << 20) / 18 * 18, 5));
    let expected = Arc::new(repack(Format::Q4_0, &file).unwrap());
    for context in contexts(None) {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let (done, finished) = std::sync::mpsc::channel();
        for _ in 0..16 {
            let (context, file, expected, done) =
                (context.clone(), file.clone(), expected.clone(), done.clone());
            pool.spawn(move || {
                let bytes = expected.len() as u64;
                let buffer = context.buffer("planes", bytes, MemoryUse::Device).unwrap();
                context.upload_blocks(&buffer, Format::Q4_0, &file, &mut |_, _| {}).unwrap();
                let mut found = vec![0; expected.len()];
                context.download(&buffer, 0, &mut found).unwrap();
                done.send(found == *expected).unwrap();
            });
        }
        for _ in 0..16 {
            let same = finished.recv_timeout(std::time::Duration::from_secs(60));
            assert!(same.expect("no upload waits for its own thread"));
        }
        // One of this thread, which is none of the pool's, beside others that are.
        check(&context, Format::Q6_K, 100);
    }
}
