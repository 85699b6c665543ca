//! `tallow quantize`: files equal to llama.cpp's where that is promised, models that still work, and what is refused.

use std::path::Path;

use sha2::{Digest, Sha256};
use tallow_gguf::{Format, GgufFile, GgufWriter, Metadata, TensorSpec, Value};

use crate::bad_inputs::fails;
use crate::support::{model, stderr, success, tallow};

/// The first tokens of the model's favourite story.
const TOKENS: &str = "0,3262,627,261,551,453,309,261,689,519,392,261,1162,519,301";

/// Quantizes nano F16 into `folder`, and gives the path.
fn quantize(folder: &Path, mix: &str, more: &[&str]) -> String {
    let out = folder.join(format!("{mix}.gguf")).to_str().unwrap().to_owned();
    let text = success(&[&["quantize", &model("nano-f16"), &out, "--type", mix], more].concat());
    let last = text.lines().last().unwrap();
    let size = std::fs::metadata(&out).unwrap().len();
    assert!(
        last.starts_with(&format!("{out}: {size} bytes, ")) && last.ends_with("was 10770816 bytes"),
        "{text}"
    );
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1, "something was left beside {out}");
    out
}

fn logits(folder: &Path, model: &str) -> Vec<f32> {
    let out = folder.join("logits.npy");
    let path = out.to_str().unwrap();
    success(&["logits", "--device", "cpu", "--model", model, "--tokens", TOKENS, "--out", path]);
    let bytes = std::fs::read(out).unwrap();
    bytes[128..].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Variance of the difference over the variance of `b`: equal shifts of all logits change no probability.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let variance = |values: &mut dyn Iterator<Item = f64>| {
        let all: Vec<f64> = values.collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        all.iter().map(|v| (v - mean).powi(2)).sum::<f64>()
    };
    let difference = variance(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b)));
    difference / variance(&mut b.iter().map(|b| f64::from(*b)))
}

/// llama-quantize makes the very same files: formats, order, metadata and blocks.
#[test]
fn files_equal_those_of_llama_cpp() {
    for mix in ["Q4_0", "Q4_K_M"] {
        let folder = tempfile::tempdir().unwrap();
        let made = quantize(folder.path(), mix, &[]);
        let same = std::fs::read(made).unwrap() == std::fs::read(model(&format!("nano-{mix}"))).unwrap();
        assert!(same, "{mix}");
    }
    let folder = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(quantize(folder.path(), "q8_0", &["--threads", "3"])).unwrap();
    let hash: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    // From models/README.md.
    assert_eq!(hash, "0082cc7795e11e762852486ba38ebd5d40570f4f72f8d6fad59db4434004837a");
}

/// Each mix gives a model whose logits are near those of F16. Each of nano's 29 matrices adds noise to its output, whose
/// relative variance is the square of the format's relative error (those that `fit.rs` of the quantization crate
/// allows); if all of it reached the logits, that were 29 times the square, and no more than half of the logits' own
/// variance may be noise, where unrelated logits have twice it. (Measured: 3 to 13 times the square, 0.26 for Q2_K.)
#[test]
fn models_of_each_mix_work() {
    let folder = tempfile::tempdir().unwrap();
    let exact = logits(folder.path(), &model("nano-f16"));
    for (mix, error) in [
        ("F32", 0.0_f64),
        ("BF16", 0.0023),
        ("Q4_1", 0.078),
        ("Q5_0", 0.043),
        ("Q5_1", 0.038),
        ("Q2_K", 0.296),
        ("Q3_K_S", 0.151),
        ("Q3_K_M", 0.151),
        ("Q3_K_L", 0.151),
        ("Q4_K_S", 0.071),
        ("Q5_K_S", 0.036),
        ("Q5_K_M", 0.036),
        ("Q6_K", 0.018),
        ("IQ4_NL", 0.076),
        ("IQ4_XS", 0.077),
        ("MXFP4", 0.117),
        ("NVFP4", 0.104),
    ] {
        let inner = tempfile::tempdir().unwrap();
        let made = quantize(inner.path(), mix, &[]);
        let text = success(&["inspect", &made]);
        assert!(text.contains("total       38 tensors        5245184 elements"), "{text}");
        let far = distance(&logits(folder.path(), &made), &exact);
        let bound = (29.0 * error * error).min(0.5);
        assert!(far <= bound, "{mix}: {far:.6}, bound {bound:.6}");
        // Rounded it must be.
        assert!(far > 1e-3 * error * error || error == 0.0, "{mix}: {far}");
    }
}

/// The formats that a mix gives to the parts of the model.
#[test]
fn options_choose_formats() {
    let format =
        |path: &str, name: &str| GgufFile::open(path).unwrap().require(name).unwrap().format().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let made = quantize(folder.path(), "q3_k_m", &["--token-embedding-type", "q8_0"]);
    assert_eq!(format(&made, "token_embd.weight"), Format::Q8_0);
    assert_eq!(format(&made, "blk.0.attn_v.weight"), Format::Q5_K);
    assert_eq!(format(&made, "blk.2.attn_v.weight"), Format::Q4_K);
    assert_eq!(format(&made, "blk.2.attn_q.weight"), Format::Q3_K);
    assert_eq!(format(&made, "blk.2.attn_norm.weight"), Format::F32);
    let metadata = GgufFile::open(&made).unwrap().metadata().clone();
    assert_eq!(metadata.get_u32("general.file_type").unwrap(), 12);
    assert_eq!(metadata.get_u32("general.quantization_version").unwrap(), 2);
    let folder = tempfile::tempdir().unwrap();
    let made = quantize(folder.path(), "q4_k_m", &["--pure", "--output-tensor-type", "f16"]);
    assert_eq!(format(&made, "token_embd.weight"), Format::F16);
    assert_eq!(format(&made, "blk.3.ffn_down.weight"), Format::Q4_K);
}

/// A file of importance for every matrix of nano's layers: the first columns matter a hundred times as much.
fn importance(path: &Path, columns: impl Fn(usize) -> usize) {
    let source = GgufFile::open(model("nano-f16")).unwrap();
    let mut metadata = Metadata::new();
    metadata.insert("general.type", Value::String("imatrix".into()));
    metadata.insert("imatrix.chunk_count", Value::U32(9));
    let mut tensors = Vec::new();
    for tensor in source.tensors().filter(|t| t.shape.len() == 2 && t.name.starts_with("blk.")) {
        let columns = columns(tensor.shape[1]);
        let sums: Vec<f32> = (0..columns).map(|i| if i % 8 == 0 { 400.0 } else { 4.0 }).collect();
        tensors.push((format!("{}.in_sum2", tensor.name), vec![1, columns], sums));
        tensors.push((format!("{}.counts", tensor.name), vec![1, 1], vec![4.0]));
    }
    let spec = |(name, shape, _): &(String, Vec<usize>, Vec<f32>)| TensorSpec {
        name: name.clone(),
        shape: shape.clone(),
        format: Format::F32,
    };
    let out = std::fs::File::create(path).unwrap();
    let mut writer = GgufWriter::create(out, &metadata, tensors.iter().map(spec).collect()).unwrap();
    for (name, _, values) in &tensors {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        writer.tensor(name, &bytes).unwrap();
    }
    writer.finish().unwrap();
}

/// The values of a tensor of a file.
fn values(path: &str, name: &str) -> Vec<f32> {
    let file = GgufFile::open(path).unwrap();
    let info = file.require(name).unwrap();
    let mut values = vec![0.0; info.elements()];
    tallow_quant::dequantize(info.format().unwrap(), file.tensor_data(info).unwrap(), &mut values).unwrap();
    values
}

#[test]
fn an_importance_matrix_is_heeded() {
    let (folder, aside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let matrix = aside.path().join("nano.imatrix");
    importance(&matrix, |columns| columns);
    let heeded = quantize(folder.path(), "Q4_K_S", &["--imatrix", matrix.to_str().unwrap()]);
    let metadata = GgufFile::open(&heeded).unwrap().metadata().clone();
    assert_eq!(metadata.get_str("quantize.imatrix.file").unwrap(), matrix.to_str().unwrap());
    assert_eq!(metadata.get_u32("quantize.imatrix.entries_count").unwrap(), 28);
    assert_eq!(metadata.get_u32("quantize.imatrix.chunks_count").unwrap(), 9);
    let other = tempfile::tempdir().unwrap();
    let plain = quantize(other.path(), "Q4_K_S", &[]);
    // Of the columns that matter, the error falls; of the embedding, which the matrix does not have, nothing changes.
    for name in ["blk.1.ffn_down.weight", "blk.3.attn_q.weight"] {
        let exact = values(&model("nano-f16"), name);
        let error = |path: &str| -> f64 {
            let pairs = exact.iter().zip(values(path, name));
            pairs.step_by(8).map(|(x, y)| f64::from(x - y).powi(2)).sum()
        };
        assert!(error(&heeded) < 0.6 * error(&plain), "{name}: {} and {}", error(&heeded), error(&plain));
    }
    assert_eq!(values(&heeded, "token_embd.weight"), values(&plain, "token_embd.weight"));
    // Of another model.
    importance(&matrix, |columns| columns / 2);
    let out = aside.path().join("out.gguf");
    let (matrix, out) = (matrix.to_str().unwrap(), out.to_str().unwrap());
    let args = ["quantize", &model("nano-f16"), out, "--type", "Q4_K_S", "--imatrix", matrix];
    fails(&args, &["blk.0.attn_k.weight has 1 x 256 columns", "1 x 128 values"]);
    assert!(!Path::new(out).exists());
}

#[test]
fn requests_that_make_no_sense() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf").to_str().unwrap().to_owned();
    let nano = model("nano-f16");
    fails(&["quantize", &nano, &out, "--type", "Q9_K"], &["--type \"Q9_K\"", "Q4_K_M"]);
    let bad = ["quantize", &nano, &out, "--type", "Q4_0", "--output-tensor-type", "q8_k"];
    fails(&bad, &["--output-tensor-type \"q8_k\""]);
    fails(&["quantize", &nano, &out, "--type", "Q4_0", "--threads", "0"], &["--threads"]);
    fails(&["quantize", &nano, &out, "--type", "Q4_0", "--imatrix", &nano], &["general.type", "imatrix"]);
    let missing = ["quantize", &nano, &out, "--type", "Q4_0", "--imatrix", "no/such/file"];
    fails(&missing, &["no/such/file"]);
    fails(
        &["quantize", "no/such/model.gguf", &out, "--type", "Q4_0"],
        &["no/such/model.gguf", "No such file"],
    );
    let nowhere = folder.path().join("no/such/folder/out.gguf").to_str().unwrap().to_owned();
    fails(&["quantize", &nano, &nowhere, "--type", "Q4_0"], &["cannot write", &nowhere, "No such file"]);
    // A model is not written over itself, also under another name.
    let copy = folder.path().join("copy.gguf").to_str().unwrap().to_owned();
    std::fs::copy(&nano, &copy).unwrap();
    let around = folder.path().join("./copy.gguf").to_str().unwrap().to_owned();
    fails(&["quantize", &copy, &around, "--type", "Q4_0"], &["is the model itself"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "only the copy");
}

#[test]
fn what_is_quantized_already() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf").to_str().unwrap().to_owned();
    let small = model("nano-Q4_K_M");
    fails(&["quantize", &small, &out, "--type", "Q3_K_S"], &["blk.0.attn_k.weight", "--allow-requantize"]);
    // What keeps its format loses nothing.
    success(&["quantize", &small, &out, "--type", "Q4_K_M"]);
    assert!(std::fs::read(&small).unwrap() == std::fs::read(&out).unwrap());
    let done = tallow(&["quantize", &small, &out, "--type", "Q3_K_S", "--allow-requantize"]);
    assert!(done.status.success() && stderr(&done).is_empty(), "{}", stderr(&done));
    assert!(String::from_utf8(done.stdout).unwrap().contains("q4_k to q3_k"));
}

/// A matrix that the program measured is one that it reads, and what it weights comes out nearer.
#[test]
fn importance_is_measured_on_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let text = std::fs::read_to_string(model("nano-f16").replace("storyteller-nano-f16.gguf", "SOURCES.md"))
        .unwrap();
    let start = text.char_indices().nth(6000).unwrap().0;
    std::fs::write(path("text"), &text[..start]).unwrap();
    let (nano, matrix) = (model("nano-f16"), path("nano.imatrix"));
    let args = |out: &str, more: &[&str]| {
        let args = ["imatrix", "--device", "cpu", "--model", &nano, "--file", &path("text"), "--output", out];
        [&args, more].concat().iter().map(|a| (*a).to_owned()).collect::<Vec<String>>()
    };
    let run = |out: &str, more: &[&str]| {
        let args = args(out, more);
        success(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let said = run(&matrix, &["--chunk", "128", "--chunks", "3"]);
    assert_eq!(said, format!("{matrix}: 28 weights, 384 tokens in 3 chunks\n"));
    let file = GgufFile::open(&matrix).unwrap();
    assert_eq!(file.metadata().get_str("general.type").unwrap(), "imatrix");
    assert_eq!(file.metadata().get_strs("imatrix.datasets").unwrap(), ["text"]);
    assert_eq!(file.metadata().get_u32("imatrix.chunk_size").unwrap(), 128);
    assert_eq!(file.require("blk.2.ffn_down.weight.in_sum2").unwrap().shape, [1, 768]);
    let (plain, heeded) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let plain = quantize(plain.path(), "Q2_K_S", &[]);
    let heeded = quantize(heeded.path(), "Q2_K_S", &["--imatrix", &matrix]);
    // The error of what a weight makes of its inputs, were their columns independent.
    for name in ["blk.0.attn_q.weight", "blk.1.ffn_up.weight", "blk.3.ffn_down.weight"] {
        let (exact, squares) = (values(&nano, name), values(&matrix, &format!("{name}.in_sum2")));
        let error = |model: &str| -> f64 {
            let pairs = exact.iter().zip(values(model, name)).zip(squares.iter().cycle());
            pairs.map(|((x, y), w)| f64::from(x - y).powi(2) * f64::from(*w)).sum()
        };
        assert!(error(&heeded) < error(&plain), "{name}: {} and {}", error(&heeded), error(&plain));
    }

    let empty = path("empty");
    std::fs::write(&empty, "").unwrap();
    fails(&["imatrix", "--model", &nano, "--file", &empty, "--output", &matrix], &["empty", "no text"]);
    fails(&["imatrix", "--model", &nano, "--file", "no/such/text", "--output", &matrix], &["no/such/text"]);
    let long = args(&matrix, &["--chunk", "2000"]);
    fails(&long.iter().map(String::as_str).collect::<Vec<_>>(), &["2000", "1 to 1024"]);
    let nowhere = path("no/such/folder/out");
    let args = args(&nowhere, &["--chunk", "64", "--chunks", "1"]);
    fails(&args.iter().map(String::as_str).collect::<Vec<_>>(), &["cannot write", &nowhere]);
}
