//! Memory that is planned without weights is the memory that a loaded model takes.

use tallow_models::{Activations, CacheType, CacheTypes, Decode, LoadOptions, Memory, ModelFile};

use crate::harness::device;

#[test]
fn plans_equal_what_loading_reports() {
    let Some(device) = device() else { return };
    let quantized = CacheTypes { keys: CacheType::Q8_0, values: CacheType::Q4_0 };
    for name in ["storyteller-nano-Q4_K_M", "storyteller-nano-f16", "storyteller-nano-Q4_0"] {
        for options in [
            LoadOptions::default(),
            LoadOptions { decode: Decode::Token, ..LoadOptions::default() },
            LoadOptions { context: Some(100), cache: quantized, ..LoadOptions::default() },
            LoadOptions { activations: Activations::Exact, chunk: Some(32), ..LoadOptions::default() },
        ] {
            let file = ModelFile::open(tallow_testmodels::model(name)).unwrap();
            let planned = Memory::of(file.model_graph(), device.caps(), &options).unwrap();
            let model = file.load(&device, &options, &mut |_| {}).unwrap();
            let (prefill, decode) = (model.prefill_stats(), model.decode_stats());
            let arenas = planned.arenas.unwrap();
            assert_eq!(planned.context, model.context());
            assert_eq!(planned.weights, decode.weight_bytes, "{name} {options:?}");
            assert_eq!(planned.weights, prefill.weight_bytes, "{name} {options:?}");
            assert_eq!(arenas.prefill, prefill.arena_bytes, "{name} {options:?}");
            assert_eq!(arenas.decode, decode.arena_bytes, "{name} {options:?}");
        }
    }
}
