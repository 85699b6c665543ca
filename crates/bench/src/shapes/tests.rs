//! Shapes against what is published of the models, and what is counted of them.

use super::*;
use tallow_models::CacheType;

fn model(name: &str, format: Format, cache: CacheTypes) -> ModelGraph {
    Shape::find(name).unwrap().model(format, cache).unwrap()
}

fn same(kind: CacheType) -> CacheTypes {
    CacheTypes { keys: kind, values: kind }
}

/// The published numbers of weights, in millions: of all, and of those that a token is multiplied by.
#[test]
fn shapes_have_as_many_weights_as_the_models() {
    for (name, all, used) in [
        // 8.03 and 7.50 billion, less the part of the vocabulary of 128256 tokens that is left out here.
        ("llama3-8b", 7_241, 7_110),
        // "15.7B" and "2.4B" (arXiv 2405.04434, appendix B).
        ("deepseek-v2-lite", 15_706, 2_447),
        // 20.91 and 3.61 billion (arXiv 2508.10925, table 1).
        ("gpt-oss-20b", 20_914, 3_604),
        // The embedding is the output matrix too (arXiv 2503.19786, table 1).
        ("gemma3-4b", 3_880, 3_879),
    ] {
        let model = model(name, Format::F16, CacheTypes::default());
        let elements: u64 = model.types.iter().map(|(_, ty)| ty.shape.max_numel()).sum();
        let product =
            |(_, extents, used): (&str, Vec<usize>, f64)| extents.iter().product::<usize>() as f64 * used;
        let found: f64 = multiplied(&model).map(product).sum();
        assert_eq!((elements / 1_000_000, (found / 1e6) as u64), (all, used), "{name}");
    }
}

#[test]
fn rows_that_are_no_whole_blocks_are_in_another_format() {
    let model = model("deepseek-v2-lite", Format::Q4_K, CacheTypes::default());
    let dtype_of = |name: &str| model.types.get(name).unwrap().dtype;
    assert_eq!(dtype_of("blk.1.ffn_gate_exps.weight"), dtype(Format::Q4_K));
    // Rows of 1408 and of 128.
    assert_eq!(dtype_of("blk.1.ffn_down_exps.weight"), dtype(Format::Q5_0));
    assert_eq!(dtype_of("blk.1.attn_k_b.weight"), dtype(Format::Q5_0));
    assert_eq!(dtype_of("blk.1.ffn_gate_inp.weight"), dtype(Format::F32));
    assert!(model.types.get("blk.0.ffn_gate_exps.weight").is_none(), "the first layer is dense");
}

#[test]
fn experts_of_gpt_oss_are_always_mxfp4() {
    let model = model("gpt-oss-20b", Format::Q8_0, CacheTypes::default());
    let dtype_of = |name: &str| model.types.get(name).unwrap().dtype;
    assert_eq!(dtype_of("blk.0.ffn_up_exps.weight"), dtype(Format::MXFP4));
    assert_eq!(dtype_of("blk.0.attn_q.weight"), dtype(Format::Q8_0));
    for bias in ["attn_q.bias", "ffn_gate_inp.bias", "ffn_down_exps.bias", "attn_sinks.weight"] {
        assert_eq!(dtype_of(&format!("blk.23.{bias}")), dtype(Format::F32));
    }
}

#[test]
fn the_bytes_of_the_cache_are_those_of_its_type_within_the_window() {
    let read = |name, cache, depth| cache_read(&model(name, Format::Q8_0, cache), depth).unwrap();
    let f16 = CacheTypes::default();
    // Layers times keys and values of 8 heads of 128.
    assert_eq!(read("llama3-8b", f16, 1000), 1000 * 32 * 2 * 1024 * 2);
    assert_eq!(read("llama3-8b", same(CacheType::Q8_0), 1000), 1000 * 32 * 2 * 1024 / 32 * 34);
    let mixed = CacheTypes { keys: CacheType::F32, values: CacheType::Q4_0 };
    assert_eq!(read("llama3-8b", mixed, 1000), 1000 * 32 * (1024 * 4 + 1024 / 32 * 18));
    // One row of 512 + 64 elements.
    assert_eq!(read("deepseek-v2-lite", f16, 1000), 1000 * 27 * 576 * 2);
    assert_eq!(read("gpt-oss-20b", f16, 1000), (12 * 128 + 12 * 1000) * 2 * 512 * 2);
    // The last of 6 layers sees all keys.
    assert_eq!(read("gemma3-4b", f16, 4096), (29 * 1024 + 5 * 4096) * 2 * 1024 * 2);
}
