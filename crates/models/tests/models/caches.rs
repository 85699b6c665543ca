//! Caches of every type on the interpreter: what rounding keys and values costs, in logits and in greedy texts.

use tallow::Device;
use tallow_models::{CacheType, CacheTypes, LoadOptions, Model, ModelFile};

use tallow_testmodels::model;

use crate::support::{expected, nmse};

fn load(name: &str, keys: CacheType, values: CacheType, chunk: Option<usize>) -> Model {
    let options = LoadOptions { cache: CacheTypes { keys, values }, chunk, ..LoadOptions::default() };
    let file = ModelFile::open(model(name)).unwrap();
    file.load(&Device::Cpu, &options, &mut |_| {}).unwrap()
}

fn best_two(logits: &[f32]) -> (u32, f32) {
    let at = |skip: Option<usize>| {
        let all = (0..logits.len()).rev().filter(|i| Some(*i) != skip);
        all.max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap()
    };
    let best = at(None);
    (best as u32, logits[best] - logits[at(Some(best))])
}

/// The expected texts, token by token: where a rounded cache prefers another one, the two best were nearer than the logits
/// were off.
fn check(name: &str, keys: CacheType, values: CacheType, most: f64) {
    let mut model = load(name, keys, values, None);
    let mut exact = load(name, CacheType::F16, CacheType::F16, None);
    let (mut equal, mut steps, mut worst) = (0, 0, 0f64);
    for row in expected(name) {
        model.reset();
        exact.reset();
        let (mut got, mut want) = (model.feed(&row.tokens).unwrap(), exact.feed(&row.tokens).unwrap());
        for token in &row.greedy_tokens {
            worst = worst.max(nmse(&got, &want));
            let (best, margin) = best_two(&want);
            assert_eq!(best, *token, "{name}: {:?}", row.prompt);
            let off = got.iter().zip(&want).map(|(g, w)| (g - w).abs()).fold(0f32, f32::max);
            let same = best_two(&got).0 == best;
            assert!(same || margin <= 2.0 * off, "{name}: {:?}: margin {margin}, off by {off}", row.prompt);
            equal += usize::from(same);
            steps += 1;
            (got, want) = (model.feed(&[*token]).unwrap(), exact.feed(&[*token]).unwrap());
        }
    }
    println!("{name} {keys} {values}: {equal} of {steps} tokens, worst NMSE {worst:.1e}");
    assert!(worst <= most && equal * 100 >= steps * 90, "{equal} of {steps}, NMSE {worst:e}");
}

/// A value rounded to a step of a 127th of the largest of its 32 is off by (2.4 / 127)^2 / 12 = 3e-5 of the energy, f16 by
/// 1e-7; what four layers make of it has been an order more.
#[test]
fn nano_with_keys_and_values_of_8_bits() {
    check("storyteller-nano-f16", CacheType::Q8_0, CacheType::Q8_0, 1e-3);
}

#[test]
fn nano_with_keys_and_values_of_32_bits() {
    check("storyteller-nano-f16", CacheType::F32, CacheType::F32, 1e-6);
}

/// Steps of an eighth: (2.4 / 8)^2 / 12 = 8e-3 of the energy.
#[test]
fn nano_with_values_of_4_bits() {
    check("storyteller-nano-Q4_K_M", CacheType::F16, CacheType::Q4_0, 0.1);
}

/// Rows are rounded by themselves, so it does not matter how a text is cut into runs, but for values that sums in another
/// order move across a half: 2 * 127 * 1e-5 of them at most, each for 12 times what rounding costs on the average.
#[test]
fn chunks_agree() {
    let name = "storyteller-nano-f16";
    let row = expected(name).into_iter().max_by_key(|row| row.tokens.len()).unwrap();
    let logits = |chunk, keys, values| load(name, keys, values, Some(chunk)).feed(&row.tokens).unwrap();
    for (keys, values) in [(CacheType::Q8_0, CacheType::Q4_0), (CacheType::Q4_0, CacheType::Q8_0)] {
        let whole = logits(row.tokens.len(), keys, values);
        let lost = nmse(&whole, &logits(row.tokens.len(), CacheType::F32, CacheType::F32));
        for chunk in [1, 7] {
            let error = nmse(&logits(chunk, keys, values), &whole);
            println!("{keys} {values} by {chunk}: NMSE {error:.1e} of {lost:.1e}");
            assert!(error <= 0.03 * lost + 1e-6, "chunk {chunk}: NMSE {error:e} of {lost:e}");
        }
    }
}

#[test]
fn heads_are_whole_blocks() {
    let file = ModelFile::open(model("storyteller-nano-Q4_K_M")).unwrap();
    let mut config = file.model_graph().config.clone();
    let types = |keys, values| CacheTypes { keys, values };
    assert!(types(CacheType::Q4_0, CacheType::Q8_0).check(&config).is_ok());
    config.value_length = 48;
    assert!(types(CacheType::Q8_0, CacheType::F16).check(&config).is_ok());
    let why = types(CacheType::Q8_0, CacheType::Q4_0).check(&config).unwrap_err().to_string();
    let says = "a value cache of q4_0 holds blocks of 32, and heads of 48 are no whole ones; take f16";
    assert_eq!(why, says);
}
