//! Activation functions against their formulas in f64, in f32 and f64, to the ends of the range.

use tallow::{DType, Device, Result, Tensor};

/// Name, composition, formula.
type Row = (&'static str, fn(&Tensor) -> Result<Tensor>, fn(f64) -> f64);

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn hard_sigmoid(x: f64) -> f64 {
    ((x + 3.0) / 6.0).clamp(0.0, 1.0)
}

fn elu(x: f64, alpha: f64) -> f64 {
    if x > 0.0 { x } else { alpha * x.exp_m1() }
}

const ROWS: &[Row] = &[
    ("relu", Tensor::relu, |x| x.max(0.0)),
    ("relu6", Tensor::relu6, |x| x.clamp(0.0, 6.0)),
    ("leaky_relu", |t| t.leaky_relu(0.1), |x| if x > 0.0 { x } else { 0.1 * x }),
    ("elu", |t| t.elu(1.5), |x| elu(x, 1.5)),
    ("selu", Tensor::selu, |x| 1.0507009873554805 * elu(x, 1.6732632423543772)),
    ("nn::selu", |t| tallow::nn::selu(t, 2.0, 0.5), |x| 0.5 * elu(x, 2.0)),
    ("sigmoid", Tensor::sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
    ("logsigmoid", Tensor::logsigmoid, |x| -softplus(-x)),
    ("softplus", Tensor::softplus, softplus),
    ("mish", Tensor::mish, |x| x * softplus(x).tanh()),
    ("silu", Tensor::silu, |x| x / (1.0 + (-x).exp())),
    ("hard_sigmoid", Tensor::hard_sigmoid, hard_sigmoid),
    ("hard_swish", Tensor::hard_swish, |x| x * hard_sigmoid(x)),
];

#[test]
fn activations_are_their_formulas() {
    let mut xs: Vec<f64> = (-60..=60).map(|i| f64::from(i) * 0.375).collect();
    for large in [1e-6, 50.0, 80.0, 95.0, 300.0, 1e4, 1e30] {
        xs.extend([f64::from(large as f32), -f64::from(large as f32)]);
    }
    // One rounding a node, some ten nodes, errors of a condition number near 1; absolute where results pass 0.
    for (dtype, bound) in [(DType::F64, 1e-14), (DType::F32, 2e-6)] {
        let x = Tensor::new(xs.as_slice(), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        for (name, composed, formula) in ROWS {
            let got = composed(&x).unwrap().to_dtype(DType::F64).unwrap().to_vec1::<f64>().unwrap();
            for (x, got) in xs.iter().zip(got) {
                let want = formula(*x);
                let close = (got - want).abs() <= bound * want.abs().max(1e-3);
                assert!(close, "{name} of {x} in {dtype}: {got} is not {want}");
            }
        }
    }
}

/// Infinities have limits, and NaN stays.
#[test]
fn ends_of_the_range() {
    let x = Tensor::new([f32::INFINITY, f32::NEG_INFINITY, f32::NAN], &Device::Cpu).unwrap();
    let of = |f: fn(&Tensor) -> Result<Tensor>| f(&x).unwrap().to_vec1::<f32>().unwrap();
    for f in [Tensor::softplus, Tensor::relu] {
        let got = of(f);
        assert_eq!(got[..2], [f32::INFINITY, 0.0]);
        assert!(got[2].is_nan());
    }
    let got = of(Tensor::logsigmoid);
    assert_eq!(got[..2], [0.0, f32::NEG_INFINITY]);
    assert!(got[2].is_nan());
}
