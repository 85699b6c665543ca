//! Layers whose weights are in the host's memory: the same logits, and what is counted.

use tallow::{Device, device_bytes};
use tallow_models::{HostLayers, LoadOptions, Memory, ModelFile};
use tallow_tests::device::own_devices;

/// The bits of logits after a prompt and after one more token, with these options.
fn logits(device: &Device, options: &LoadOptions) -> Vec<u32> {
    let mut model = open().load(device, options, &mut |_| {}).unwrap();
    let mut found = model.feed(&[1, 5, 300, 17, 4]).unwrap();
    found.extend(model.feed(&[42]).unwrap());
    found.into_iter().map(f32::to_bits).collect()
}

fn open() -> ModelFile {
    ModelFile::open(tallow_testmodels::model("storyteller-nano-Q4_K_M")).unwrap()
}

#[test]
fn logits_do_not_depend_on_where_weights_are() {
    for device in own_devices() {
        let caps = device.caps().unwrap().clone();
        let options = LoadOptions { chunk: Some(8), context: Some(64), ..LoadOptions::default() };
        let file = open();
        let planned = |host_layers| {
            let options = LoadOptions { host_layers, ..options };
            Memory::of(file.model_graph(), Some(&caps), &options).unwrap()
        };
        let none = planned(HostLayers::Last(0));
        // One byte less than the model takes, so that one layer has to go.
        let fewest = LoadOptions { host_layers: HostLayers::Auto, memory: Some(none.total() - 1), ..options };
        if caps.unified_memory {
            // There is one memory, and nothing helps.
            let refused = open().load(&device, &fewest, &mut |_| {}).unwrap_err().to_string();
            assert!(refused.contains(" are free; ") && !refused.contains("--host-layers"), "{refused}");
        }
        let expected = logits(&device, &options);
        let all = HostLayers::Last(file.model_graph().config.layers);
        assert!(logits(&device, &LoadOptions { host_layers: all, ..options }) == expected);
        if caps.unified_memory {
            continue;
        }
        assert_eq!(device.memory().unwrap().host, 0, "no weight outlives its model");
        let (model, one) =
            (open().load(&device, &fewest, &mut |_| {}).unwrap(), planned(HostLayers::Last(1)));
        let host = device.memory().unwrap().host;
        assert_eq!((host, model.decode_stats().weight_bytes), (one.host, one.weights));
        assert!(one.host > 0 && one.device() < none.device());
    }
}

/// A weight counts as the host's; where there is one memory, as the device's too.
#[test]
fn host_weights_are_counted_apart() {
    for device in own_devices() {
        let bytes = vec![7; 4096];
        let before = device.memory().unwrap();
        let weight = device.host_weight(tallow::DType::F32, &[1024], &bytes).unwrap();
        let taken = device.memory().unwrap();
        assert_eq!(taken.host - before.host, device_bytes(weight.ty()));
        let expected = if device.caps().unwrap().unified_memory { 4096 } else { 0 };
        assert_eq!(taken.in_use - before.in_use, expected);
        drop(weight);
        assert_eq!(device.memory().unwrap().host, before.host);
        // A bus is measured where there is one, by a clock of the device.
        let (bus, caps) = (device.bus_bandwidth().unwrap(), device.caps().unwrap());
        let is_measured = !caps.unified_memory && caps.timestamp_period_ps != 0;
        assert_eq!(bus.is_some_and(|rate| rate > 0.0), is_measured);
    }
}
