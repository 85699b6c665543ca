//! Recurrent models: a text in any pieces gives the same logits, and one that is truncated starts again from its first token.

use std::ops::ControlFlow;

use tallow::Device;
use tallow_gguf::Format;
use tallow_models::{Architecture, Decoder};

use crate::architectures::{Fixture, error};

/// The recurrent models, each with its logits in f32.
fn fixtures() -> Vec<(Fixture, Vec<Vec<f64>>)> {
    let is_recurrent = |fixture: &Fixture| Architecture::of(&fixture.metadata()).unwrap().is_recurrent();
    let with_logits = |fixture: Fixture| {
        let logits = fixture.logits.as_ref().unwrap()["F32"].clone();
        (fixture, logits)
    };
    Fixture::all().into_iter().filter(is_recurrent).map(with_logits).collect()
}

fn devices() -> Vec<Device> {
    match Device::best_vulkan() {
        Ok(device) => vec![Device::Cpu, device],
        Err(why) if std::env::var("REQUIRE_VULKAN").is_ok_and(|v| v == "1") => panic!("{why}"),
        Err(_) => vec![Device::Cpu],
    }
}

/// Each recurrent model on each device, with its text and the logits after each token.
fn with_each(check: impl Fn(&mut Decoder, &[u32], &[Vec<f64>], &str)) {
    let all = fixtures();
    assert!(all.len() >= 3, "{} recurrent models", all.len());
    for device in devices() {
        for (fixture, logits) in &all {
            let mut decoder = fixture.load(fixture.file(Format::F32), &device);
            check(&mut decoder, &fixture.tokens, logits, &format!("{} on {device:?}", fixture.name));
        }
    }
}

fn assert_close(found: &[f32], expected: &[f64], what: &str) {
    let error = error(found, expected);
    assert!(error < 1e-6, "{what}: {error:.1e}");
}

/// Every prompt before single tokens, and pieces of every length: those of fewer tokens than the convolution sees, and of
/// more than a run takes.
#[test]
fn pieces_of_any_length_give_the_same_logits() {
    with_each(|decoder, tokens, logits, what| {
        for prompt in 1..tokens.len() {
            decoder.reset();
            assert_close(&decoder.feed(&tokens[..prompt]).unwrap(), &logits[prompt - 1], what);
            let next = decoder.feed(&tokens[prompt..=prompt]).unwrap();
            assert_close(&next, &logits[prompt], &format!("{what}, after a prompt of {prompt}"));
        }
        for length in 1..=tokens.len() {
            decoder.reset();
            let mut at = 0;
            for piece in tokens.chunks(length) {
                at += piece.len();
                let found = decoder.feed(piece).unwrap();
                assert_close(&found, &logits[at - 1], &format!("{what}, {at} tokens in pieces of {length}"));
            }
        }
    });
}

/// States cannot go back: the text is computed again when it goes on.
#[test]
fn a_truncated_text_starts_again() {
    with_each(|decoder, tokens, logits, what| {
        decoder.feed(tokens).unwrap();
        for position in [tokens.len() - 1, 5, 1, 0] {
            assert_eq!(decoder.reusable(position), 0, "{what}");
            decoder.rewind(position).unwrap();
            assert_eq!(decoder.position(), position);
            let found = decoder.feed(&tokens[position..]).unwrap();
            assert_close(&found, &logits[tokens.len() - 1], &format!("{what}, from {position}"));
            assert_eq!(decoder.tokens(), tokens);
        }
        // Where the text ends, nothing is computed again.
        assert_eq!(decoder.reusable(tokens.len()), tokens.len());
        // Another continuation of the same beginning, one token at a time.
        decoder.rewind(4).unwrap();
        decoder.feed_greedy(tokens[7]).unwrap();
        let found = decoder.feed(&tokens[..2]).unwrap();
        decoder.reset();
        let other = [&tokens[..4], &tokens[7..8], &tokens[..2]].concat();
        let expected: Vec<f64> = decoder.feed(&other).unwrap().into_iter().map(f64::from).collect();
        assert_close(&found, &expected, &format!("{what}, another text"));
    });
}

/// The device is at tokens that nobody wants when a text ends.
#[test]
fn a_text_that_was_generated_can_be_continued() {
    with_each(|decoder, tokens, _, what| {
        for wanted in [1, 2, 6, 20] {
            decoder.reset();
            decoder.feed(&tokens[..5]).unwrap();
            let mut generated = vec![];
            let count = decoder.follow_greedy(tokens[5], 20, &mut |token| {
                generated.push(token);
                if generated.len() == wanted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert_eq!(count.unwrap(), wanted);
            let found = decoder.feed(&tokens[6..9]).unwrap();
            let text = [&tokens[..6], &generated[..wanted - 1], &tokens[6..9]].concat();
            assert_eq!(decoder.tokens(), text);
            decoder.reset();
            let expected: Vec<f64> = decoder.feed(&text).unwrap().into_iter().map(f64::from).collect();
            assert_close(&found, &expected, &format!("{what}, after {wanted} tokens"));
        }
    });
}
