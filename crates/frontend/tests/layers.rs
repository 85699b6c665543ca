//! Layers with the weights of maps, tensors and files.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::PathBuf;

use tallow::nn::init::{DEFAULT_KAIMING_NORMAL, DEFAULT_KAIMING_UNIFORM, FanInOut, ONE};
use tallow::nn::optim::{AdamW, Optimizer};
use tallow::nn::rnn::{GRUConfig, LSTMConfig};
use tallow::nn::{self, Init, Module, ModuleT, RNN, VarBuilder, VarMap};
use tallow::{DType, Device, Input, Shape, Tensor, TrainOptions, train_step};

const CPU: Device = Device::Cpu;

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn close(got: &Tensor, want: &Tensor) {
    assert_eq!(got.dims(), want.dims());
    let (got, want) = (floats(got), floats(want));
    let near = |(g, w): (&f32, &f32)| (g - w).abs() <= 1e-5 * w.abs().max(1.0);
    assert!(got.iter().zip(&want).all(near), "{got:?} is not {want:?}");
}

/// A file of this test's own.
fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tallow-layers-{}-{name}", std::process::id()))
}

/// Numbers of any shape, the same in each run.
fn numbers(dims: &[usize]) -> Tensor {
    let n = dims.iter().product();
    let at = |i: usize| ((i * 37 % 101) as f32 / 101.0 - 0.5) * 0.8;
    Tensor::from_vec((0..n).map(at).collect::<Vec<_>>(), dims, &CPU).unwrap()
}

#[test]
fn new_variables_have_their_distribution() {
    let spread = |init: Init, dims: (usize, usize)| {
        let values = floats(&init.var(dims, DType::F32, &CPU).unwrap());
        let n = values.len() as f32;
        let mean = values.iter().sum::<f32>() / n;
        let largest = values.iter().fold(0f32, |m, x| m.max(x.abs()));
        (mean, (values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n).sqrt(), largest)
    };
    let near = |got: f32, want: f32| (got - want).abs() < 0.05 * want.max(1.0);
    let (mean, deviation, largest) = spread(DEFAULT_KAIMING_UNIFORM, (100, 8));
    assert!(
        near(mean, 0.0) && near(deviation, 0.5) && largest <= 0.75f32.sqrt(),
        "{mean} {deviation} {largest}"
    );
    let (mean, deviation, largest) = spread(DEFAULT_KAIMING_NORMAL, (100, 8));
    assert!(near(mean, 0.0) && near(deviation, 0.5) && largest > 1.0, "{mean} {deviation} {largest}");
    let (mean, deviation, _) = spread(Init::Randn { mean: 3.0, stdev: 2.0 }, (100, 100));
    assert!(near(mean, 3.0) && near(deviation, 2.0), "{mean} {deviation}");
    let (mean, _, _) = spread(Init::Uniform { lo: 1.0, up: 3.0 }, (100, 100));
    assert!(near(mean, 2.0));
    assert_eq!(
        floats(&Init::Const(2.5).var(2, DType::BF16, &CPU).unwrap().to_dtype(DType::F32).unwrap()),
        [2.5; 2]
    );
    for (dims, fans) in [(vec![4, 3, 5, 5], [75, 100]), (vec![7], [1, 7]), (vec![], [1, 1])] {
        let shape = Shape::from_dims(&dims);
        assert_eq!([FanInOut::FanIn.for_shape(&shape), FanInOut::FanOut.for_shape(&shape)], fans);
    }
}

#[test]
fn names_of_a_map_are_its_variables() {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &CPU);
    let first = vb.pp("a").pp(0).get_with_hints((2, 3), "weight", ONE).unwrap();
    let again = vb.pp("a.0").get((2, 3), "weight").unwrap();
    assert!(first.is_variable() && first.id() == again.id());
    assert_eq!((vb.pp("a").prefix(), vb.pp("a").root().prefix()), ("a".into(), String::new()));
    assert!(vb.pp("a").pp(0).contains_tensor("weight") && !vb.contains_tensor("weight"));
    let message = |result: tallow::Result<Tensor>| result.unwrap_err().to_string();
    for wrong in [
        message(vb.pp("a").get((3, 2), "0.weight")),
        message(vb.to_dtype(DType::F16).get((2, 3), "a.0.weight")),
        message(vb.get_unchecked("a.0.weight")),
    ] {
        assert!(wrong.contains("a.0.weight"), "{wrong}");
    }
}

#[test]
fn maps_are_saved_and_loaded() {
    let path = file("map.safetensors");
    let map = |scale: f64| {
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, &CPU);
        vb.get_with_hints((2, 2), "w", Init::Const(scale)).unwrap();
        vb.get_with_hints(3, "b", Init::Const(-scale)).unwrap();
        vars
    };
    map(2.0).save(&path).unwrap();
    let mut other = map(5.0);
    other.load(&path).unwrap();
    let values: Vec<Vec<f32>> = other.all_vars().iter().map(|var| floats(var)).collect();
    assert_eq!(values, [vec![-2.0; 3], vec![2.0; 4]]); // by name

    // Where one variable does not fit, none changes.
    for (name, dims, dtype) in [("b", 4, DType::F32), ("b", 3, DType::F16), ("c", 3, DType::F32)] {
        let mut other = map(5.0);
        if name == "c" {
            VarBuilder::from_varmap(&other, DType::F32, &CPU).get(3, "c").unwrap();
        }
        let tensors = HashMap::from([
            ("w", Tensor::ones((2, 2), DType::F32, &CPU).unwrap()),
            ("b", Tensor::ones(dims, dtype, &CPU).unwrap()),
        ]);
        tallow::safetensors::save(&tensors, &path).unwrap();
        let error = other.load(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("setting {name}")), "{error}");
        assert!(other.all_vars().iter().all(|var| !floats(var).contains(&1.0)));
    }
    std::fs::remove_file(&path).unwrap();

    let mut vars = map(1.0);
    vars.set_one("b", Tensor::new([1f32, 2.0, 3.0], &CPU).unwrap()).unwrap();
    assert_eq!(floats(&vars.all_vars()[0]), [1.0, 2.0, 3.0]);
    assert!(vars.set_one("x", Tensor::new(1f32, &CPU).unwrap()).unwrap_err().to_string().contains('x'));
    let values = [("w", numbers(&[2, 2])), ("b", numbers(&[2]))];
    assert!(vars.set(values.into_iter()).unwrap_err().to_string().contains("setting b"));
    assert_eq!(floats(&vars.all_vars()[1]), [1.0; 4]);
}

#[test]
fn weights_come_from_anywhere() {
    let path = file("weights.safetensors");
    let weight = Tensor::new([[1f32, 2.0], [3.0, 4.0]], &CPU).unwrap();
    let tensors = HashMap::from([("m.weight".to_string(), weight.clone())]);
    tallow::safetensors::save(&tensors, &path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let npz = file("weights.npz");
    Tensor::write_npz(&[("m.weight", weight.clone())], &npz).unwrap();
    for vb in [
        VarBuilder::from_tensors(tensors, DType::F64, &CPU),
        VarBuilder::from_mmaped_safetensors(&[&path], DType::F64, &CPU).unwrap(),
        VarBuilder::from_buffered_safetensors(bytes, DType::F64, &CPU).unwrap(),
        VarBuilder::from_npz(&npz, DType::F64, &CPU).unwrap(),
    ] {
        let below = vb.pp("m");
        assert_eq!(below.get((2, 2), "weight").unwrap().to_vec2::<f64>().unwrap(), [[1.0, 2.0], [3.0, 4.0]]);
        assert_eq!(below.get_unchecked("weight").unwrap().dims(), [2, 2]);
        assert!(below.contains_tensor("weight") && !below.contains_tensor("bias"));
        for wrong in [below.get((2, 2), "bias"), below.get(4, "weight"), below.get_unchecked("x")] {
            assert!(wrong.unwrap_err().to_string().contains("m."));
        }
        let renamed = vb.rename_f(|name| name.replace("model", "m"));
        assert_eq!(renamed.pp("model").get((2, 2), "weight").unwrap().dims(), [2, 2]);
    }
    let zeros = VarBuilder::zeros(DType::F32, &CPU);
    assert_eq!(floats(&zeros.get(2, "any").unwrap()), [0.0; 2]);
    assert!(zeros.get_unchecked("any").is_err());
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(&npz).unwrap();
}

#[test]
fn files_that_are_no_safetensors_are_errors() {
    let path = file("broken.safetensors");
    let with_header = |header: &str, data: usize| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    };
    let entry = |dtype: &str, shape: &str, from: &str, to: &str| {
        format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}}}"#)
    };
    for bytes in [
        vec![],
        vec![1, 2, 3],
        u64::MAX.to_le_bytes().to_vec(),
        with_header("{", 0),
        with_header(&entry("F32", "[2]", "0", "8"), 4),
        with_header(&entry("F32", "[3]", "0", "8"), 8),
        with_header(&entry("F32", "[2]", "8", "0"), 8),
        with_header(&entry("F32", "[4611686018427387904,4]", "0", "0"), 8),
        with_header(&entry("F32", "[2]", "18446744073709551607", "18446744073709551615"), 8),
        with_header(&entry("X32", "[2]", "0", "8"), 8),
    ] {
        std::fs::write(&path, &bytes).unwrap();
        assert!(VarBuilder::from_mmaped_safetensors(&[&path], DType::F32, &CPU).is_err(), "{bytes:?}");
    }
    std::fs::write(&path, with_header(&entry("F32", "[2]", "0", "8"), 8)).unwrap();
    let vb = VarBuilder::from_mmaped_safetensors(&[&path], DType::F32, &CPU).unwrap();
    assert_eq!(floats(&vb.get(2, "w").unwrap()), [0.0; 2]);
    std::fs::remove_file(&path).unwrap();
    assert!(VarBuilder::from_mmaped_safetensors(&[&path], DType::F32, &CPU).is_err());
}

#[test]
fn layers_are_the_methods_of_tensors() {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &CPU);
    let x = numbers(&[2, 4, 6]);
    let lift = |t: &Tensor, rank: usize| (2..rank).fold(t.clone(), |t, _| t.unsqueeze(1).unwrap());

    let layer = nn::linear(6, 3, vb.pp("linear")).unwrap();
    let want = x.broadcast_matmul(&layer.weight().t().unwrap()).unwrap();
    close(&layer.forward(&x).unwrap(), &want.broadcast_add(layer.bias().unwrap()).unwrap());
    assert!(nn::linear_no_bias(6, 3, vb.pp("plain")).unwrap().bias().is_none());

    let config = nn::Conv1dConfig { padding: 1, groups: 2, ..Default::default() };
    let layer = nn::conv1d(4, 6, 3, config, vb.pp("conv1d")).unwrap();
    let want = x.conv1d(layer.weight(), 1, 1, 1, 2).unwrap();
    close(&layer.forward(&x).unwrap(), &want.broadcast_add(&lift(layer.bias().unwrap(), 3)).unwrap());

    let config = nn::ConvTranspose1dConfig { stride: 2, output_padding: 1, ..Default::default() };
    let layer = nn::conv_transpose1d(4, 6, 3, config, vb.pp("transposed1d")).unwrap();
    let want = x.conv_transpose1d(layer.weight(), 0, 1, 2, 1, 1).unwrap();
    close(&layer.forward(&x).unwrap(), &want.broadcast_add(&lift(layer.bias().unwrap(), 3)).unwrap());

    let image = numbers(&[2, 3, 5, 5]);
    let layer = nn::conv2d(3, 4, 3, Default::default(), vb.pp("conv2d")).unwrap();
    let want = image.conv2d(layer.weight(), 0, 1, 1, 1).unwrap();
    close(&layer.forward(&image).unwrap(), &want.broadcast_add(&lift(layer.bias().unwrap(), 4)).unwrap());

    let layer = nn::conv_transpose2d_no_bias(3, 4, 3, Default::default(), vb.pp("transposed2d")).unwrap();
    close(&layer.forward(&image).unwrap(), &image.conv_transpose2d(layer.weight(), 0, 0, 1, 1).unwrap());
    assert!(nn::conv2d_no_bias(3, 4, 3, Default::default(), vb.pp("c2")).unwrap().bias().is_none());

    let ids = Tensor::new([[0u32, 4], [2, 2]], &CPU).unwrap();
    let layer = nn::embedding(5, 3, vb.pp("embedding")).unwrap();
    close(&layer.forward(&ids).unwrap(), &layer.embeddings().embedding(&ids).unwrap());

    let (ones, zeros) =
        (Tensor::ones(6, DType::F32, &CPU).unwrap(), Tensor::zeros(6, DType::F32, &CPU).unwrap());
    let want = nn::ops::layer_norm(&x, &ones, &zeros, 1e-5).unwrap();
    close(&nn::layer_norm(6, 1e-5, vb.pp("norm")).unwrap().forward(&x).unwrap(), &want);
    close(&nn::layer_norm_no_bias(6, 1e-5, vb.pp("norm2")).unwrap().forward(&x).unwrap(), &want);
    let want = nn::ops::rms_norm(&x, &ones, 1e-5).unwrap();
    close(&nn::rms_norm(6, 1e-5, vb.pp("rms")).unwrap().forward(&x).unwrap(), &want);
    let groups = nn::group_norm(2, 4, 1e-5, vb.pp("groups")).unwrap().forward(&x).unwrap();
    assert!(floats(&groups.narrow(1, 0, 2).unwrap()).iter().sum::<f32>().abs() < 1e-4);

    let negative = x.minimum(0.0).unwrap();
    let want = x.maximum(0.0).unwrap().add(&(negative * 0.25).unwrap()).unwrap();
    close(&nn::prelu(None, vb.pp("p")).unwrap().forward(&x).unwrap(), &want);
    close(&nn::prelu(Some(4), vb.pp("q")).unwrap().forward(&x).unwrap(), &want);
    assert!(nn::prelu(Some(3), vb.pp("r")).unwrap().forward(&x).is_err());

    let layers = nn::seq().add(nn::linear(6, 2, vb.pp("linear2")).unwrap()).add_fn(Tensor::relu);
    let all = layers.add(nn::Activation::Silu).forward_all(&x).unwrap();
    assert_eq!(all.len(), 3);
    close(&all[2], &all[0].relu().unwrap().silu().unwrap());
    let twice = nn::func_t(|x, train| if train { x * 2.0 } else { Ok(x.clone()) });
    close(&twice.forward_t(&x, true).unwrap(), &(&x * 2.0).unwrap());
}

/// The recurrences of PyTorch's documentation, element by element.
#[test]
fn recurrent_layers_are_those_of_pytorch() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    for is_lstm in [true, false] {
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, &CPU);
        let (inputs, hidden, steps) = (3, 2, 4);
        let x = numbers(&[1, steps, inputs]);
        let bias = Some(Init::Uniform { lo: -1.0, up: 1.0 });
        let (got, gates) = if is_lstm {
            let config = LSTMConfig { b_ih_init: bias, b_hh_init: bias, ..Default::default() };
            let layer = nn::lstm(inputs, hidden, config, vb).unwrap();
            (layer.states_to_tensor(&layer.seq(&x).unwrap()).unwrap(), 4)
        } else {
            let config = GRUConfig { b_ih_init: bias, b_hh_init: bias, ..Default::default() };
            let layer = nn::gru(inputs, hidden, config, vb).unwrap();
            (layer.states_to_tensor(&layer.seq(&x).unwrap()).unwrap(), 3)
        };
        let data = vars.data().lock().unwrap();
        let of = |name: &str| floats(data[name].as_tensor()).into_iter().map(f64::from).collect::<Vec<_>>();
        let [w_ih, w_hh, b_ih, b_hh] = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"].map(of);
        let x: Vec<f64> = floats(&x).into_iter().map(f64::from).collect();
        let (mut h, mut c, mut want) = (vec![0.0; hidden], vec![0.0; hidden], vec![]);
        for t in 0..steps {
            let dot = |w: &[f64], row: usize, v: &[f64]| -> f64 {
                (0..v.len()).map(|i| w[row * v.len() + i] * v[i]).sum()
            };
            let input = |gate: usize, j: usize| {
                let row = gate * hidden + j;
                dot(&w_ih, row, &x[t * inputs..(t + 1) * inputs]) + b_ih[row]
            };
            let state = |gate: usize, j: usize| dot(&w_hh, gate * hidden + j, &h) + b_hh[gate * hidden + j];
            let next = |j: usize| {
                let sum = |gate: usize| input(gate, j) + state(gate, j);
                if gates == 4 {
                    let cell = sigmoid(sum(1)) * c[j] + sigmoid(sum(0)) * sum(2).tanh();
                    (sigmoid(sum(3)) * cell.tanh(), cell)
                } else {
                    let new = (input(2, j) + sigmoid(sum(0)) * state(2, j)).tanh();
                    let update = sigmoid(sum(1));
                    ((1.0 - update) * new + update * h[j], 0.0)
                }
            };
            (h, c) = (0..hidden).map(next).unzip();
            want.extend(h.iter().map(|x| *x as f32));
        }
        close(&got.flatten_all().unwrap(), &Tensor::new(want, &CPU).unwrap());
    }
}

/// A batch moves the running averages, step by step and compiled; evaluation uses them.
#[test]
fn batch_norm_learns_its_averages() {
    let x = (numbers(&[4, 3, 5]) + 2.0).unwrap();
    let want_mean = x.mean((0, 2)).unwrap();
    // Divides by n - 1, as the running variance does.
    let want_var = x.transpose(0, 1).unwrap().flatten_from(1).unwrap().var(1).unwrap();
    let build = || {
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, &CPU);
        let layer = nn::batch_norm(3, 1e-5, vb).unwrap();
        (vars, layer)
    };
    let (vars, layer) = build();
    let y = layer.forward_t(&x, true).unwrap();
    assert!(floats(&y.mean((0, 2)).unwrap()).iter().all(|m| m.abs() < 1e-5));
    close(layer.running_mean(), &(&want_mean * 0.1).unwrap());
    close(layer.running_var(), &((&want_var * 0.1).unwrap() + 0.9).unwrap());
    assert_eq!(vars.all_vars().len(), 4);
    // No gradient of the averages.
    let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    assert!(grads.get(layer.running_mean()).is_none());

    let (_, compiled) = build();
    let vars = compiled.weight_and_bias().unwrap();
    let vars = [vars.0, vars.1].map(|t| tallow::Var::from_tensor(t).unwrap());
    let mut adam = AdamW::new_lr(vars.to_vec(), 0.0).unwrap();
    let inputs = [Input::new("x", DType::F32, (4, 3, 5))];
    let step = train_step(&CPU, &inputs, &vars, &mut adam, TrainOptions::default(), |batch| {
        compiled.forward_t(&batch[0], true)?.sqr()?.mean_all()
    })
    .unwrap();
    step.run(&[&x]).unwrap();
    close(compiled.running_mean(), layer.running_mean());
    close(compiled.running_var(), layer.running_var());
    for _ in 0..200 {
        step.run(&[&x]).unwrap();
    }
    // Now evaluation is nearly what training is: the variances are those of n - 1 and n elements.
    let (a, b) = (floats(&compiled.forward_t(&x, false).unwrap()), floats(&y));
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 0.1));
}

/// A network built from a map learns, and what was saved continues.
#[test]
fn networks_of_a_map_learn() {
    let build = |vb: VarBuilder<'_>| {
        let first = nn::conv2d(1, 4, 3, Default::default(), vb.pp("conv")).unwrap();
        nn::seq()
            .add(first)
            .add_fn(|x| x.relu()?.flatten_from(1))
            .add(nn::linear(4 * 9, 2, vb.pp("head")).unwrap())
    };
    let vars = VarMap::new();
    let net = build(VarBuilder::from_varmap(&vars, DType::F32, &CPU));
    let (x, target) = (numbers(&[6, 1, 5, 5]), Tensor::new([0u32, 1, 1, 0, 0, 1], &CPU).unwrap());
    let mut adam = AdamW::new_lr(vars.all_vars(), 0.02).unwrap();
    let loss = |net: &nn::Sequential| nn::loss::cross_entropy(&net.forward(&x).unwrap(), &target).unwrap();
    let number = |t: Tensor| t.to_scalar::<f32>().unwrap();
    let first = number(loss(&net));
    for _ in 0..60 {
        adam.backward_step(&loss(&net)).unwrap();
    }
    let last = number(loss(&net));
    assert!(last < 0.3 * first, "{first} to {last}");
    let path = file("net.safetensors");
    vars.save(&path).unwrap();
    let net = build(VarBuilder::from_mmaped_safetensors(&[&path], DType::F32, &CPU).unwrap());
    assert!((number(loss(&net)) - last).abs() < 1e-6);
    std::fs::remove_file(&path).unwrap();
}
