//! The programs, and what must be true of their results.

use std::fmt;
use std::ops::RangeInclusive;

use tallow::nn::softmax;
use tallow::{DType, Device, Result, Tensor, eval};

/// A loop with its extents and the number of its iterations on a GPU.
pub struct Program {
    pub name: &'static str,
    /// What an iteration computes.
    pub text: &'static str,
    pub iterations: usize,
    /// On a device, with extents divided by a number.
    pub case: fn(&Device, usize) -> Result<Case>,
}

/// Replaces the values by the next ones.
type Step = dyn Fn(&mut Vec<Tensor>) -> Result<()>;

/// Judges values.
type Check = dyn Fn(&[Tensor]) -> Result<Vec<Figure>>;

/// A program with its operands.
pub struct Case {
    /// The values that iterations replace, as the first one finds them.
    pub start: Vec<Tensor>,
    /// One iteration.
    pub step: Box<Step>,
    /// Of the values after the last iteration.
    pub check: Box<Check>,
}

/// A figure of a result, and between what it must lie.
pub struct Figure {
    pub name: &'static str,
    pub value: f64,
    range: RangeInclusive<f64>,
}

impl Figure {
    /// False for NaN, too.
    pub fn is_right(&self) -> bool {
        self.range.contains(&self.value)
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, outside {:?}", self.name, self.value, self.range)
    }
}

/// All of them. `scripts/compare_eager.py` has the same names and numbers of iterations.
pub const PROGRAMS: &[Program] = &[
    Program {
        name: "relu_matmul",
        text: "x = relu(x @ w), f16 4096 x 4096, forced each time",
        iterations: 50,
        case: relu_matmul,
    },
    Program {
        name: "tanh_chain",
        text: "y = tanh(y * q + 1), f32 4096 x 4096, forced each time",
        iterations: 200,
        case: tanh_chain,
    },
    Program {
        name: "mean_tanh",
        text: "mean(tanh(p * q)), f32 4096 x 4096, the scalar read each time",
        iterations: 200,
        case: mean_tanh,
    },
    Program {
        name: "small_add",
        text: "x + b, 16 elements, forced each time",
        iterations: 2000,
        case: small_add,
    },
    Program {
        name: "perceptron",
        text: "a training step of 64 x 784 -> 512 -> 10 by hand, forced each time",
        iterations: 500,
        case: perceptron,
    },
];

/// An extent for a run that is `scale` times smaller.
fn scaled(extent: usize, scale: usize) -> usize {
    (extent / scale).max(8)
}

/// Normally distributed values, in memory.
fn normal(deviation: f64, dims: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let drawn = Tensor::randn(0.0f32, deviation as f32, dims, device)?.to_dtype(dtype)?;
    eval(&[&drawn])?;
    Ok(drawn)
}

fn as_floats(tensor: &Tensor) -> Result<Vec<f64>> {
    let values = tensor.to_dtype(DType::F32)?.to_flat_vec::<f32>()?;
    Ok(values.into_iter().map(f64::from).collect())
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation; NaN if an element is.
fn deviation(values: &[f64]) -> f64 {
    let middle = mean(values);
    (values.iter().map(|x| (x - middle).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}

fn relu_matmul(device: &Device, scale: usize) -> Result<Case> {
    let n = scaled(4096, scale);
    // Half of the products are cut off: with this deviation the mean square of x stays what it was.
    let w = normal((2.0 / n as f64).sqrt(), &[n, n], DType::F16, device)?;
    Ok(Case {
        start: vec![normal(1.0, &[n, n], DType::F16, device)?],
        step: Box::new(move |x| {
            x[0] = x[0].matmul(&w)?.relu()?;
            eval(&[&x[0]])
        }),
        check: Box::new(|x| {
            let values = as_floats(&x[0])?;
            let positive = values.iter().filter(|x| **x > 0.0).count() as f64 / values.len() as f64;
            Ok(vec![
                Figure { name: "deviation", value: deviation(&values), range: 0.01..=100.0 },
                Figure { name: "positive", value: positive, range: 0.2..=0.8 },
            ])
        }),
    })
}

fn tanh_chain(device: &Device, scale: usize) -> Result<Case> {
    let n = scaled(4096, scale);
    let q = normal(1.0, &[n, n], DType::F32, device)?;
    Ok(Case {
        start: vec![normal(1.0, &[n, n], DType::F32, device)?],
        step: Box::new(move |y| {
            y[0] = y[0].mul(&q)?.affine(1.0, 1.0)?.tanh()?;
            eval(&[&y[0]])
        }),
        check: Box::new(|y| {
            let value = deviation(&as_floats(&y[0])?);
            Ok(vec![Figure { name: "deviation", value, range: 0.1..=1.0 }])
        }),
    })
}

fn mean_tanh(device: &Device, scale: usize) -> Result<Case> {
    let n = scaled(4096, scale);
    let p = normal(1.0, &[n, n], DType::F32, device)?;
    let q = normal(1.0, &[n, n], DType::F32, device)?;
    let all = p.mul(&q)?.tanh()?;
    Ok(Case {
        start: vec![Tensor::zeros((), DType::F32, device)?],
        step: Box::new(move |last| {
            last[0] = p.mul(&q)?.tanh()?.mean_all()?;
            std::hint::black_box(last[0].to_vec0::<f32>()?);
            Ok(())
        }),
        check: Box::new(move |last| {
            let values = as_floats(&all)?;
            let error = (f64::from(last[0].to_vec0::<f32>()?) - mean(&values)).abs();
            Ok(vec![
                Figure { name: "deviation", value: deviation(&values), range: 0.1..=1.0 },
                Figure { name: "error", value: error, range: 0.0..=1e-5 },
            ])
        }),
    })
}

fn small_add(device: &Device, _scale: usize) -> Result<Case> {
    let x = normal(1.0, &[16], DType::F32, device)?;
    let b = normal(1.0, &[16], DType::F32, device)?;
    let operands = [x.clone(), b.clone()];
    Ok(Case {
        start: vec![x.clone()],
        step: Box::new(move |y| {
            y[0] = x.add(&b)?;
            eval(&[&y[0]])
        }),
        check: Box::new(move |y| {
            let [x, b] = [as_floats(&operands[0])?, as_floats(&operands[1])?];
            let y = as_floats(&y[0])?;
            let expected = x.iter().zip(&b).map(|(x, b)| f64::from((x + b) as f32));
            let error = expected.zip(&y).map(|(e, y)| (e - y).abs()).fold(0.0, f64::max);
            Ok(vec![
                Figure { name: "deviation", value: deviation(&y), range: 0.1..=10.0 },
                Figure { name: "error", value: error, range: 0.0..=0.0 },
            ])
        }),
    })
}

/// Of the steps of gradient descent.
const RATE: f64 = 0.05;

/// A batch with the class of each row, as rows of one 1 each.
struct Batch {
    x: Tensor,
    classes: Tensor,
    rows: usize,
}

impl Batch {
    fn new(rows: usize, width: usize, classes: usize, device: &Device) -> Result<Batch> {
        let x = normal(0.5, &[rows, width], DType::F32, device)?;
        let class = |row: usize| (0..classes).map(move |c| if c == row * 7 % classes { 1.0f32 } else { 0.0 });
        let one_hot: Vec<f32> = (0..rows).flat_map(class).collect();
        Ok(Batch { x, classes: Tensor::from_vec(one_hot, (rows, classes), device)?, rows })
    }

    /// What the hidden layer gives before its relu, and the probabilities.
    fn forward(&self, layers: &[Tensor]) -> Result<(Tensor, Tensor)> {
        let before = self.x.matmul(&layers[0])?.broadcast_add(&layers[1])?;
        let scores = before.relu()?.matmul(&layers[2])?.broadcast_add(&layers[3])?;
        Ok((before, softmax(&scores, 1)?))
    }

    /// The cross entropy.
    fn loss(&self, layers: &[Tensor]) -> Result<f64> {
        let (_, p) = self.forward(layers)?;
        let of_class = as_floats(&p.mul(&self.classes)?.sum(1)?)?;
        Ok(-mean(&of_class.into_iter().map(f64::ln).collect::<Vec<_>>()))
    }

    /// Replaces `layers` (two weights, each with its bias behind it) by what one step makes of them.
    fn train(&self, layers: &mut [Tensor]) -> Result<()> {
        let (before, p) = self.forward(layers)?;
        let of_scores = p.sub(&self.classes)?.affine(1.0 / self.rows as f64, 0.0)?;
        let hidden = before.relu()?;
        let is_positive = before.gt(0f32)?.to_dtype(DType::F32)?;
        let of_hidden = of_scores.matmul(&layers[2].t()?)?.mul(&is_positive)?;
        let gradients = [
            self.x.t()?.matmul(&of_hidden)?,
            of_hidden.sum(0)?,
            hidden.t()?.matmul(&of_scores)?,
            of_scores.sum(0)?,
        ];
        for (layer, gradient) in layers.iter_mut().zip(gradients) {
            *layer = layer.sub(&gradient.affine(RATE, 0.0)?)?;
        }
        eval(&layers.iter().collect::<Vec<_>>())
    }
}

fn perceptron(device: &Device, scale: usize) -> Result<Case> {
    let (rows, width, hidden, classes) = (scaled(64, scale), scaled(784, scale), scaled(512, scale), 10);
    let batch = Batch::new(rows, width, classes, device)?;
    let start = vec![
        normal((2.0 / width as f64).sqrt(), &[width, hidden], DType::F32, device)?,
        Tensor::zeros(hidden, DType::F32, device)?,
        normal((2.0 / hidden as f64).sqrt(), &[hidden, classes], DType::F32, device)?,
        Tensor::zeros(classes, DType::F32, device)?,
    ];
    eval(&start.iter().collect::<Vec<_>>())?;
    let batch = std::rc::Rc::new(batch);
    let (of_step, first) = (batch.clone(), batch.loss(&start)?);
    Ok(Case {
        start,
        step: Box::new(move |layers| of_step.train(layers)),
        check: Box::new(move |layers| {
            let value = deviation(&as_floats(&layers[0])?);
            Ok(vec![
                Figure { name: "deviation", value, range: 0.01..=1.0 },
                Figure { name: "loss", value: batch.loss(layers)?, range: 0.0..=first },
            ])
        }),
    })
}
