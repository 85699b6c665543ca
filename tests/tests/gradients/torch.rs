//! Gradients through the public API against those of PyTorch, which `scripts/gradient_vectors.py` wrote.

use std::path::Path;

use serde_json::Value;
use tallow::nn::{self, GroupNorm, loss};
use tallow::{DType, Device, Error, Module, Result, Tensor, Var};

/// Where a gradient is not PyTorch's on purpose: case, input, element. There is none; `docs/gradients.md` lists the
/// conventions that differ, which the cases leave out.
const DIFFERENT: &[(&str, usize, usize)] = &[];

#[test]
fn gradients_are_those_of_pytorch() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gradients/torch.json");
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: {} is missing; scripts/gradient_vectors.py writes it", path.display());
        return;
    };
    let file: Value = serde_json::from_str(&text).expect("JSON");
    let cases = file["cases"].as_array().expect("a list of cases");
    assert!(cases.len() >= 80, "only {} cases", cases.len());
    let wrong: Vec<String> = cases.iter().filter_map(|case| check(case).err()).collect();
    assert!(wrong.is_empty(), "PyTorch {}:\n{}", file["torch"], wrong.join("\n"));
    println!("{} cases of PyTorch {}", cases.len(), file["torch"]);
}

/// Compares one case; the error names what differs.
fn check(case: &Value) -> std::result::Result<(), String> {
    let name = case["name"].as_str().expect("a name");
    let dtype = if case["dtype"] == "f64" { DType::F64 } else { DType::F32 };
    let label = format!("{name} ({})", dtype.name());
    let found = gradients(name, case, dtype).map_err(|e| format!("{label}: {e}"))?;
    let wanted = case["grads"].as_array().expect("gradients");
    if found.len() != wanted.len() {
        return Err(format!("{label}: {} gradients of {}", found.len(), wanted.len()));
    }
    for (input, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let wanted = numbers(wanted);
        let largest = wanted.iter().filter(|x| x.is_finite()).fold(1.0f64, |most, x| most.max(x.abs()));
        // PyTorch rounds every step to the type, in an order of its own.
        let part = if dtype == DType::F64 { 1e-10 } else { 1e-5 };
        let agree = |a: f64, b: f64| {
            a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= part * (largest + 10.0 * b.abs())
        };
        let differs = |i: &usize| !agree(found[*i], wanted[*i]) && !DIFFERENT.contains(&(name, input, *i));
        if found.len() != wanted.len() || (0..wanted.len()).any(|i| differs(&i)) {
            let places: Vec<usize> = (0..wanted.len().min(found.len())).filter(differs).collect();
            return Err(format!("{label}, input {input}, at {places:?}: {found:?}, PyTorch has {wanted:?}"));
        }
    }
    Ok(())
}

/// The elements of a list; infinities and NaN are strings.
fn numbers(list: &Value) -> Vec<f64> {
    let number = |x: &Value| x.as_f64().or(x.as_str().and_then(|text| text.parse().ok())).expect("a number");
    list.as_array().expect("a list").iter().map(number).collect()
}

/// The tensors of a part of a case: pairs of extents and elements.
fn tensors(part: &Value, dtype: DType) -> Result<Vec<Tensor>> {
    let tensor = |pair: &Value| {
        let dims: Vec<usize> = numbers(&pair[0]).iter().map(|n| *n as usize).collect();
        let elements = numbers(&pair[1]);
        match dtype {
            DType::U32 => {
                let indices = elements.iter().map(|x| *x as u32).collect();
                Tensor::from_vec(indices, dims.as_slice(), &Device::Cpu)
            }
            _ => Tensor::from_vec(elements, dims.as_slice(), &Device::Cpu)?.to_dtype(dtype),
        }
    };
    part.as_array().expect("a list of tensors").iter().map(tensor).collect()
}

/// The gradient of each input, as numbers.
fn gradients(name: &str, case: &Value, dtype: DType) -> Result<Vec<Vec<f64>>> {
    let inputs = tensors(&case["inputs"], dtype)?;
    let variables = inputs.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
    let x: Vec<Tensor> = variables.iter().map(|variable| variable.as_tensor().clone()).collect();
    let rest = [tensors(&case["data"], dtype)?, tensors(&case["ints"], DType::U32)?].concat();
    let output = compute(name, &[x, rest].concat())?;
    let dims = output.dims().to_vec();
    let weight = |i: usize| ((7 * i % 11) as f64 - 5.5) / 4.0;
    let weights: Vec<f64> = (0..dims.iter().product()).map(weight).collect();
    let weights = Tensor::from_vec(weights, dims.as_slice(), &Device::Cpu)?.to_dtype(dtype)?;
    let found = output.mul(&weights)?.sum_all()?.backward()?;
    let gradient = |variable: &Var| match found.get(variable) {
        Some(gradient) => gradient.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>(),
        None => Ok(vec![0.0; variable.dims().iter().product()]),
    };
    variables.iter().map(gradient).collect()
}

/// The output of a case: inputs, further tensors and indices are in `t`, in this order.
fn compute(name: &str, t: &[Tensor]) -> Result<Tensor> {
    let x = &t[0];
    match name {
        "powf 0" => x.powf(0.0),
        "powf 1" => x.powf(1.0),
        "powf 2" => x.powf(2.0),
        "powf 3" => x.powf(3.0),
        "neg" => x.neg(),
        "abs" => x.abs(),
        "sign" => x.sign(),
        "exp" => x.exp(),
        "exp2" => x.exp2(),
        "expm1" => x.expm1(),
        "log" => x.log(),
        "log2" => x.log2(),
        "log10" => x.log10(),
        "log1p" => x.log1p(),
        "sqrt" => x.sqrt(),
        "rsqrt" => x.rsqrt(),
        "recip" => x.recip(),
        "sqr" => x.sqr(),
        "sin" => x.sin(),
        "cos" => x.cos(),
        "tan" => x.tan(),
        "asin" => x.asin(),
        "acos" => x.acos(),
        "atan" => x.atan(),
        "sinh" => x.sinh(),
        "cosh" => x.cosh(),
        "tanh" => x.tanh(),
        "erf" => x.erf(),
        "floor" => x.floor(),
        "ceil" => x.ceil(),
        "round" => x.round(),
        "trunc" => x.trunc(),
        "add" => x.add(&t[1]),
        "sub" => x.sub(&t[1]),
        "mul" => x.mul(&t[1]),
        "broadcast mul" => x.broadcast_mul(&t[1]),
        "div" => x.div(&t[1]),
        "rem" => x.rem(&t[1]),
        "pow" => x.pow(&t[1]),
        "minimum" => x.minimum(&t[1]),
        "maximum" => x.maximum(&t[1]),
        "where positive" => x.gt(0.0)?.where_cond(x, &t[1]),
        "relu" => x.relu(),
        "relu6" => x.relu6(),
        "sigmoid" => x.sigmoid(),
        "logsigmoid" => x.logsigmoid(),
        "softplus" => x.softplus(),
        "mish" => x.mish(),
        "silu" => x.silu(),
        "hard_sigmoid" => x.hard_sigmoid(),
        "hard_swish" => x.hard_swish(),
        "selu" => x.selu(),
        "gelu" => x.gelu(),
        "gelu_erf" => x.gelu_erf(),
        "leaky_relu" => x.leaky_relu(0.25),
        "elu" => x.elu(1.5),
        "clamp" => x.clamp(-3.0, 3.0),
        _ => compute_rows(name, t),
    }
}

/// As [`compute`], of what combines elements.
fn compute_rows(name: &str, t: &[Tensor]) -> Result<Tensor> {
    let x = &t[0];
    match name {
        "cross_entropy" => loss::cross_entropy(x, &t[1]),
        "nll" => loss::nll(x, &t[1]),
        "mse" => loss::mse(x, &t[1]),
        "huber" => loss::huber(x, &t[1], 1.0),
        "bce" => loss::binary_cross_entropy_with_logit(x, &t[1]),
        "softmax" => nn::softmax(x, 1),
        "log_softmax" => nn::log_softmax(x, 1),
        "log_sum_exp" => x.log_sum_exp(1),
        "layer_norm" => nn::ops::layer_norm(x, &t[1], &t[2], 1e-5),
        "rms_norm" => nn::ops::rms_norm(x, &t[1], 1e-5),
        "group_norm" => GroupNorm::new(t[1].clone(), t[2].clone(), 4, 2, 1e-5)?.forward(x),
        "conv1d" => x.conv1d(&t[1], 1, 2, 1, 1),
        "conv1d dilated" => x.conv1d(&t[1], 0, 1, 2, 2),
        "conv2d" => x.conv2d(&t[1], 1, 2, 1, 1),
        "conv2d plain" => x.conv2d(&t[1], 0, 1, 1, 1),
        "conv_transpose1d" => x.conv_transpose1d(&t[1], 1, 1, 2, 1, 1),
        "conv_transpose2d" => x.conv_transpose2d(&t[1], 1, 1, 2, 1),
        "max_pool2d" => x.max_pool2d(2),
        "max_pool2d overlapping" => x.max_pool2d_with_stride(3, 1),
        "avg_pool2d" => x.avg_pool2d(2),
        "avg_pool2d overlapping" => x.avg_pool2d_with_stride(3, 1),
        "index_select 0" => x.index_select(&t[1], 0),
        "index_select 1" => x.index_select(&t[1], 1),
        "gather 0" => x.gather(&t[1], 0),
        "gather 1" => x.gather(&t[1], 1),
        "scatter_add" => x.scatter_add(&t[2], &t[1], 0),
        "index_add" => x.index_add(&t[2], &t[1], 1),
        "cumsum" => x.cumsum(1),
        "cumsum 0" => x.cumsum(0),
        "cumprod" => x.cumprod(1),
        "prod" => x.prod(1),
        "max" => x.max(1),
        "min" => x.min(1),
        "sum" => x.sum(0),
        "mean" => x.mean(1),
        "var" => x.var(1),
        "norm" | "norm of zeros" => x.norm(),
        "matmul" => x.matmul(&t[1]),
        "matmul broadcast" => x.broadcast_matmul(&t[1]),
        "sdpa" | "sdpa causal" | "sdpa shared keys" => {
            let scale = 1.0 / (x.dims()[3] as f64).sqrt();
            let options = nn::AttentionOptions::default().scale(scale).causal(name != "sdpa");
            nn::attention(x, &t[1], &t[2], &options)
        }
        _ => Err(Error::Msg(format!("no function is called {name:?}"))),
    }
}
