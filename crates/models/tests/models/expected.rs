//! Every model file against `models/expected`, which an independent float64 program made from the same
//! weights, and how runs, context and requests behave, all on the interpreter.

use std::ops::ControlFlow;

use crate::support::{MAX_NMSE, check, expected, nmse_of_logits};
use tallow::Device;
use tallow_models::generate::{GenerateOptions, Stop, generate};
use tallow_models::{LoadOptions, Model, ModelFile, SamplingOptions};

fn open(name: &str) -> ModelFile {
    ModelFile::open(tallow_testmodels::model(name)).unwrap()
}

fn load(name: &str, options: &LoadOptions) -> Model {
    open(name).load(&Device::Cpu, options, &mut |_| {}).unwrap()
}

fn check_file(name: &str) {
    check(name, open(name));
}

#[test]
fn nano_f16() {
    check_file("storyteller-nano-f16");
}

#[test]
fn nano_q4_0() {
    check_file("storyteller-nano-Q4_0");
}

#[test]
fn nano_q4_k_m() {
    check_file("storyteller-nano-Q4_K_M");
}

#[test]
fn main_q4_k_m() {
    check_file("storyteller-main-Q4_K_M");
}

/// However a text is cut into runs, and whatever the cache held before, its logits are the same.
#[test]
fn chunks_and_steps_agree() {
    let name = "storyteller-nano-f16";
    let row = expected(name).into_iter().max_by_key(|row| row.tokens.len()).unwrap();
    let context = Some(row.tokens.len());
    for chunk in [1, 2, 7, row.tokens.len() - 1] {
        let mut model = load(name, &LoadOptions { context, chunk: Some(chunk), ..LoadOptions::default() });
        for _ in 0..2 {
            model.reset();
            let (first, rest) = row.tokens.split_at(3);
            model.feed(first).unwrap();
            assert!(nmse_of_logits(&model.feed(rest).unwrap(), &row) < MAX_NMSE, "chunk {chunk}");
            assert_eq!(model.position(), row.tokens.len());
        }
        let error = model.feed(&[5]).unwrap_err().to_string();
        assert!(error.contains("the context holds"), "{error}");
    }
}

#[test]
fn a_text_ends_where_its_context_does() {
    let mut model =
        load("storyteller-nano-Q4_0", &LoadOptions { context: Some(12), ..LoadOptions::default() });
    let prompt = model.tokenizer().encode("Once upon a time", true).unwrap();
    let sampling = SamplingOptions { temperature: 1.0, seed: 3, ..SamplingOptions::default() };
    let mut run = |max_tokens| {
        let options = GenerateOptions { max_tokens, sampling: sampling.clone() };
        generate(&mut model, &prompt, &options, &mut |_| ControlFlow::Continue(())).unwrap()
    };
    let full = run(100);
    assert_eq!(full.stop, Stop::Context);
    // The last token is drawn from the logits of a full context and never fed.
    assert_eq!(full.tokens.len(), 12 - prompt.len() + 1);
    assert_eq!(full.decode_steps, full.tokens.len() - 1);
    let short = run(3);
    assert_eq!(short.stop, Stop::MaxTokens);
    assert_eq!((&short.tokens[..], short.decode_steps), (&full.tokens[..3], 2));
    assert!(run(0).tokens.is_empty());
}

#[test]
fn requests_that_cannot_be_met() {
    let open = || open("storyteller-nano-Q4_0");
    let says = |error: tallow_models::Error, part: &str| {
        assert!(error.to_string().contains(part), "{error}");
    };
    let small = LoadOptions { context: Some(4), ..LoadOptions::default() };
    says(open().check_prompt(&[], &small).unwrap_err(), "empty");
    says(open().check_prompt(&[1; 5], &small).unwrap_err(), "5 tokens, the context holds 4");
    says(open().check_prompt(&[9000], &small).unwrap_err(), "token 9000");
    for context in [0, 1025] {
        let options = LoadOptions { context: Some(context), ..LoadOptions::default() };
        says(open().load(&Device::Cpu, &options, &mut |_| {}).unwrap_err(), "1 to 1024");
    }
}
