//! `tallow::nn::kv_cache` against `candle_nn::kv_cache`: what each append returns, also when the cache grows, and
//! what was returned earlier.

use candle_nn::kv_cache as theirs;
use tallow::nn::kv_cache as ours;
use tallow::{DType, Device};
use tallow_tests::rng::Rng;

use crate::inputs::{numbers, pair};

/// What the host reads of a tensor of either.
type Numbers = (Vec<usize>, Vec<f32>);

fn mine(x: &tallow::Tensor) -> Numbers {
    (x.dims().to_vec(), x.to_flat_vec::<f32>().unwrap())
}

fn candles(x: &candle_core::Tensor) -> Numbers {
    (x.dims().to_vec(), x.flatten_all().unwrap().to_vec1::<f32>().unwrap())
}

/// Appends of 1 to 5 entries along each axis, more than there is room for at first.
fn appends(device: &Device) {
    let mut rng = Rng::new(5);
    for axis in 0..3 {
        let room = rng.between(1, 9) as usize;
        let (mut our, mut their) = (ours::KvCache::new(axis, room), theirs::KvCache::new(axis, room));
        assert!(our.k().unwrap().is_none() && their.k().unwrap().is_none());
        // Candle's first results share memory with its cache and would change.
        let mut earlier: Vec<(tallow::Tensor, Numbers)> = vec![];
        let mut copy = None;
        for step in 0..9 {
            let mut dims = [2, 3, 5];
            dims[axis] = rng.between(1, 5) as usize;
            let mut drawn =
                || pair(&numbers(&mut rng, dims.iter().product(), DType::F32), &dims, DType::F32, device);
            let (k, v) = (drawn(), drawn());
            let (our_k, our_v) = our.append(&k.0, &v.0).unwrap();
            let (their_k, their_v) = their.append(&k.1, &v.1).unwrap();
            assert_eq!((mine(&our_k), mine(&our_v)), (candles(&their_k), candles(&their_v)), "step {step}");
            assert_eq!(our.current_seq_len(), their.current_seq_len());
            assert_eq!(our.k_cache().max_seq_len(), their.k_cache().max_seq_len());
            earlier.push((our_v, candles(&their_v)));
            if step == 4 {
                copy = Some((our.clone(), mine(&our_k)));
            }
        }
        for (tensor, expected) in &earlier {
            assert_eq!(mine(tensor), *expected);
        }
        let (copied, expected) = copy.unwrap();
        assert_eq!(mine(&copied.k().unwrap().unwrap()), expected, "a clone has its own entries");
        our.reset();
        assert!(our.k().unwrap().is_none() && our.current_seq_len() == 0);
    }
    let mut cache = ours::Cache::new(1, 4);
    let zeros = |dims: &[usize]| tallow::Tensor::zeros(dims, DType::F32, device).unwrap();
    cache.append(&zeros(&[2, 1])).unwrap();
    assert!(cache.append(&zeros(&[3, 1])).is_err(), "other extents are those of the first append");
    assert!(cache.append(&zeros(&[2])).is_err(), "there is no such axis");
}

#[test]
fn appends_give_candles_values_on_the_cpu() {
    appends(&Device::Cpu);
}

#[cfg(feature = "vulkan")]
#[test]
fn appends_give_candles_values_on_a_vulkan_device() {
    if let Some(device) = tallow_tests::device::device() {
        appends(&device);
    }
}
