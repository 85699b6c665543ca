//! How families write their networks: inputs and steps, in the order in which they are needed.

use tallow::DType;
use tallow_quant::Format;

use super::draw::{Draw, Scale};
use super::{Binary, Call, Conv, Kind, Network, Reduction, Step, TensorSpec, Unary};

/// A value of a network that is being built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Var(usize);

/// Where a value comes from.
#[derive(Clone, Copy)]
enum Source {
    Input(usize),
    Step(usize),
}

/// A network that is being built, and the choices of its seed.
pub struct Builder {
    /// The choices.
    pub draw: Draw,
    /// The element type of inputs.
    pub dtype: DType,
    /// Whether extents are divided.
    pub scale: Scale,
    inputs: Vec<TensorSpec>,
    steps: Vec<(Call, Vec<Var>)>,
    sources: Vec<Source>,
}

impl Builder {
    /// An empty network, of an element type that the seed draws.
    pub fn new(seed: u64, scale: Scale) -> Builder {
        let mut draw = Draw::new(seed, scale);
        let dtype = draw.dtype();
        Builder { draw, dtype, scale, inputs: vec![], steps: vec![], sources: vec![] }
    }

    /// The network, under this name.
    pub fn finish(self, name: String, seed: u64, outputs: &[Var]) -> Network {
        let inputs = self.inputs.len();
        let number = |var: &Var| match self.sources[var.0] {
            Source::Input(input) => input,
            Source::Step(step) => inputs + step,
        };
        let step = |(call, args): &(Call, Vec<Var>)| Step {
            call: call.clone(),
            args: args.iter().map(number).collect(),
        };
        let steps = self.steps.iter().map(step).collect();
        let outputs = outputs.iter().map(number).collect();
        Network { name, seed, inputs: self.inputs, steps, outputs }
    }

    /// Extents of a batch: one of `options`, a fourth of it for f32, which has no tensor cores.
    pub fn batch(&mut self, options: &[usize]) -> usize {
        let size = self.draw.extent(options, 16);
        match (self.scale, self.dtype == DType::F32) {
            (Scale::Full, true) => (size / 4).max(1),
            (Scale::Full, false) => size,
            (Scale::Tiny, _) => size.min(2),
        }
    }

    /// `full`, or `tiny` at that scale.
    pub fn either<T>(&self, full: T, tiny: T) -> T {
        match self.scale {
            Scale::Full => full,
            Scale::Tiny => tiny,
        }
    }

    fn leaf(&mut self, name: &str, shape: &[usize], scale: f32, kind: Kind) -> Var {
        let dtype = match kind {
            Kind::IntegerBelow(_) | Kind::SortedBelow(_) => DType::U32,
            Kind::Activation | Kind::Weight => self.dtype,
        };
        let name = format!("{name}.{}", self.inputs.len());
        self.sources.push(Source::Input(self.inputs.len()));
        self.inputs.push(TensorSpec { name, dtype, shape: shape.to_vec(), scale, kind, blocks: None });
        Var(self.sources.len() - 1)
    }

    /// An activation of this element type.
    pub fn input_of(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Var {
        let others = std::mem::replace(&mut self.dtype, dtype);
        let var = self.input(name, shape);
        self.dtype = others;
        var
    }

    /// A weight in blocks along its last axis.
    pub fn quantized(&mut self, name: &str, format: Format, shape: &[usize], scale: f64) -> Var {
        let var = self.weight(name, shape, scale);
        if let Some(spec) = self.inputs.last_mut() {
            spec.blocks = Some(format);
        }
        var
    }

    /// Ascending integers from 0 to below `limit`.
    pub fn sorted(&mut self, name: &str, shape: &[usize], limit: usize) -> Var {
        self.leaf(name, shape, 0.0, Kind::SortedBelow(limit))
    }

    /// An activation of values about 1.
    pub fn input(&mut self, name: &str, shape: &[usize]) -> Var {
        self.leaf(name, shape, 1.0, Kind::Activation)
    }

    /// A weight of values about `scale`.
    pub fn weight(&mut self, name: &str, shape: &[usize], scale: f64) -> Var {
        self.leaf(name, shape, scale as f32, Kind::Weight)
    }

    /// Integers from 0 to below `limit`.
    pub fn integers(&mut self, name: &str, shape: &[usize], limit: usize) -> Var {
        self.leaf(name, shape, 0.0, Kind::IntegerBelow(limit))
    }

    /// The result of an op.
    pub fn call(&mut self, call: Call, args: &[Var]) -> Var {
        self.sources.push(Source::Step(self.steps.len()));
        self.steps.push((call, args.to_vec()));
        Var(self.sources.len() - 1)
    }

    /// `x W^T + b`, with weights of its own, as most layers of networks.
    pub fn linear(&mut self, x: Var, inner: usize, outer: usize) -> Var {
        let weight = self.matrix(inner, outer);
        let bias = self.weight("bias", &[outer], 0.1);
        self.call(Call::Linear, &[x, weight, bias])
    }

    /// `x W^T`, with a weight of its own.
    pub fn project(&mut self, x: Var, inner: usize, outer: usize) -> Var {
        let weight = self.matrix(inner, outer);
        self.call(Call::Linear, &[x, weight])
    }

    /// The weight of a linear layer, `[outer, inner]`, which keeps the size of values.
    pub fn matrix(&mut self, inner: usize, outer: usize) -> Var {
        self.weight("weight", &[outer, inner], (inner as f64).powf(-0.5))
    }

    /// A 2D convolution with a square kernel, a bias and padding that keeps the extents at stride 1.
    pub fn conv2d(&mut self, x: Var, [inner, outer, size]: [usize; 3], stride: usize, groups: usize) -> Var {
        let fan_in = inner / groups * size * size;
        let shape = [outer, inner / groups, size, size];
        let kernel = self.weight("kernel", &shape, (fan_in as f64).powf(-0.5));
        let bias = self.weight("bias", &[outer], 0.1);
        let conv = Conv { stride, padding: size / 2, groups, dilation: 1 };
        self.call(Call::Conv2d(conv), &[x, kernel, bias])
    }

    /// A layer norm, or an RMS norm, over the last axis.
    pub fn norm(&mut self, x: Var, width: usize, is_rms: bool) -> Var {
        let weight = self.weight("norm", &[width], 1.0);
        if is_rms {
            return self.call(Call::RmsNorm { epsilon: 1e-5 }, &[x, weight]);
        }
        let bias = self.weight("bias", &[width], 0.1);
        self.call(Call::LayerNorm { epsilon: 1e-5 }, &[x, weight, bias])
    }

    /// A function of one tensor.
    pub fn unary(&mut self, function: Unary, x: Var) -> Var {
        self.call(Call::Unary { function }, &[x])
    }

    /// A function of two tensors.
    pub fn binary(&mut self, function: Binary, a: Var, b: Var) -> Var {
        self.call(Call::Binary { function }, &[a, b])
    }

    /// `a + b`.
    pub fn add(&mut self, a: Var, b: Var) -> Var {
        self.binary(Binary::Add, a, b)
    }

    /// `a - b`.
    pub fn sub(&mut self, a: Var, b: Var) -> Var {
        self.binary(Binary::Sub, a, b)
    }

    /// `a * b`.
    pub fn mul(&mut self, a: Var, b: Var) -> Var {
        self.binary(Binary::Mul, a, b)
    }

    /// `a / b`.
    pub fn div(&mut self, a: Var, b: Var) -> Var {
        self.binary(Binary::Div, a, b)
    }

    /// `x * mul + add`.
    pub fn affine(&mut self, x: Var, mul: f64, add: f64) -> Var {
        self.call(Call::Affine { mul, add }, &[x])
    }

    /// The elements in another shape.
    pub fn reshape(&mut self, x: Var, shape: &[usize]) -> Var {
        self.call(Call::Reshape { shape: shape.to_vec() }, &[x])
    }

    /// Repeated to a shape.
    pub fn broadcast(&mut self, x: Var, shape: &[usize]) -> Var {
        self.call(Call::Broadcast { shape: shape.to_vec() }, &[x])
    }

    /// The axes in another order.
    pub fn permute(&mut self, x: Var, order: &[usize]) -> Var {
        self.call(Call::Permute { order: order.to_vec() }, &[x])
    }

    /// `len` elements of an axis.
    pub fn slice(&mut self, x: Var, axis: usize, start: usize, len: usize) -> Var {
        self.call(Call::Slice { axis, start, len }, &[x])
    }

    /// `[a; b]` along an axis.
    pub fn concat(&mut self, parts: &[Var], axis: usize) -> Var {
        self.call(Call::Concat { axis }, parts)
    }

    /// The sum over axes, which disappear.
    pub fn sum(&mut self, x: Var, axes: &[usize]) -> Var {
        self.call(Call::Reduce { kind: Reduction::Sum, axes: axes.to_vec(), keepdim: false }, &[x])
    }

    /// The sum over axes, which stay with extent 1.
    pub fn sum_keepdim(&mut self, x: Var, axes: &[usize]) -> Var {
        self.call(Call::Reduce { kind: Reduction::Sum, axes: axes.to_vec(), keepdim: true }, &[x])
    }

    /// The mean over axes, which disappear.
    pub fn mean(&mut self, x: Var, axes: &[usize]) -> Var {
        self.call(Call::Reduce { kind: Reduction::Mean, axes: axes.to_vec(), keepdim: false }, &[x])
    }

    /// `a b`, of matrices as they are stored.
    pub fn matmul(&mut self, a: Var, b: Var) -> Var {
        self.call(Call::Matmul { transpose_a: false, transpose_b: false }, &[a, b])
    }

    /// `a b^T`.
    pub fn matmul_t(&mut self, a: Var, b: Var) -> Var {
        self.call(Call::Matmul { transpose_a: false, transpose_b: true }, &[a, b])
    }

    /// Converted to another element type; itself if it has that type.
    pub fn cast(&mut self, x: Var, from: DType, to: DType) -> Var {
        if from == to { x } else { self.call(Call::Cast { dtype: to }, &[x]) }
    }
}
