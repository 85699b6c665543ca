//! Models in several files: every command takes any of them.

use std::path::Path;

use tallow_gguf::{GgufFile, GgufWriter, Metadata, TensorInfo, TensorSpec, Value};

use crate::bad_inputs::fails;
use crate::support::{model, success};

/// Writes nano F16 into `folder` as three files.
fn split(folder: &Path) -> [String; 3] {
    let file = GgufFile::open(model("nano-f16")).unwrap();
    let tensors: Vec<&TensorInfo> = file.tensors().collect();
    let each = tensors.len().div_ceil(3);
    [0, 1, 2].map(|no| {
        let mut metadata = if no == 0 { file.metadata().clone() } else { Metadata::new() };
        metadata.insert("split.no", Value::U16(no as u16));
        metadata.insert("split.count", Value::U16(3));
        metadata.insert("split.tensors.count", Value::I32(tensors.len() as i32));
        let part = tensors.chunks(each).nth(no).unwrap();
        let spec = |t: &&TensorInfo| TensorSpec {
            name: t.name.clone(),
            shape: t.shape.clone(),
            format: t.format().unwrap(),
        };
        let path = folder.join(format!("nano-{:05}-of-00003.gguf", no + 1));
        let out = std::fs::File::create(&path).unwrap();
        let mut writer = GgufWriter::create(out, &metadata, part.iter().map(spec).collect()).unwrap();
        for tensor in part {
            writer.tensor(&tensor.name, file.tensor_data(tensor).unwrap()).unwrap();
        }
        writer.finish().unwrap();
        path.to_str().unwrap().to_owned()
    })
}

#[test]
fn generate_reads_all_shards() {
    let folder = tempfile::tempdir().unwrap();
    let shards = split(folder.path());
    let generate = |model: &str| {
        let prompt = "Once upon a time there was a";
        success(&["generate", "--device", "cpu", "--prompt", prompt, "--max-tokens", "8", "--model", model])
    };
    let whole = generate(&model("nano-f16"));
    assert_eq!(generate(&shards[0]), whole);
    assert_eq!(generate(&shards[2]), whole);
    std::fs::remove_file(&shards[1]).unwrap();
    let args = ["generate", "--device", "cpu", "--prompt", "a", "--model", &shards[0]];
    fails(&args, &[&shards[1], "is not there; the model has 3 files"]);
}

#[test]
fn quantize_writes_one_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let shards = split(folder.path());
    let out = folder.path().join("out.gguf");
    let text = success(&["quantize", &shards[1], out.to_str().unwrap(), "--type", "Q4_K_M"]);
    let before: u64 = shards.iter().map(|path| std::fs::metadata(path).unwrap().len()).sum();
    assert!(text.ends_with(&format!("was {before} bytes\n")), "{text}");
    let same = std::fs::read(&out).unwrap() == std::fs::read(model("nano-Q4_K_M")).unwrap();
    assert!(same, "not the file that quantizing the whole model gives");
    // Neither the file that was named nor another one is overwritten.
    for shard in &shards {
        fails(&["quantize", &shards[1], shard, "--type", "Q4_K_M"], &[shard, "is the model itself"]);
    }
}

#[test]
fn inspect_lists_shards() {
    let folder = tempfile::tempdir().unwrap();
    let shards = split(folder.path());
    let text = success(&["inspect", &shards[1]]);
    for (index, shard) in shards.iter().enumerate() {
        let bytes = std::fs::metadata(shard).unwrap().len();
        assert!(text.contains(&format!("shard {index}: {shard}, {bytes} bytes\n")), "{text}");
        assert!(text.lines().any(|line| line.ends_with(&format!(" of shard {index}"))), "{text}");
    }
    assert!(!success(&["inspect", &model("nano-f16")]).contains("shard"));
}
