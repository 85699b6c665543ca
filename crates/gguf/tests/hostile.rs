//! Files that are cut, mutated or made to mislead: an error that says what is wrong, never a panic.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

use proptest::prelude::*;
use tallow_gguf::{Array, Format, GgufFile, GgufWriter, Metadata, TensorSpec, Tokenizer, Value};

/// A small valid file; see [`make_valid`].
fn valid() -> Vec<u8> {
    static VALID: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(make_valid);
    VALID.clone()
}

/// A small valid file with every type of value, a tokenizer, and tensors of several formats.
fn make_valid() -> Vec<u8> {
    let mut metadata = Metadata::new();
    let strings =
        |texts: &[&str]| Value::Array(Array::String(texts.iter().map(|t| (*t).to_owned()).collect()));
    for (key, value) in [
        ("general.architecture", Value::String("llama".into())),
        ("general.alignment", Value::U32(64)),
        ("u8", Value::U8(1)),
        ("i8", Value::I8(-1)),
        ("u16", Value::U16(2)),
        ("i16", Value::I16(-2)),
        ("i32", Value::I32(-3)),
        ("u64", Value::U64(1 << 50)),
        ("i64", Value::I64(-5)),
        ("f32", Value::F32(1.5)),
        ("f64", Value::F64(2.5)),
        ("bool", Value::Bool(true)),
        ("arrays.u8", Value::Array(Array::U8(vec![1, 2]))),
        ("arrays.i8", Value::Array(Array::I8(vec![-1]))),
        ("arrays.u16", Value::Array(Array::U16(vec![3]))),
        ("arrays.i16", Value::Array(Array::I16(vec![]))),
        ("arrays.u32", Value::Array(Array::U32(vec![4, 5, 6]))),
        ("arrays.i32", Value::Array(Array::I32(vec![-7]))),
        ("arrays.u64", Value::Array(Array::U64(vec![8]))),
        ("arrays.i64", Value::Array(Array::I64(vec![-9]))),
        ("arrays.f32", Value::Array(Array::F32(vec![0.5, -0.5]))),
        ("arrays.f64", Value::Array(Array::F64(vec![0.25]))),
        ("arrays.bool", Value::Array(Array::Bool(vec![true, false]))),
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.pre", Value::String("gpt-2".into())),
        ("tokenizer.ggml.tokens", strings(&["a", "b", "ab", "<s>"])),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1, 1, 1, 3]))),
        ("tokenizer.ggml.merges", strings(&["a b"])),
        ("tokenizer.ggml.bos_token_id", Value::U32(3)),
    ] {
        metadata.insert(key, value);
    }
    let tensors = [
        ("scalar", vec![], Format::F32),
        ("norm", vec![3], Format::F32),
        ("w", vec![2, 64], Format::Q4_0),
        ("k", vec![2, 1, 256], Format::Q6_K),
        ("h", vec![1, 2, 3, 4], Format::F16),
    ];
    let specs =
        tensors.map(|(name, shape, format)| TensorSpec { name: name.to_owned(), shape, format }).to_vec();
    let mut writer = GgufWriter::create(Vec::new(), &metadata, specs.clone()).unwrap();
    for (spec, fill) in specs.iter().zip(1u8..) {
        let bytes = spec.format.row_bytes(spec.shape.iter().product()).unwrap();
        writer.tensor(&spec.name, &vec![fill; bytes]).unwrap();
    }
    writer.finish().unwrap()
}

/// Reads all that can be read; a slice outside the file would panic.
fn read_everything(bytes: Vec<u8>) {
    let Ok(file) = GgufFile::parse(bytes) else { return };
    for tensor in file.tensors() {
        if let Ok(data) = file.tensor_data(tensor) {
            assert_eq!(data.len(), tensor.bytes);
            std::hint::black_box(data.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
        }
    }
    if let Ok(tokenizer) = Tokenizer::from_metadata(file.metadata())
        && let Ok(ids) = tokenizer.encode("ab<s>ba", true)
    {
        tokenizer.decode(&ids);
    }
}

fn error(bytes: Vec<u8>) -> String {
    GgufFile::parse(bytes).unwrap_err().to_string()
}

/// Where `needle` first stands in `bytes`.
fn find(bytes: &[u8], needle: &[u8]) -> usize {
    bytes.windows(needle.len()).position(|window| window == needle).unwrap()
}

/// The valid file with the bytes right after the first `needle` replaced.
fn patched(needle: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut file = valid();
    let at = find(&file, needle) + needle.len();
    file[at..at + bytes.len()].copy_from_slice(bytes);
    file
}

#[test]
fn what_is_written_is_read() {
    let file = GgufFile::parse(valid()).unwrap();
    assert_eq!(file.alignment(), 64);
    assert_eq!(file.metadata().len(), 29);
    assert_eq!(file.metadata().get("i64"), Some(&Value::I64(-5)));
    assert_eq!(file.metadata().get("arrays.bool"), Some(&Value::Array(Array::Bool(vec![true, false]))));
    let shapes: Vec<_> = file.tensors().map(|t| (t.name.as_str(), t.shape.clone(), t.type_name())).collect();
    assert_eq!(
        shapes,
        [
            ("scalar", vec![], "f32"),
            ("norm", vec![3], "f32"),
            ("w", vec![2, 64], "q4_0"),
            ("k", vec![2, 1, 256], "q6_k"),
            ("h", vec![1, 2, 3, 4], "f16"),
        ]
    );
    for (tensor, fill) in file.tensors().zip(1u8..) {
        assert_eq!(tensor.offset % 64, 0);
        assert_eq!(file.tensor_data(tensor).unwrap(), vec![fill; tensor.bytes]);
    }
    assert_eq!(file.require("x").unwrap_err().to_string(), "the file has no tensor x");
}

#[test]
fn errors_say_what_is_wrong() {
    assert!(error(vec![]).starts_with("magic number: needs 4 bytes at byte 0, but only 0 are left"));
    assert!(error(b"PK\x03\x04".to_vec()).starts_with("not a GGUF file"));
    assert_eq!(
        error(patched(b"GGUF", &[1, 0, 0, 0])),
        "GGUF version 1 is not supported; versions 2 and 3 are"
    );
    assert_eq!(
        error(patched(b"GGUF", &[0, 0, 0, 3])),
        "GGUF version 3 in big-endian order; only little-endian files are supported"
    );
    let mut file = valid();
    file[8..16].fill(0xff);
    assert!(error(file).starts_with("table of 18446744073709551615 tensors"));
    let mut file = valid();
    file[16..24].fill(0xff);
    assert!(error(file).starts_with("18446744073709551615 metadata keys"));
    // A string of nearly 2^64 bytes, a value type 200, a boolean 2, an array of 2^60 numbers, one of arrays.
    let architecture = b"general.architecture\x08\0\0\0";
    assert!(error(patched(architecture, &[0xf0; 8])).starts_with("metadata key general.architecture: needs"));
    assert_eq!(
        error(patched(b"general.architecture", &[200])),
        "metadata key general.architecture: unknown value type 200"
    );
    assert_eq!(error(patched(b"\0bool\x07\0\0\0", &[2])), "metadata key bool: 2 is no boolean");
    let count = (1u64 << 60).to_le_bytes();
    assert!(
        error(patched(b"arrays.u32\x09\0\0\0\x04\0\0\0", &count))
            .starts_with("metadata key arrays.u32: needs")
    );
    assert_eq!(
        error(patched(b"arrays.u32\x09\0\0\0", &[9])),
        "metadata key arrays.u32: arrays of arrays are not supported"
    );
    assert_eq!(
        error(patched(b"general.alignment\x04\0\0\0", &[48])),
        "general.alignment: 48 is not a power of two"
    );
    assert_eq!(
        error(patched(b"general.alignment\x04\0\0\0", &[0])),
        "general.alignment: 0 is not a power of two"
    );
    assert!(error(patched(architecture, b"\x05\0\0\0\0\0\0\0\xff")).contains("not UTF-8"));
    // Two keys and two tensors of one name.
    let before_i8 = b"u8\0\0\0\0\x01\x02\0\0\0\0\0\0\0";
    assert_eq!(error(patched(before_i8, b"u8")), "metadata key u8: appears twice");
    // The offset of tensor w, and the length of the name of k.
    let before_k = b"\x80\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0";
    assert_eq!(error(patched(before_k, b"w")), "tensor w: appears twice");
}

#[test]
fn tensor_tables_are_checked() {
    // After the name: rank, extents (innermost first), type, offset.
    let name = b"\x01\0\0\0\0\0\0\0w";
    assert_eq!(error(patched(name, &[5])), "tensor w: has 5 dimensions, more than 4");
    let entry = |extents: [u64; 2], kind: u32, offset: u64| {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        bytes.extend(extents.iter().flat_map(|extent| extent.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        patched(name, &bytes)
    };
    let message = error(entry([1 << 40, 1 << 40], 0, 128));
    assert!(
        message.starts_with("tensor w: shape [1099511627776, 1099511627776] has more elements"),
        "{message}"
    );
    assert!(error(entry([1 << 62, 1], 0, 128)).starts_with("tensor w"));
    assert_eq!(error(entry([64, 2], 2, 129)), "data of tensor w: offset 129 is not a multiple of 64");
    assert!(error(entry([64, 2], 2, 1 << 32)).starts_with("data of tensor w: needs 72 bytes"));
    assert!(error(entry([64, 2], 2, u64::MAX - 63)).starts_with("data of tensor w: needs 72 bytes"));
    // 48 elements a row are not whole blocks, though 96 in all are.
    let error = GgufFile::parse(entry([48, 2], 2, 128)).unwrap_err();
    assert_eq!(error.to_string(), "tensor w");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "q4_0: 48 elements are not whole blocks of 32");

    for (id, expected) in [
        (41, "tensor w: type 41 (q1_0) is not supported"),
        (99, "tensor w: type 99 (unknown) is not supported"),
    ] {
        let file = GgufFile::parse(entry([64, 2], id, 128)).unwrap();
        let tensor = file.require("w").unwrap();
        assert_eq!((tensor.ggml_id, &tensor.shape[..]), (id, &[2, 64][..]));
        assert_eq!(file.tensor_data(tensor).unwrap_err().to_string(), expected);
    }
}

/// The tensors lie at 0, 64, 128 (72 bytes), 256 (420) and 704 of the data.
#[test]
fn tensors_share_no_byte() {
    // After the name of w: rank, two extents, type; then the offset.
    let overlapping = |offset: u64| {
        let mut file = valid();
        let at = find(&file, b"\x01\0\0\0\0\0\0\0w") + 9 + 4 + 16 + 4;
        assert_eq!(file[at..at + 8], 128u64.to_le_bytes());
        file[at..at + 8].copy_from_slice(&offset.to_le_bytes());
        file
    };
    assert_eq!(error(overlapping(64)), "data of tensor w: overlaps that of tensor norm");
    assert_eq!(error(overlapping(0)), "data of tensor w: overlaps that of tensor scalar");
    // Its 72 bytes reach into the tensor that starts 64 later, or start inside of one.
    assert_eq!(error(overlapping(192)), "data of tensor k: overlaps that of tensor w");
    assert_eq!(error(overlapping(320)), "data of tensor w: overlaps that of tensor k");
    assert!(GgufFile::parse(overlapping(128)).is_ok());
}

/// Tensors without elements lie anywhere, even at one place; their data is empty.
#[test]
fn empty_tensors_share_nothing() {
    let specs: Vec<_> = ["a", "b", "c"]
        .map(|name| TensorSpec { name: name.into(), shape: vec![0, 32], format: Format::Q4_0 })
        .into();
    let mut writer = GgufWriter::create(Vec::new(), &Metadata::new(), specs).unwrap();
    for name in ["a", "b", "c"] {
        writer.tensor(name, &[]).unwrap();
    }
    let file = GgufFile::parse(writer.finish().unwrap()).unwrap();
    assert!(file.tensors().all(|t| file.tensor_data(t).unwrap().is_empty()));
}

/// A file of one metadata key with this value, as bytes.
fn with_value(value: &[u8]) -> Vec<u8> {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend(0u64.to_le_bytes());
    file.extend(1u64.to_le_bytes());
    file.extend(1u64.to_le_bytes());
    file.push(b'x');
    file.extend(value);
    file
}

/// Arrays hold no arrays, so nothing recurses however deep a file nests them.
#[test]
fn nested_arrays_are_refused_at_the_first() {
    let mut value = 9u32.to_le_bytes().to_vec();
    for _ in 0..100_000 {
        value.extend(9u32.to_le_bytes());
        value.extend(1u64.to_le_bytes());
    }
    assert_eq!(error(with_value(&value)), "metadata key x: arrays of arrays are not supported");
}

/// Counts of every array type and of strings that would overflow a size, or exceed the file by a little.
#[test]
fn counts_are_compared_with_what_is_left() {
    for kind in (0..=12u32).filter(|kind| *kind != 9) {
        for count in [2, 1 << 32, 1 << 60, 1 << 61, 1 << 63, u64::MAX / 8 + 1, u64::MAX] {
            let mut value = 9u32.to_le_bytes().to_vec();
            value.extend(kind.to_le_bytes());
            value.extend(count.to_le_bytes());
            value.push(1);
            let message = error(with_value(&value));
            assert!(message.starts_with("metadata key x: needs "), "{kind} {count}: {message}");
        }
    }
    for length in [1, 1 << 32, i64::MAX as u64, u64::MAX] {
        let mut value = 8u32.to_le_bytes().to_vec();
        value.extend(length.to_le_bytes());
        assert!(error(with_value(&value)).starts_with("metadata key x: needs "), "{length}");
    }
    assert_eq!(error(with_value(&[13, 0, 0, 0])), "metadata key x: unknown value type 13");
    assert_eq!(
        error(with_value(&[9, 0, 0, 0, 13, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])),
        "metadata key x: unknown array element type 13"
    );
}

/// The largest power of two that a `u32` holds: no tensor lies that far, and none need be.
#[test]
fn an_absurd_alignment_is_no_overflow() {
    let alignment = patched(b"general.alignment\x04\0\0\0", &(1u32 << 31).to_le_bytes());
    let message = error(alignment);
    assert!(message.contains("is not a multiple of 2147483648") || message.contains("needs"), "{message}");
}

/// For each format a row that ends inside of a block, and one whose last block is cut off with the file.
#[test]
fn rows_are_whole_blocks_of_every_format() {
    for format in Format::ALL {
        let block = format.block_elements();
        let one = |extent: u64, data: usize| {
            let mut file = b"GGUF\x03\0\0\0".to_vec();
            file.extend(1u64.to_le_bytes());
            file.extend(0u64.to_le_bytes());
            file.extend(1u64.to_le_bytes());
            file.push(b't');
            file.extend(2u32.to_le_bytes());
            file.extend(extent.to_le_bytes());
            file.extend(2u64.to_le_bytes());
            file.extend(format.spec().ggml_id.to_le_bytes());
            file.extend(0u64.to_le_bytes());
            file.resize(file.len().next_multiple_of(32) + data, 0);
            GgufFile::parse(file)
        };
        let bytes = 2 * 3 * format.block_bytes();
        assert_eq!(one(3 * block as u64, bytes).unwrap().require("t").unwrap().bytes, bytes, "{format}");
        assert!(one(3 * block as u64, bytes - 1).is_err(), "{format}: a byte too few");
        if block > 1 {
            for extent in [3 * block as u64 - 1, block as u64 / 2, 1, u64::MAX / 4 + 1 + block as u64 / 2] {
                assert!(one(extent, bytes).is_err(), "{format}: rows of {extent}");
            }
        }
        for extent in [1 << 40, 1 << 61, 1 << 62, 1 << 63, u64::MAX - u64::MAX % block as u64] {
            assert!(one(extent, bytes).is_err(), "{format}: rows of {extent}");
        }
    }
}

#[test]
fn every_truncation_is_an_error() {
    let whole = valid();
    for length in 0..whole.len() {
        let result = GgufFile::parse(&whole[..length]);
        // Only the padding after the last tensor may be missing.
        let last =
            GgufFile::parse(whole.clone()).unwrap().tensors().map(|t| t.offset as usize + t.bytes).max();
        assert_eq!(result.is_ok(), Some(length) >= last, "{length} bytes of {}", whole.len());
    }
}

/// What the fuzzer starts from is read to the end: a seed that fails early leads nowhere.
#[test]
fn the_seeds_of_the_fuzzer_are_valid() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/gguf");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = GgufFile::open(entry.unwrap().path()).unwrap();
        assert!(file.tensors().all(|t| file.tensor_data(t).is_ok()));
        let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
        assert!(tokenizer.encode("ab<s>ba", true).unwrap().len() > 3);
        count += 1;
    }
    assert!(count >= 2);
}

#[test]
fn files_that_cannot_be_opened_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none.gguf");
    let error = GgufFile::open(&missing).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot read {}", missing.display()));
    assert!(GgufFile::open(folder.path()).unwrap_err().to_string().starts_with("cannot read"));
    let empty = folder.path().join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    assert!(GgufFile::open(&empty).is_err());
    let good = folder.path().join("good.gguf");
    std::fs::write(&good, valid()).unwrap();
    assert_eq!(GgufFile::open(&good).unwrap().tensors().len(), 5);
}

#[test]
fn the_writer_refuses_what_would_make_a_bad_file() {
    let spec = |name: &str, shape: &[usize]| TensorSpec {
        name: name.into(),
        shape: shape.into(),
        format: Format::Q8_0,
    };
    let create = |specs| GgufWriter::create(Vec::new(), &Metadata::new(), specs);
    let text = |result: Result<_, tallow_gguf::GgufError>| {
        result.map(|_: GgufWriter<_>| ()).unwrap_err().to_string()
    };
    assert_eq!(text(create(vec![spec("a", &[32]), spec("a", &[32])])), "writing tensor a: appears twice");
    assert_eq!(text(create(vec![spec("a", &[33])])), "tensor a");
    assert_eq!(
        text(create(vec![spec("a", &[1, 1, 1, 1, 32])])),
        "writing tensor a: has 5 dimensions, more than 4"
    );
    let mut writer = create(vec![spec("a", &[32]), spec("b", &[32])]).unwrap();
    assert_eq!(writer.tensor("b", &[0; 34]).unwrap_err().to_string(), "writing tensor b: a comes first");
    let message = writer.tensor("a", &[0; 33]).unwrap_err().to_string();
    assert_eq!(message, "writing tensor a: 33 bytes of data, but the shape takes 34");
    writer.tensor("a", &[0; 34]).unwrap();
    assert_eq!(writer.finish().unwrap_err().to_string(), "writing tensor b: its data is missing");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = valid();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        read_everything(bytes);
    }

    #[test]
    fn numbers_at_the_edge_never_panic(
        at in any::<prop::sample::Index>(),
        value in prop::sample::select(vec![0u64, 1, 0x7f, 0xff, 0xffff, i32::MAX as u64, u64::from(u32::MAX), i64::MAX as u64, u64::MAX, u64::MAX - 31, 1 << 62]),
        width in prop::sample::select(vec![1usize, 2, 4, 8]),
    ) {
        let mut bytes = valid();
        let at = at.index(bytes.len() - 8);
        bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        read_everything(bytes);
    }

    #[test]
    fn garbage_never_panics(tail in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0".to_vec();
        bytes.extend(tail);
        read_everything(bytes);
    }
}
