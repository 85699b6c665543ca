//! Whether a model fits: layers in the host's memory, what is suggested, and who checks.

use tallow::Device;
use tallow::caps::{self, DeviceCaps};
use tallow_gguf::GgufFile;
use tallow_models::embedder::TokenEmbedder;
use tallow_models::host_layers::{BUS_MB_PER_S, layer_of};
use tallow_models::model_graph::ModelGraph;
use tallow_models::{Decoder, EmbedOptions, Error, Fit, HostLayers, LoadOptions, ModelFile, Scorer};

const MODEL: &str = "storyteller-nano-f16";

fn file() -> GgufFile {
    GgufFile::open(tallow_testmodels::model(MODEL)).unwrap()
}

fn profile(name: &str) -> DeviceCaps {
    caps::profile(name).unwrap()
}

fn with(host_layers: HostLayers, host_memory: Option<u64>) -> LoadOptions {
    LoadOptions { host_layers, host_memory, ..LoadOptions::default() }
}

#[test]
fn layers_move_to_the_hosts_memory() {
    let (file, caps) = (file(), profile("h200"));
    let model = ModelGraph::from_file(&file).unwrap();
    let layers = model.config.layers;
    let fit = |options: &LoadOptions, free| Fit::of(&model, Some(&caps), options, free).unwrap();
    let none = fit(&LoadOptions::default(), None);
    assert_eq!((none.memory.host, none.memory.host_layers), (0, 0));
    let of_layer = |first: usize| {
        let tensors = file.tensors().filter(|t| layer_of(&t.name).is_some_and(|layer| layer >= first));
        tensors.map(|t| (t.bytes as u64).next_multiple_of(16)).sum::<u64>()
    };
    for count in 0..=layers {
        let found = fit(&with(HostLayers::Last(count), None), None);
        assert_eq!(found.memory.host, of_layer(layers - count), "{count} layers");
        assert_eq!(found.memory.total(), none.memory.total());
        let speed = found.speed.unwrap();
        assert_eq!((speed.host_bytes, speed.bus_mb_per_s), (found.memory.host, BUS_MB_PER_S));
        assert_eq!(speed.device_bytes + speed.host_bytes, none.speed.unwrap().device_bytes);
    }
    // As few as make the rest fit, to the byte.
    let total = none.memory.total();
    let one = of_layer(layers - 1);
    for (free, expected) in [(total, 0), (total - 1, 1), (total - one, 1), (total - one - 1, 2)] {
        let found = fit(&with(HostLayers::Auto, None), Some(free));
        assert_eq!((found.memory.host_layers, found.error().is_none()), (expected, true), "{free} are free");
        assert!(found.memory.device() <= free);
    }
    let error = Fit::of(&model, Some(&caps), &with(HostLayers::Last(layers + 1), None), None).unwrap_err();
    assert!(matches!(error, Error::HostLayers { requested, .. } if requested == layers + 1), "{error}");
}

#[test]
fn layers_that_would_fit_are_suggested() {
    let model = ModelGraph::from_file(&file()).unwrap();
    let caps = profile("h200");
    let fit = |options: &LoadOptions, free| Fit::of(&model, Some(&caps), options, free).unwrap();
    let total = fit(&LoadOptions::default(), None).memory.total();
    let error = fit(&LoadOptions::default(), Some(total - 1)).error().unwrap().to_string();
    assert!(
        error.contains("; it fits with 1 layers in the host's memory (--host-layers 1), at an "),
        "{error}"
    );
    // The host has too little, too.
    let little = fit(&with(HostLayers::Last(0), Some(100)), Some(total - 1)).error().unwrap().to_string();
    assert!(little.contains(" are free; ") && !little.contains("--host-layers"), "{little}");
    let error = fit(&with(HostLayers::Last(1), Some(100)), Some(total - 1)).error().unwrap().to_string();
    assert!(error.starts_with("1 layers take ") && error.contains("0.10 KiB are free there"), "{error}");
    assert!(fit(&with(HostLayers::Auto, Some(100)), Some(total - 1)).error().is_some());
    // Where there is one memory, nothing moves.
    let mali = profile("mali");
    let all = with(HostLayers::Last(model.config.layers), None);
    let found = Fit::of(&model, Some(&mali), &all, Some(1 << 20)).unwrap();
    assert_eq!((found.memory.host, found.memory.host_layers), (0, model.config.layers));
    assert_eq!(found.excess.unwrap().host, None);
    // Bytes do not decide how fast a processor is.
    let lavapipe = profile("lavapipe");
    assert_eq!(Fit::of(&model, Some(&lavapipe), &all, None).unwrap().speed, None);
    assert_eq!(Fit::of(&model, None, &all, None).unwrap().speed, None);
}

#[test]
fn whatever_loads_a_model_checks_that_it_fits() {
    let (file, device) = (file(), Device::Cpu);
    let model = ModelGraph::from_file(&file).unwrap();
    let does_not_fit = |error: Error| assert!(matches!(error, Error::DoesNotFit(_)), "{error}");
    let options = LoadOptions { memory: Some(1 << 20), context: Some(64), ..LoadOptions::default() };
    does_not_fit(Decoder::load(&file, &model, &device, &options, &mut |_| {}).unwrap_err());
    let embed = EmbedOptions { memory: options.memory, ..EmbedOptions::default() };
    let error = TokenEmbedder::load(&file, &model, &device, &embed, &mut |_| {}).unwrap_err();
    // It takes that much with plans for the shortest texts, which nobody asked for.
    let (says, asked) = (error.to_string(), model.config.context);
    let expected = format!("to embed texts of up to {asked} tokens, the model takes at least ");
    assert!(says.starts_with(&expected) && says.contains(", and 1.00 MiB are free; "), "{says}");
    does_not_fit(error);
    let file = ModelFile::new(file).unwrap();
    does_not_fit(Scorer::load(&file, &device, &options, &mut |_| {}).unwrap_err());
    does_not_fit(file.load(&device, &options, &mut |_| {}).unwrap_err());
}
