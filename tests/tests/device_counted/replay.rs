//! Decode steps as they are replayed: what the device chooses, what is submitted, what the host allocates.

use std::ops::ControlFlow;
use std::path::PathBuf;

use allocation_counter::measure;
use tallow::Device;
use tallow_gguf::GgufFile;
use tallow_models::in_flight::MAX_IN_FLIGHT;
use tallow_models::model_graph::{POS, TOKENS};
use tallow_models::{Activations, Decode, LoadOptions, Model, ModelFile};
use tallow_tests::device::device;

fn path(name: &str) -> PathBuf {
    tallow_testmodels::model(name)
}

fn load(device: &Device, file: ModelFile, decode: Decode, activations: Activations) -> Model {
    let options = LoadOptions { context: Some(96), decode, activations, ..LoadOptions::default() };
    file.load(device, &options, &mut |_| {}).unwrap()
}

/// The first of the largest, as the sampler has it.
fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a }).unwrap() as u32
}

/// A text whose tokens the device chooses is the text that the host would choose from the same logits.
#[test]
fn the_device_chooses_as_the_host_does() {
    let Some(device) = device() else { return };
    for (name, activations) in [
        ("storyteller-nano-f16", Activations::Auto),
        ("storyteller-nano-Q4_0", Activations::Exact),
        ("storyteller-nano-Q4_K_M", Activations::Quantized),
    ] {
        let open = || ModelFile::open(path(name)).unwrap();
        let mut on_host = load(&device, open(), Decode::Logits, activations);
        let mut on_device = load(&device, open(), Decode::Token, activations);
        let prompt = on_host.tokenizer().encode("Once upon a time", true).unwrap();
        let first = best(&on_host.feed(&prompt).unwrap());
        assert_eq!(best(&on_device.feed(&prompt).unwrap()), first, "{name}");
        let mut token = first;
        for at in 0..40 {
            let expected = best(&on_host.feed(&[token]).unwrap());
            assert_eq!(on_device.feed_greedy(token).unwrap(), expected, "{name}, token {at}");
            token = expected;
        }
        // Either model has either step, on one cache.
        let expected = best(&on_host.feed(&[token]).unwrap());
        assert_eq!(best(&on_device.feed(&[token]).unwrap()), expected, "{name}");
        assert_eq!(
            on_host.feed_greedy(expected).unwrap(),
            on_device.feed_greedy(expected).unwrap(),
            "{name}"
        );
        assert_eq!(on_host.position(), prompt.len() + 42);
    }
}

/// Tokens that follow a first one, which `model` is to give from here on, one step at a time.
fn expected(model: &mut Model, first: u32, count: usize) -> Vec<u32> {
    let mut token = first;
    let step = |_| {
        token = model.feed_greedy(token).unwrap();
        token
    };
    (0..count).map(step).collect()
}

/// Steps that are submitted ahead give what steps give that wait for each other, wherever they end, and leave a text that
/// goes on from there.
#[test]
fn pipelined_steps_choose_the_same_tokens() {
    let Some(device) = device() else { return };
    for on in [Device::Cpu, device] {
        let open = || ModelFile::open(path("storyteller-nano-Q4_0")).unwrap();
        let mut stepped = load(&on, open(), Decode::Token, Activations::Auto);
        // The other step is compiled when it is first asked for.
        let mut pipelined = load(&on, open(), Decode::Logits, Activations::Auto);
        let prompt = stepped.tokenizer().encode("The dog", true).unwrap();
        for (count, taken) in [(1, 1), (2, 2), (9, 9), (9, 1), (9, 8), (2, 1), (1000, 1000)] {
            [&mut stepped, &mut pipelined].into_iter().for_each(Model::reset);
            let first = best(&stepped.feed(&prompt).unwrap());
            assert_eq!(best(&pipelined.feed(&prompt).unwrap()), first);
            let room = pipelined.context() - prompt.len();
            let want = expected(&mut stepped, first, taken.min(room));
            let mut got = vec![];
            let given = pipelined.follow_greedy(first, count, &mut |token| {
                got.push(token);
                if got.len() == taken { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert_eq!((given.unwrap(), &got), (want.len(), &want), "{on}: {taken} of {count}");
            assert_eq!(pipelined.position(), prompt.len() + want.len());
            if pipelined.position() < pipelined.context() {
                // The step after the last left nothing that counts.
                let last = *want.last().unwrap();
                assert_eq!(pipelined.feed(&[7, last]).unwrap(), stepped.feed(&[7, last]).unwrap(), "{on}");
            }
        }
        assert_eq!(pipelined.follow_greedy(7, 0, &mut |_| ControlFlow::Continue(())).unwrap(), 0);
        let full = pipelined.follow_greedy(7, 1, &mut |_| ControlFlow::Continue(()));
        assert!(matches!(full, Err(tallow_models::Error::PromptTooLong { .. })), "{on}: {full:?}");
    }
}

/// One submission a token, nothing recorded, nothing allocated: neither where the device chooses nor where logits are
/// read and dropped.
#[test]
fn a_decode_step_submits_once_and_allocates_nothing() {
    let Some(device) = device() else { return };
    let Device::Vulkan(vulkan) = &device else { panic!("{device} is no Vulkan device") };
    let file = || ModelFile::open(path("storyteller-nano-Q4_K_M")).unwrap();

    let mut model = load(&device, file(), Decode::Token, Activations::Auto);
    let mut token = best(&model.feed(&[1, 5, 6]).unwrap());
    token = model.feed_greedy(token).unwrap();
    token = model.feed_greedy(token).unwrap();
    let before = (vulkan.submissions(), vulkan.work_done());
    let info = measure(|| {
        for _ in 0..64 {
            token = model.feed_greedy(token).unwrap();
        }
    });
    assert_eq!(info.count_total, 0, "{info:?}");
    assert_eq!((vulkan.submissions(), vulkan.work_done()), (before.0 + 64, before.1));
    assert_eq!(model.position(), 69);

    // Ahead, too, once each of the executables has run.
    let mut follow = |count| {
        model.follow_greedy(token, count, &mut |chosen| {
            token = chosen;
            ControlFlow::Continue(())
        })
    };
    assert_eq!(follow(MAX_IN_FLIGHT).unwrap(), MAX_IN_FLIGHT);
    let before = (vulkan.submissions(), vulkan.work_done());
    let info = measure(|| assert_eq!(follow(16).unwrap(), 16));
    assert_eq!(info.count_total, 0, "{info:?}");
    assert_eq!((vulkan.submissions(), vulkan.work_done()), (before.0 + 16, before.1));

    let mut model = load(&device, file(), Decode::Logits, Activations::Auto);
    let mut logits = model.feed(&[1, 5, 6]).unwrap();
    let mut feed = |count| {
        (0..count).for_each(|_| model.feed_into(&[best(&logits)], &mut logits).unwrap());
    };
    feed(2);
    let before = (vulkan.submissions(), vulkan.work_done());
    let info = measure(|| feed(32));
    assert_eq!(info.count_total, 0, "{info:?}");
    assert_eq!((vulkan.submissions(), vulkan.work_done()), (before.0 + 32, before.1));

    model.reset();
    let step = |pos: u64| {
        let token = 5u32.to_le_bytes();
        let logits = model.decode().run(&[(POS, pos)], &[(TOKENS, &token)]).unwrap();
        assert_eq!(logits[0].bytes.len(), 4 * model.vocabulary());
    };
    (0..3).for_each(step);
    let info = measure(|| (3..67).for_each(step));
    assert_eq!(info.count_total, 0, "{info:?}");
    // The counter counts: results that are kept are memory that the next run has not.
    let run = |pos| model.decode().run(&[(POS, pos)], &[(TOKENS, &[5, 0, 0, 0])]).unwrap();
    let info = measure(|| drop((67..72).map(run).collect::<Vec<_>>()));
    assert!(info.count_total > 0, "{info:?}");
}

/// A model that computes NaN says so, on the device as from logits.
#[test]
fn a_logit_that_is_nan_is_an_error() {
    let Some(device) = device() else { return };
    let mut bytes = std::fs::read(path("storyteller-nano-f16")).unwrap();
    let file = GgufFile::parse(bytes.clone()).unwrap();
    let norm = file.tensor_data(file.require("output_norm.weight").unwrap()).unwrap();
    let at = bytes.windows(norm.len()).position(|w| w == norm).unwrap();
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    for on in [Device::Cpu, device] {
        let file = ModelFile::new(GgufFile::parse(bytes.clone()).unwrap()).unwrap();
        let mut model = load(&on, file, Decode::Token, Activations::Auto);
        let error = model.feed_greedy(5).unwrap_err();
        assert!(matches!(error, tallow_models::Error::NanLogit { token: 0 }), "{on}: {error}");
        assert_eq!(model.position(), 0);
        // Twice, since a step is under way when the first one fails.
        for _ in 0..2 {
            let error = model.follow_greedy(5, 9, &mut |_| panic!("NaN was chosen")).unwrap_err();
            assert!(matches!(error, tallow_models::Error::NanLogit { token: 0 }), "{on}: {error}");
            assert_eq!(model.position(), 0);
        }
    }
}
