//! Files written by one side are read by the other.

use std::collections::HashMap;

use candle_core as candle;
use tallow::{DType, Device, npy::NpzTensors};
use tallow_tests::rng::Rng;

use crate::inputs::{DTYPES, Pair, numbers, pair};
use crate::suite::{Bound, same};

const SHAPES: [&[usize]; 4] = [&[], &[5], &[0, 3], &[2, 3, 4]];

/// A tensor of each type and shape, by name.
fn tensors(dtypes: &[DType]) -> Vec<(String, Pair)> {
    let rng = &mut Rng::new(3);
    let mut all = vec![];
    for dtype in dtypes {
        for dims in SHAPES {
            let values = numbers(rng, dims.iter().product(), *dtype);
            let name = format!("{dtype}{}", dims.len());
            all.push((name, pair(&values, dims, *dtype, &Device::Cpu)));
        }
    }
    all
}

fn check(name: &str, ours: &tallow::Tensor, theirs: &candle::Tensor) {
    same(ours, theirs, Bound::Exact).unwrap_or_else(|why| panic!("{name}: {why}"));
}

#[test]
fn safetensors_go_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a.safetensors"), folder.path().join("b.safetensors"));
    let all = tensors(&DTYPES);
    let ours: HashMap<&str, tallow::Tensor> = all.iter().map(|(n, p)| (n.as_str(), p.0.clone())).collect();
    let theirs: HashMap<&str, candle::Tensor> = all.iter().map(|(n, p)| (n.as_str(), p.1.clone())).collect();
    tallow::safetensors::save(&ours, &a).unwrap();
    candle::safetensors::save(&theirs, &b).unwrap();
    let from_ours = candle::safetensors::load(&a, &candle::Device::Cpu).unwrap();
    let from_theirs = tallow::safetensors::load(&b, &Device::Cpu).unwrap();
    assert_eq!(from_theirs.len(), all.len());
    let one_by_one = tallow::safetensors::BufferedSafetensors::new(std::fs::read(&b).unwrap()).unwrap();
    assert_eq!(one_by_one.names().unwrap().len(), all.len());
    for (name, (ours, theirs)) in &all {
        check(name, ours, &from_ours[name]);
        check(name, &from_theirs[name], theirs);
        check(name, &one_by_one.load(name, &Device::Cpu).unwrap(), theirs);
    }
    let missing = one_by_one.load("nowhere", &Device::Cpu).unwrap_err();
    assert!(matches!(missing, tallow::Error::CannotFindTensor { .. }), "{missing}");
    assert!(tallow::safetensors::load_buffer(&[1, 2, 3], &Device::Cpu).is_err());
    assert!(tallow::safetensors::load(folder.path().join("no"), &Device::Cpu).is_err());
    // A lazy tensor is computed on the way.
    let (known, theirs) = pair(&[0.5, 2.0], &[2], DType::F32, &Device::Cpu);
    let lazy = known.sqr().unwrap();
    lazy.save_safetensors("x", &a).unwrap();
    check("x", &tallow::safetensors::load(&a, &Device::Cpu).unwrap()["x"], &theirs.sqr().unwrap());
}

#[test]
fn arrays_of_numpy_go_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a.npy"), folder.path().join("b.npy"));
    let numpy: Vec<DType> = DTYPES.into_iter().filter(|d| *d != DType::BF16).collect();
    let all = tensors(&numpy);
    for (name, (ours, theirs)) in &all {
        ours.write_npy(&a).unwrap();
        theirs.write_npy(&b).unwrap();
        check(name, ours, &candle::Tensor::read_npy(&a).unwrap());
        check(name, &tallow::Tensor::read_npy(&b).unwrap(), theirs);
        check(name, &tallow::Tensor::read_npy(&a).unwrap(), theirs);
    }
    let ours: Vec<(&str, &tallow::Tensor)> = all.iter().map(|(n, p)| (n.as_str(), &p.0)).collect();
    let theirs: Vec<(&str, &candle::Tensor)> = all.iter().map(|(n, p)| (n.as_str(), &p.1)).collect();
    tallow::Tensor::write_npz(&ours, &a).unwrap();
    candle::Tensor::write_npz(&theirs, &b).unwrap();
    let names: Vec<&str> = all.iter().map(|(n, _)| n.as_str()).collect();
    let from_ours = candle::Tensor::read_npz_by_name(&a, &names).unwrap();
    let from_theirs = tallow::Tensor::read_npz_by_name(&b, &names).unwrap();
    for (i, (name, (ours, theirs))) in all.iter().enumerate() {
        check(name, ours, &from_ours[i]);
        check(name, &from_theirs[i], theirs);
    }
    assert_eq!(tallow::Tensor::read_npz(&a).unwrap().len(), all.len());
    let archive = NpzTensors::new(&a).unwrap();
    assert_eq!(archive.names(), names.iter().collect::<Vec<_>>());
    let (shape, dtype) = archive.get_shape_and_dtype("f323").unwrap();
    assert_eq!((shape.as_const().unwrap(), dtype), (vec![2, 3, 4], DType::F32));
    assert!(archive.get("nowhere").unwrap().is_none());
    assert!(tallow::Tensor::read_npz_by_name(&a, &["nowhere"]).is_err());
    assert!(tallow::Tensor::read_npy(&a).is_err() && tallow::Tensor::read_npz(folder.path()).is_err());
    assert!(tallow::Tensor::zeros(2, DType::BF16, &Device::Cpu).unwrap().write_npy(&b).is_err());
}
