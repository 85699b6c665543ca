//! Embeddings: pooling, lengths of texts, models that are refused, and all-MiniLM-L6-v2 against sentence-transformers.

use tallow::{Device, Tensor};
use tallow_gguf::{GgufFile, Metadata, Value};
use tallow_models::config::Pooling;
use tallow_models::{
    Activations, CacheType, CacheTypes, EmbedOptions, Embedder, LoadOptions, ModelFile, Scorer,
};
use tallow_quant::dequantize;
use tallow_testmodels::encoder;

use crate::architectures::vulkan;
use crate::support::nmse;
use crate::tiny::nano;

const TEXTS: [&str; 4] = ["a king, and a queen!", "", "once upon a time there was a mill", "é 7"];

fn open(
    change: impl FnOnce(&mut Metadata),
    keeps: impl Fn(&str) -> bool,
) -> tallow_models::Result<ModelFile> {
    ModelFile::new(GgufFile::parse(encoder(change, keeps).unwrap()).unwrap())
}

fn load(options: EmbedOptions) -> Embedder {
    let file = open(|_| {}, |_| true).unwrap();
    Embedder::load(file, &Device::Cpu, &options, &mut |_| {}).unwrap()
}

fn length(row: &[f32]) -> f64 {
    row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn pooling_takes_the_rows_that_it_names() {
    let embedded = |pooling, normalize| {
        load(EmbedOptions { pooling, normalize, ..EmbedOptions::default() }).embed(&TEXTS).unwrap()
    };
    let rows = embedded(Some(Pooling::None), false);
    let means = embedded(Some(Pooling::Mean), false);
    let (first, last) = (embedded(Some(Pooling::Cls), false), embedded(Some(Pooling::Last), false));
    // `[CLS]`, 14 letters and two signs, `[SEP]`.
    assert_eq!(rows[0].len(), 18 * 32);
    for (text, rows) in rows.iter().enumerate() {
        let rows: Vec<&[f32]> = rows.chunks(32).collect();
        let mean: Vec<f32> =
            (0..32).map(|at| rows.iter().map(|row| row[at]).sum::<f32>() / rows.len() as f32).collect();
        assert!(nmse(&means[text], &mean) < 1e-12);
        assert_eq!((&*first[text], &*last[text]), (rows[0], rows[rows.len() - 1]));
    }
    // As the file says, and of unit length.
    for (unit, mean) in embedded(None, true).iter().zip(&means) {
        assert!((length(unit) - 1.0).abs() < 1e-6);
        let scaled: Vec<f32> = mean.iter().map(|x| (f64::from(*x) / length(mean)) as f32).collect();
        assert!(nmse(unit, &scaled) < 1e-12);
    }
    for row in embedded(Some(Pooling::None), true).concat().chunks(32) {
        assert!((length(row) - 1.0).abs() < 1e-6);
    }
}

#[test]
fn texts_do_not_depend_on_each_other() {
    let mut embedder = load(EmbedOptions::default());
    let combined = embedder.embed(&TEXTS).unwrap();
    for (text, expected) in TEXTS.iter().zip(&combined).rev() {
        assert_eq!(&embedder.embed(&[text]).unwrap()[0], expected);
    }
    assert!(embedder.embed(&[]).unwrap().is_empty());
}

#[test]
fn texts_of_any_length_embed_on_the_device() {
    let device = match Device::best_vulkan() {
        Ok(device) => device,
        Err(why) if std::env::var("REQUIRE_VULKAN").is_ok_and(|v| v == "1") => panic!("{why}"),
        Err(_) => return,
    };
    let options = EmbedOptions { activations: Activations::Exact, ..EmbedOptions::default() };
    let mut here = load(options);
    let file = open(|_| {}, |_| true).unwrap();
    let mut there = Embedder::load(file, &device, &options, &mut |_| {}).unwrap();
    // Of the plans for up to 16, 32 and 48 tokens.
    let long = "a".repeat(46);
    let texts = ["", "a", &long[..14], &long[..15], &long, "a b"];
    for (found, expected) in there.embed(&texts).unwrap().iter().zip(here.embed(&texts).unwrap()) {
        assert!(nmse(found, &expected) < 1e-10);
    }
}

#[test]
fn long_texts_are_cut_or_refused() {
    let long = "ab ".repeat(30);
    let error = load(EmbedOptions::default()).embed(&["a", &long]).unwrap_err().to_string();
    assert!(error.contains("text 2 has 62 tokens") && error.contains("48"), "{error}");

    let mut embedder = load(EmbedOptions { truncate: true, context: Some(10), ..EmbedOptions::default() });
    let cut = embedder.embed(&[&long]).unwrap();
    // `[CLS]`, four words of two tokens, `[SEP]`.
    assert_eq!(cut, embedder.embed(&["ab ab ab ab"]).unwrap());

    let file = open(|_| {}, |_| true).unwrap();
    let options = EmbedOptions { context: Some(49), ..EmbedOptions::default() };
    let error = Embedder::load(file, &Device::Cpu, &options, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("49") && error.contains("1 to 48"), "{error}");
}

#[test]
fn an_encoder_generates_nothing() {
    let says = |error: tallow_models::Error| {
        let error = error.to_string();
        assert!(error.contains("bert is an encoder") && error.contains("tallow embed"), "{error}");
    };
    let file = open(|_| {}, |_| true).unwrap();
    let options = LoadOptions::default();
    says(Scorer::load(&file, &Device::Cpu, &options, &mut |_| {}).unwrap_err());
    says(file.check_prompt(&[1], &options).unwrap_err());
    says(file.load(&Device::Cpu, &options, &mut |_| {}).unwrap_err());
}

#[test]
fn metadata_and_tensors_that_do_not_fit_are_named() {
    for (key, value, says) in [
        ("bert.attention.head_count", Value::U32(5), "bert.attention.head_count"),
        ("bert.attention.head_count", Value::U32(0), "bert.attention.head_count"),
        ("bert.pooling_type", Value::String("mean".into()), "bert.pooling_type"),
        ("bert.attention.layer_norm_epsilon", Value::F32(-1.0), "bert.attention.layer_norm_epsilon"),
        ("bert.context_length", Value::U32(64), "position_embd.weight"),
        ("bert.embedding_length", Value::U32(64), "token_embd.weight"),
        ("bert.feed_forward_length", Value::U32(1 << 24), "blk.0.ffn_up.weight"),
        ("bert.block_count", Value::U32(3), "blk.2."),
        ("bert.block_count", Value::U32(1 << 23), "bert.block_count"),
        ("bert.attention.key_length", Value::U32(16), "blk.0.attn_q.weight"),
        ("general.architecture", Value::String("nomic-bert".into()), "nomic-bert."),
    ] {
        let error = open(|metadata| drop(metadata.insert(key, value)), |_| true).unwrap_err().to_string();
        assert!(error.contains(says), "{key}: {error}");
    }
    for missing in
        ["token_types.weight", "token_embd_norm.weight", "position_embd.weight", "blk.1.attn_k.weight"]
    {
        let error = open(|_| {}, |name| name != missing).unwrap_err().to_string();
        assert!(error.contains(missing), "{missing}: {error}");
    }
}

/// A file may name a pooling that nothing here computes: another one can be asked for.
#[test]
fn an_unknown_pooling_can_be_replaced() {
    let change = |metadata: &mut Metadata| drop(metadata.insert("bert.pooling_type", Value::U32(4)));
    for device in vulkan().into_iter().chain([Device::Cpu]) {
        let load = |pooling| {
            let options = EmbedOptions { pooling, ..EmbedOptions::default() };
            Embedder::load(open(change, |_| true).unwrap(), &device, &options, &mut |_| {})
        };
        let error = load(None).unwrap_err().to_string();
        assert!(error.contains("bert.pooling_type") && error.contains("4 is not supported"), "{error}");
        assert_eq!(load(Some(Pooling::Cls)).unwrap().model().pooling(), Pooling::Cls);
    }
}

/// A model that generates embeds the rows of which its logits are products.
#[test]
fn a_decoder_embeds_its_last_row() {
    let file = nano("f16");
    let tokens = file.tokenizer().encode("Once upon a time", true).unwrap();
    let cache = CacheTypes { keys: CacheType::F32, values: CacheType::F32 };
    let options = LoadOptions { cache, activations: Activations::Exact, ..LoadOptions::default() };
    let logits = nano("f16").load(&Device::Cpu, &options, &mut |_| {}).unwrap().feed(&tokens).unwrap();

    let options = EmbedOptions { normalize: false, context: Some(64), ..EmbedOptions::default() };
    let mut embedder = Embedder::load(file, &Device::Cpu, &options, &mut |_| {}).unwrap();
    assert_eq!(embedder.model().pooling(), Pooling::Last);
    let row = embedder.embed(&["Once upon a time"]).unwrap().remove(0);

    let file = GgufFile::open(tallow_testmodels::model("storyteller-nano-f16")).unwrap();
    let info = file.require("token_embd.weight").unwrap();
    let mut table = vec![0.0; info.elements()];
    dequantize(info.format().unwrap(), file.tensor_data(info).unwrap(), &mut table).unwrap();
    let table = Tensor::from_vec(table, info.shape.as_slice(), &Device::Cpu).unwrap();
    let row = Tensor::from_vec(row, (256, 1), &Device::Cpu).unwrap();
    let product = table.matmul(&row).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert!(nmse(&product, &logits) < 1e-6);
}

/// `TALLOW_MINILM_GGUF` names the file that `scripts/minilm.py` writes; without it, there is nothing to test.
#[test]
fn minilm_is_that_of_sentence_transformers() {
    let Ok(path) = std::env::var("TALLOW_MINILM_GGUF") else { return };
    let fixture: serde_json::Value = serde_json::from_str(include_str!("../fixtures/minilm.json")).unwrap();
    let rows = fixture["texts"].as_array().unwrap();
    let texts: Vec<&str> = rows.iter().map(|row| row["text"].as_str().unwrap()).collect();
    let options = EmbedOptions { context: Some(256), truncate: true, ..EmbedOptions::default() };
    let file = ModelFile::open(path).unwrap();
    let mut embedder = Embedder::load(file, &Device::Cpu, &options, &mut |_| {}).unwrap();
    for (found, row) in embedder.embed(&texts).unwrap().iter().zip(rows) {
        for (component, expected) in found.iter().zip(row["embedding"].as_array().unwrap()) {
            assert!((f64::from(*component) - expected.as_f64().unwrap()).abs() < 2e-6, "{}", row["text"]);
        }
    }
}
