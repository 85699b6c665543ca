//! Models in several files: opened by any of them, and refused where they do not fit each other.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tallow_gguf::{Format, GgufFile, GgufWriter, Metadata, SPLIT_KEYS, TensorInfo, TensorSpec, Value};

fn nano() -> GgufFile {
    GgufFile::open(tallow_testmodels::model("storyteller-nano-Q4_K_M")).unwrap()
}

fn shard_path(folder: &Path, number: usize, count: usize) -> PathBuf {
    folder.join(format!("model-{number:05}-of-{count:05}.gguf"))
}

/// The metadata of a shard, as `gguf-split` writes it.
fn split_metadata(mut metadata: Metadata, no: usize, count: usize, tensors: usize) -> Metadata {
    metadata.insert("split.no", Value::U16(no as u16));
    metadata.insert("split.count", Value::U16(count as u16));
    metadata.insert("split.tensors.count", Value::I32(tensors as i32));
    metadata
}

fn write(path: &Path, metadata: &Metadata, file: &GgufFile, tensors: &[&TensorInfo]) {
    let spec = |t: &&TensorInfo| TensorSpec {
        name: t.name.clone(),
        shape: t.shape.clone(),
        format: t.format().unwrap(),
    };
    let out = std::io::BufWriter::new(fs::File::create(path).unwrap());
    let mut writer = GgufWriter::create(out, metadata, tensors.iter().map(spec).collect()).unwrap();
    for tensor in tensors {
        writer.tensor(&tensor.name, file.tensor_data(tensor).unwrap()).unwrap();
    }
    writer.finish().unwrap();
}

/// Splits a model into `count` shards with about as many tensors each.
fn split(folder: &Path, file: &GgufFile, count: usize) {
    let tensors: Vec<&TensorInfo> = file.tensors().collect();
    let each = tensors.len().div_ceil(count);
    for no in 0..count {
        let metadata = if no == 0 { file.metadata().clone() } else { Metadata::new() };
        let metadata = split_metadata(metadata, no, count, tensors.len());
        let part = tensors.chunks(each).nth(no).unwrap_or(&[]);
        write(&shard_path(folder, no + 1, count), &metadata, file, part);
    }
}

/// A small shard with no metadata but `split.*`, and one tensor.
fn small(path: &Path, metadata: &Metadata, tensor: &str) {
    let parts = [(TensorSpec { name: tensor.into(), shape: vec![4], format: Format::F32 }, vec![7; 16])];
    let file = GgufFile::from_parts(Metadata::new(), parts).unwrap();
    write(path, metadata, &file, &file.tensors().collect::<Vec<_>>());
}

/// Two small shards that fit each other, with tensors `a` and `b`.
fn pair(folder: &Path) -> [PathBuf; 2] {
    let paths = [shard_path(folder, 1, 2), shard_path(folder, 2, 2)];
    for (no, path) in paths.iter().enumerate() {
        small(path, &split_metadata(Metadata::new(), no, 2, 2), ["a", "b"][no]);
    }
    paths
}

/// The error and its causes, which name the file.
fn error(path: &Path) -> String {
    let error = GgufFile::open(path).unwrap_err();
    let cause = std::error::Error::source(&error).map_or(String::new(), |cause| format!(": {cause}"));
    format!("{error}{cause}")
}

#[test]
fn each_shard_opens_the_whole_model() {
    let whole = nano();
    for count in [2, 3, 7] {
        let folder = tempfile::tempdir().unwrap();
        split(folder.path(), &whole, count);
        for number in 1..=count {
            let file = GgufFile::open(shard_path(folder.path(), number, count)).unwrap();
            let paths: Vec<_> = file.shards().map(|shard| shard.path.clone()).collect();
            assert_eq!(paths, (1..=count).map(|n| shard_path(folder.path(), n, count)).collect::<Vec<_>>());
            for shard in file.shards() {
                assert_eq!(shard.bytes as u64, fs::metadata(&shard.path).unwrap().len());
            }
            assert_eq!(file.file_bytes(), file.shards().map(|shard| shard.bytes).sum::<usize>());
            let mut metadata = file.metadata().clone();
            for key in SPLIT_KEYS {
                assert!(metadata.remove(key).is_some(), "{key}");
            }
            assert_eq!(&metadata, whole.metadata());
            assert_eq!(file.tensors().len(), whole.tensors().len());
            for (got, expected) in file.tensors().zip(whole.tensors()) {
                assert_eq!((&got.name, &got.shape), (&expected.name, &expected.shape));
                assert_eq!(got.format().unwrap(), expected.format().unwrap());
                let same = file.tensor_data(got).unwrap() == whole.tensor_data(expected).unwrap();
                assert!(same, "{}", got.name);
            }
            assert_eq!(file.tensors().last().unwrap().shard, count - 1);
        }
    }
}

/// `gguf-split --no-tensor-first-split` writes such a first shard.
#[test]
fn the_first_shard_may_have_no_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, paths) = (nano(), pair(folder.path()));
    write(&paths[0], &split_metadata(whole.metadata().clone(), 0, 2, 1), &whole, &[]);
    let file = GgufFile::open(&paths[1]).unwrap();
    assert_eq!(file.tensors().map(|t| (t.name.as_str(), t.shard)).collect::<Vec<_>>(), [("b", 1)]);
    assert_eq!(file.metadata().get_str("general.architecture").unwrap(), "llama");
}

#[test]
fn a_file_of_its_own_is_as_before() {
    let folder = tempfile::tempdir().unwrap();
    for (name, count) in [
        ("one.gguf", Some(Value::U16(1))),
        ("merged.gguf", Some(Value::U16(0))),
        ("wide.gguf", Some(Value::U64(1))),
        ("x-00002-of-00003.gguf", None),
    ] {
        let mut metadata = Metadata::new();
        if let Some(count) = count {
            metadata.insert("split.count", count);
        }
        let path = folder.path().join(name);
        small(&path, &metadata, "a");
        let file = GgufFile::open(&path).unwrap();
        assert_eq!((file.tensors().len(), file.shards().len()), (1, 1));
        assert_eq!(file.tensor_data(file.require("a").unwrap()).unwrap(), [7; 16]);
    }
    assert_eq!(GgufFile::parse(fs::read(folder.path().join("one.gguf")).unwrap()).unwrap().shards().len(), 0);
}

#[test]
fn a_missing_shard_is_named() {
    let whole = nano();
    let folder = tempfile::tempdir().unwrap();
    for missing in 1..=3 {
        split(folder.path(), &whole, 3);
        let path = shard_path(folder.path(), missing, 3);
        fs::remove_file(&path).unwrap();
        for opened in (1..=3).filter(|n| *n != missing) {
            let error = error(&shard_path(folder.path(), opened, 3));
            assert!(error.contains(path.to_str().unwrap()), "{error}");
            assert!(error.ends_with("is not there; the model has 3 files"), "{error}");
        }
    }
}

#[test]
fn names_that_do_not_follow_the_pattern() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["model.gguf", "model-1-of-2.gguf", "model-00003-of-00002.gguf", "model-00000-of-00002.gguf"]
    {
        let path = folder.path().join(name);
        small(&path, &split_metadata(Metadata::new(), 0, 2, 2), "a");
        let error = error(&path);
        assert!(error.contains(name) && error.contains("its name does not end in"), "{error}");
    }
}

/// What is changed in the second of two shards, by which both are refused.
#[test]
fn shards_of_other_models() {
    let change = |key: &str, value: Option<Value>, says: &str| {
        let folder = tempfile::tempdir().unwrap();
        let paths = pair(folder.path());
        let mut first = split_metadata(Metadata::new(), 0, 2, 2);
        first.insert("general.name", Value::String("first".into()));
        small(&paths[0], &first, "a");
        let mut metadata = split_metadata(Metadata::new(), 1, 2, 2);
        metadata.remove(key);
        if let Some(value) = value {
            metadata.insert(key, value);
        }
        small(&paths[1], &metadata, "b");
        let error = error(&paths[0]);
        assert!(error.contains("model-00002-of-00002.gguf") && error.contains(says), "{error}");
    };
    change("split.no", Some(Value::U16(0)), "split.no is 0, its name says 1");
    change("split.no", None, "metadata has no key split.no");
    change("split.no", Some(Value::String("1".into())), "expected an integer");
    change("split.count", Some(Value::U16(3)), "split.count is 3, its name says 2");
    change("split.count", Some(Value::U16(0)), "split.count is 0, its name says 2");
    change("split.count", None, "metadata has no key split.count");
    change("general.name", Some(Value::String("x".into())), "is of another model: general.name is");
}

#[test]
fn tensors_that_are_twice_or_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let paths = pair(folder.path());
    small(&paths[1], &split_metadata(Metadata::new(), 1, 2, 2), "a");
    for path in &paths {
        let error = error(path);
        assert!(error.starts_with(&format!("shard {}: tensor a is in ", paths[1].display())), "{error}");
        assert!(error.contains(paths[0].to_str().unwrap()), "{error}");
    }
    for count in [0, 1, 3, i32::MAX as usize] {
        pair(folder.path());
        small(&paths[0], &split_metadata(Metadata::new(), 0, 2, count), "a");
        let error = error(&paths[1]);
        assert!(
            error.contains(&format!("split.tensors.count is {count}, but the 2 shards have 2")),
            "{error}"
        );
        assert!(error.contains(paths[0].to_str().unwrap()), "{error}");
    }
    let mut metadata = split_metadata(Metadata::new(), 0, 2, 2);
    metadata.insert("split.tensors.count", Value::I32(-1));
    small(&paths[0], &metadata, "a");
    assert!(error(&paths[0]).contains("split.tensors.count: expected an integer"), "{}", error(&paths[0]));
    metadata.remove("split.tensors.count");
    small(&paths[0], &metadata, "a");
    assert!(error(&paths[0]).contains("no key split.tensors.count"), "{}", error(&paths[0]));
}

/// Counts that no set of files has end at the first file that is not there.
#[test]
fn counts_that_lie() {
    let folder = tempfile::tempdir().unwrap();
    let count = |value| {
        let mut metadata = split_metadata(Metadata::new(), 0, 2, 2);
        metadata.insert("split.count", value);
        metadata
    };
    let largest = shard_path(folder.path(), 1, 65_535);
    small(&largest, &count(Value::U16(65_535)), "a");
    let why = error(&largest);
    assert!(why.contains("model-00002-of-65535.gguf: is not there"), "{why}");
    let last = shard_path(folder.path(), 65_535, 65_535);
    small(&last, &split_metadata(Metadata::new(), 65_534, 65_535, 1), "z");
    let why = error(&last);
    assert!(why.contains("model-00002-of-65535.gguf: is not there"), "{why}");
    let path = shard_path(folder.path(), 1, 2);
    for (value, says) in [
        (Value::U32(1_000_000_000), "split.count is 1000000000, its name says 2"),
        (Value::U64(1 << 40), "split.count: expected an integer that fits u32"),
        (Value::I32(-2), "split.count: expected an integer that fits u32"),
        (Value::String("2".into()), "split.count: expected an integer that fits u32"),
    ] {
        small(&path, &count(value), "a");
        let why = error(&path);
        assert!(why.contains(says), "{why}");
    }
    // A name can ask for more shards than a count can.
    let path = folder.path().join("model-00001-of-99999.gguf");
    small(&path, &count(Value::U32(99_999)), "a");
    let why = error(&path);
    assert!(why.contains("model-00002-of-99999.gguf: is not there"), "{why}");
}

#[test]
fn shards_that_are_no_files_of_this_format() {
    let folder = tempfile::tempdir().unwrap();
    let paths = pair(folder.path());
    let bytes = fs::read(&paths[1]).unwrap();
    for (content, says) in [
        (vec![], "magic number"),
        (b"not a model".to_vec(), "not a GGUF file"),
        (bytes[..bytes.len() - 32].to_vec(), "data of tensor b"),
    ] {
        fs::write(&paths[1], content).unwrap();
        let error = error(&paths[0]);
        assert!(error.contains(paths[1].to_str().unwrap()) && error.contains(says), "{error}");
    }
    fs::remove_file(&paths[1]).unwrap();
    fs::create_dir(&paths[1]).unwrap();
    let error = error(&paths[0]);
    assert!(error.contains(paths[1].to_str().unwrap()) && error.contains("directory"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A shard of arbitrary bytes, or of one with some of them changed, is read or refused.
    #[test]
    fn any_shard_is_read_or_refused(
        noise in proptest::collection::vec(any::<u8>(), 0..200),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        second in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let paths = pair(folder.path());
        let path = &paths[usize::from(second)];
        let mut bytes = fs::read(path).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        for content in [bytes, noise] {
            fs::write(path, content).unwrap();
            for opened in &paths {
                let Ok(file) = GgufFile::open(opened) else { continue };
                for tensor in file.tensors() {
                    if let Ok(data) = file.tensor_data(tensor) {
                        prop_assert_eq!(data.len(), tensor.bytes);
                        std::hint::black_box(data.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
                    }
                }
            }
        }
    }
}
