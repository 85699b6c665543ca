//! Pipelines: what is refused, what is counted, and the cache on disk.

use std::fs;
use std::path::{Path, PathBuf};

use tallow_ir::caps::OptionalFeature;
use tallow_runtime::vulkan::{PipelineCacheState, PipelineDesc};
use tallow_runtime::{Error, RuntimeOptions};

use crate::harness::*;

fn desc<'a>(spirv: &'a [u32]) -> PipelineDesc<'a> {
    PipelineDesc { name: "kernel", spirv, bindings: 3, push_bytes: 0, required_subgroup_size: None }
}

#[test]
fn many_pipelines_come_back_in_order() {
    let Some(context) = context() else { return };
    let sources: Vec<_> = (0..12).map(|i| spirv(&SCALE.replace("+ 1.0", &format!("+ {i}.0")))).collect();
    let names: Vec<_> = (0..12).map(|i| format!("scale{i}")).collect();
    let descs: Vec<_> = names
        .iter()
        .zip(&sources)
        .map(|(name, spirv)| PipelineDesc { name, bindings: 2, push_bytes: 4, ..desc(spirv) })
        .collect();
    let pipelines = context.create_pipelines(&descs).unwrap();
    assert_eq!(context.counters().pipelines_created, 12);
    for (i, pipeline) in pipelines.iter().enumerate() {
        assert_eq!(pipeline.name(), names[i]);
        let buffers = [shared(&context, "a", &[2.0]), shared(&context, "b", &[0.0])];
        let command = dispatch("scale", 0, &[0, 1], &buffers, 1, &3.0_f32.to_le_bytes());
        record(&context, vec![HEAD, command, TAIL], std::slice::from_ref(pipeline), &buffers).run().unwrap();
        assert_eq!(floats(&buffers[1], 1), [6.0 + i as f32]);
    }
}

#[test]
fn bad_descriptions_are_errors() {
    let Some(context) = context() else { return };
    let add = spirv(ADD);
    // glslang itself refuses such a workgroup, so the words are changed: mode LocalSize is 17, then x, y, z.
    let mut huge = add.clone();
    let mode = huge.windows(4).position(|words| words == [17, 64, 1, 1]).unwrap();
    huge[mode + 1] = 16384;
    let mut newer = add.clone();
    newer[1] = 0x0001_0900;
    let unnamed = spirv_of_entry_point_other_than_main(&add);
    let other_set = spirv(&ADD.replace("binding = 0", "set = 1, binding = 0"));
    let caps = context.caps();
    let cases = [
        (desc(&[]), "no SPIR-V"),
        (desc(&add[1..]), "magic"),
        (desc(&add[..6]), "instruction"),
        (desc(&add[..add.len() - 1]), "last function"),
        (desc(&unnamed), "entry point"),
        (desc(&newer), "newer"),
        (desc(&huge), "workgroup [16384, 1, 1]"),
        (PipelineDesc { bindings: caps.max_storage_buffers + 1, ..desc(&add) }, "storage buffers"),
        (PipelineDesc { bindings: 2, ..desc(&add) }, "the module uses binding 2"),
        (desc(&other_set), "set 1"),
        (PipelineDesc { push_bytes: caps.push_constant_bytes + 4, ..desc(&add) }, "push constants"),
        (PipelineDesc { push_bytes: 3, ..desc(&add) }, "push constants"),
        (PipelineDesc { required_subgroup_size: Some(3), ..desc(&add) }, "subgroups of 3"),
        (PipelineDesc { required_subgroup_size: Some(4096), ..desc(&add) }, "subgroups of 4096"),
    ];
    for (desc, part) in cases {
        let error = context.create_pipelines(&[desc]).unwrap_err();
        assert!(matches!(&error, Error::BadPipeline { .. }), "{error}");
        assert!(error.to_string().contains(part), "{error} lacks {part:?}");
    }
    assert_eq!(context.counters().pipelines_created, 0);
}

#[test]
fn a_subgroup_size_can_be_required_where_the_device_has_control() {
    let Some(context) = context() else { return };
    let add = spirv(ADD);
    let lanes = context.caps().subgroup_size;
    let desc = PipelineDesc { required_subgroup_size: Some(lanes), ..desc(&add) };
    let created = context.create_pipelines(&[desc]);
    if context.caps().has(OptionalFeature::SubgroupSize) {
        let pipeline = created.unwrap().remove(0);
        let values = [1.0; 100];
        let buffers = ["a", "b", "c"].map(|name| shared(&context, name, &values));
        let command = dispatch("add", 0, &[0, 1, 2], &buffers, 2, &[]);
        record(&context, vec![HEAD, command, TAIL], &[pipeline], &buffers).run().unwrap();
        assert_eq!(floats(&buffers[2], 100), [2.0; 100]);
    } else {
        assert!(matches!(created, Err(Error::BadPipeline { .. })));
    }
}

/// Renames the entry point, whose name is the one word-aligned "main" with its end.
fn spirv_of_entry_point_other_than_main(words: &[u32]) -> Vec<u32> {
    let name = u32::from_le_bytes(*b"main");
    let at = words.windows(2).position(|pair| pair == [name, 0]).unwrap();
    let mut renamed = words.to_vec();
    renamed[at] = u32::from_le_bytes(*b"mian");
    renamed
}

fn cached(dir: &Path) -> RuntimeOptions {
    RuntimeOptions { cache_dir: Some(dir.to_path_buf()), ..options() }
}

fn cache_file(dir: &Path) -> PathBuf {
    let files: Vec<_> =
        fs::read_dir(dir.join("pipelines")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

#[test]
fn the_cache_is_written_and_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let Some(context) = context_with(&cached(dir.path())) else { return };
    assert_eq!(*context.pipeline_cache_state(), PipelineCacheState::New);
    pipeline(&context, "add", ADD, 3, 0);
    drop(context);
    let file = cache_file(dir.path());
    let written = fs::read(&file).unwrap();

    let context = context_with(&cached(dir.path())).unwrap();
    assert_eq!(*context.pipeline_cache_state(), PipelineCacheState::Loaded(written.len() - 24));
    pipeline(&context, "add", ADD, 3, 0);
    context.save_pipeline_cache().unwrap();
    let stamp = fs::metadata(&file).unwrap().modified().unwrap();
    context.save_pipeline_cache().unwrap();
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), stamp, "nothing new, nothing written");
    // Nor was it written the first time: the driver had nothing to add to what it was given.
    fs::remove_file(&file).unwrap();
    pipeline(&context, "add", ADD, 3, 0);
    context.save_pipeline_cache().unwrap();
    assert!(!file.exists(), "the same was written again");
}

#[test]
fn a_damaged_cache_is_rejected_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let Some(context) = context_with(&cached(dir.path())) else { return };
    pipeline(&context, "add", ADD, 3, 0);
    drop(context);
    let file = cache_file(dir.path());
    let whole = fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for damaged in
        [&whole[..whole.len() / 2], &flipped, b"", b"not a cache at all, but long enough to be one"]
    {
        fs::write(&file, damaged).unwrap();
        let context = context_with(&cached(dir.path())).unwrap();
        let state = context.pipeline_cache_state().clone();
        assert!(matches!(state, PipelineCacheState::Rejected(_)), "{state:?}");
        pipeline(&context, "add", ADD, 3, 0);
        drop(context);
        let context = context_with(&cached(dir.path())).unwrap();
        assert!(matches!(context.pipeline_cache_state(), PipelineCacheState::Loaded(_)));
    }
}

#[test]
fn an_unwritable_cache_changes_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"a file where the directory should be").unwrap();
    let Some(context) = context_with(&cached(&file.join("cache"))) else { return };
    pipeline(&context, "add", ADD, 3, 0);
    context.save_pipeline_cache().unwrap();
}
