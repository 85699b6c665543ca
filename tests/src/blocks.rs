//! Blocks of neural networks, drawn by seed from a grammar: one or two sublayers over a residual stream, with norms,
//! gates and biases in the places where published networks have some.
//!
//! They are nobody's network. What the compiler makes of them shows whether fusion follows from rules, or from the
//! shape of the networks that it was written beside.

use std::fmt;

use tallow_ir::{
    Attention, DType, Dim, ElementwiseOp as E, Graph, GraphError, Op, ReduceKind, Shape, Symbol, Value,
};

use crate::rng::Rng;

const WIDTH: usize = 256;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = 64;
const HIDDEN: usize = 512;
const CONTEXT: usize = 128;

/// What normalizes rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// `x / rms(x) * w`.
    Rms,
    /// `(x - mean) / deviation * w + b`.
    Layer,
}

/// The wide sublayer without attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mlp {
    /// `down(silu(gate x) * up x)`.
    Swiglu,
    /// `down(gelu(up x))`, by the tanh form.
    Gelu,
    /// `down(max(up x, 0)^2)`.
    SquaredRelu,
}

/// How a sublayer's result joins the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// `x + f`.
    Plain,
    /// `x + c f` with a learned factor a channel.
    Scaled,
    /// `x + sigmoid(W n) f`, where `n` is what the sublayer reads.
    Gated,
}

/// A block, as the grammar has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Tokens at once: 1 as in decode, or 64 as in prefill.
    pub rows: usize,
    /// Attention and MLP read one norm and are added together, instead of one after the other.
    pub parallel: bool,
    /// The norm before sublayers.
    pub norm: Norm,
    /// Whether each sublayer's result is normalized again before it joins the stream.
    pub post_norm: bool,
    /// Whether each head of the queries and keys is normalized.
    pub head_norm: bool,
    /// Whether attention's result is normalized before its output projection.
    pub inner_norm: bool,
    /// Whether queries and keys are rotated by position.
    pub rope: bool,
    /// The MLP.
    pub mlp: Mlp,
    /// Whether matrices have biases.
    pub bias: bool,
    /// How sublayers join.
    pub residual: Residual,
}

impl Block {
    /// The block of a seed.
    pub fn draw(seed: u64) -> Block {
        let mut rng = Rng::new(seed);
        Block {
            rows: *rng.pick(&[1, 64]),
            parallel: rng.chance(40),
            norm: *rng.pick(&[Norm::Rms, Norm::Layer]),
            post_norm: rng.chance(35),
            head_norm: rng.chance(35),
            inner_norm: rng.chance(30),
            rope: rng.chance(60),
            mlp: *rng.pick(&[Mlp::Swiglu, Mlp::Gelu, Mlp::SquaredRelu]),
            bias: rng.chance(40),
            residual: *rng.pick(&[Residual::Plain, Residual::Scaled, Residual::Gated]),
        }
    }

    /// The block as a graph: input `x`, output `y`, a key-value cache as states.
    ///
    /// # Errors
    /// When the builder is wrong.
    pub fn graph(&self) -> Result<Graph, GraphError> {
        let mut b = Builder { g: Graph::new("block"), block: *self, weights: 0 };
        let x = b.g.input("x", DType::F32, [self.rows, WIDTH])?;
        let normal = b.norm(x)?;
        let attended = b.attention(normal)?;
        let y = if self.parallel {
            let fed = b.mlp(normal)?;
            let both = b.g.elementwise(E::Add, &[attended, fed])?;
            b.join(x, normal, both)?
        } else {
            let x = b.join(x, normal, attended)?;
            let normal = b.norm(x)?;
            let fed = b.mlp(normal)?;
            b.join(x, normal, fed)?
        };
        b.g.output("y", y)?;
        Ok(b.g)
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flag = |on: bool, text: &'static str| if on { text } else { "" };
        write!(
            f,
            "{} row{}, {}, {:?}{}, attention{}{}{}, {:?}{}, {:?}",
            self.rows,
            flag(self.rows != 1, "s"),
            if self.parallel { "parallel" } else { "sequential" },
            self.norm,
            flag(self.post_norm, " before and after"),
            flag(self.head_norm, " head-norm"),
            flag(self.rope, " rope"),
            flag(self.inner_norm, " inner-norm"),
            self.mlp,
            flag(self.bias, " biases"),
            self.residual,
        )
    }
}

struct Builder {
    g: Graph,
    block: Block,
    weights: usize,
}

impl Builder {
    fn weight(&mut self, shape: impl Into<Shape>) -> Result<Value, GraphError> {
        self.weights += 1;
        self.g.weight(&format!("w{}", self.weights), DType::F32, shape)
    }

    /// A weight of the last axis's length, broadcast to the shape of `like`.
    fn vector(&mut self, like: Value) -> Result<Value, GraphError> {
        let shape = self.g.ty(like).shape.clone();
        let length = shape.dims()[shape.rank() - 1].clone();
        let w = self.weight([length])?;
        self.g.broadcast(w, shape)
    }

    fn op(&mut self, op: E, operands: &[Value]) -> Result<Value, GraphError> {
        self.g.elementwise(op, operands)
    }

    fn with(&mut self, op: E, x: Value, constant: f64) -> Result<Value, GraphError> {
        let constant = self.g.full_like(x, constant)?;
        self.op(op, &[x, constant])
    }

    /// The norm over the last axis.
    fn norm(&mut self, x: Value) -> Result<Value, GraphError> {
        let shape = self.g.ty(x).shape.clone();
        let last = shape.rank() - 1;
        let length = shape.dims()[last].max_value() as f64;
        let mean = |b: &mut Self, x: Value| {
            let sum = b.g.reduce_keepdim(ReduceKind::Sum, x, &[last])?;
            b.with(E::Mul, sum, 1.0 / length)
        };
        let centred = match self.block.norm {
            Norm::Rms => x,
            Norm::Layer => {
                let mean = mean(self, x)?;
                let mean = self.g.broadcast(mean, shape.clone())?;
                self.op(E::Sub, &[x, mean])?
            }
        };
        let square = self.op(E::Mul, &[centred, centred])?;
        let mean = mean(self, square)?;
        let shifted = self.with(E::Add, mean, 1e-5)?;
        let factor = self.op(E::Rsqrt, &[shifted])?;
        let factor = self.g.broadcast(factor, shape)?;
        let scaled = self.op(E::Mul, &[centred, factor])?;
        let w = self.vector(scaled)?;
        let y = self.op(E::Mul, &[scaled, w])?;
        match self.block.norm {
            Norm::Rms => Ok(y),
            Norm::Layer => {
                let bias = self.vector(y)?;
                self.op(E::Add, &[y, bias])
            }
        }
    }

    /// `x w^T`, with a bias if the block has them.
    fn linear(&mut self, x: Value, out: usize) -> Result<Value, GraphError> {
        let width = self.g.ty(x).shape.dims()[1].clone();
        let w = self.weight([Dim::from(out), width])?;
        let w = self.g.permute(w, &[1, 0])?;
        let y = self.g.add(Op::Matmul, &[x, w])?;
        if !self.block.bias {
            return Ok(y);
        }
        let bias = self.vector(y)?;
        self.op(E::Add, &[y, bias])
    }

    fn sigmoid(&mut self, x: Value) -> Result<Value, GraphError> {
        let negative = self.op(E::Neg, &[x])?;
        let exp = self.op(E::Exp, &[negative])?;
        let below = self.with(E::Add, exp, 1.0)?;
        self.op(E::Recip, &[below])
    }

    fn mlp(&mut self, x: Value) -> Result<Value, GraphError> {
        let hidden = match self.block.mlp {
            Mlp::Swiglu => {
                let gate = self.linear(x, HIDDEN)?;
                let up = self.linear(x, HIDDEN)?;
                let sigmoid = self.sigmoid(gate)?;
                let silu = self.op(E::Mul, &[gate, sigmoid])?;
                self.op(E::Mul, &[silu, up])?
            }
            Mlp::Gelu => {
                let up = self.linear(x, HIDDEN)?;
                let square = self.op(E::Mul, &[up, up])?;
                let slope = self.with(E::Mul, square, 0.044715)?;
                let slope = self.with(E::Add, slope, 1.0)?;
                let inner = self.op(E::Mul, &[up, slope])?;
                let inner = self.with(E::Mul, inner, (2.0 / std::f64::consts::PI).sqrt())?;
                let bent = self.op(E::Tanh, &[inner])?;
                let above = self.with(E::Add, bent, 1.0)?;
                let half = self.with(E::Mul, up, 0.5)?;
                self.op(E::Mul, &[half, above])?
            }
            Mlp::SquaredRelu => {
                let up = self.linear(x, HIDDEN)?;
                let positive = self.with(E::Maximum, up, 0.0)?;
                self.op(E::Mul, &[positive, positive])?
            }
        };
        self.linear(hidden, WIDTH)
    }

    /// Grouped-query attention over a cache to which the rows are appended at position `pos`.
    fn attention(&mut self, x: Value) -> Result<Value, GraphError> {
        let rows = self.block.rows;
        let pos = Dim::from(Symbol::new("pos", (CONTEXT - rows) as u32));
        let total = &pos + &Dim::from(rows);
        let q = self.linear(x, HEADS * HEAD)?;
        let k = self.linear(x, KV_HEADS * HEAD)?;
        let v = self.linear(x, KV_HEADS * HEAD)?;
        let q = self.heads(q, HEADS)?;
        let q = self.g.permute(q, &[1, 0, 2])?;
        let k = self.heads(k, KV_HEADS)?;
        let k = self.g.reshape(k, [rows, KV_HEADS * HEAD])?;
        let (k, v) = (self.cached("k", k, &pos, &total)?, self.cached("v", v, &pos, &total)?);
        let attention = Attention::new(1.0 / (HEAD as f64).sqrt()).causal(true);
        let mixed = self.g.add(Op::Attention(attention), &[q, k, v])?;
        let mixed = self.g.permute(mixed, &[1, 0, 2])?;
        let mut mixed = self.g.reshape(mixed, [rows, HEADS * HEAD])?;
        if self.block.inner_norm {
            mixed = self.norm(mixed)?;
        }
        self.linear(mixed, WIDTH)
    }

    /// `[rows, heads, HEAD]` of a projection, each head normalized and rotated if the block does so.
    fn heads(&mut self, x: Value, heads: usize) -> Result<Value, GraphError> {
        let rows = self.block.rows;
        let mut x = self.g.reshape(x, [rows, heads, HEAD])?;
        if self.block.head_norm {
            x = self.norm(x)?;
        }
        if !self.block.rope {
            return Ok(x);
        }
        // The first half of a head turns with the second (GPT-NeoX's pairing); the tables are inputs.
        let half = |b: &mut Self, start: usize| {
            b.g.add(Op::Slice { axis: 2, start: start.into(), len: (HEAD / 2).into() }, &[x])
        };
        let (a, b) = (half(self, 0)?, half(self, HEAD / 2)?);
        let table = |b: &mut Self, name: &str| {
            let table = b.g.input(name, DType::F32, [rows, HEAD / 2])?;
            let table = b.g.reshape(table, [rows, 1, HEAD / 2])?;
            b.g.broadcast(table, [rows, heads, HEAD / 2])
        };
        let (cos, sin) = (table(self, "cos")?, table(self, "sin")?);
        let (ac, bs) = (self.op(E::Mul, &[a, cos])?, self.op(E::Mul, &[b, sin])?);
        let (as_, bc) = (self.op(E::Mul, &[a, sin])?, self.op(E::Mul, &[b, cos])?);
        let first = self.op(E::Sub, &[ac, bs])?;
        let second = self.op(E::Add, &[as_, bc])?;
        self.g.add(Op::Concat { axis: 2 }, &[first, second])
    }

    fn cached(&mut self, name: &str, rows: Value, pos: &Dim, total: &Dim) -> Result<Value, GraphError> {
        let state = self.g.state(name, DType::F16, [CONTEXT, KV_HEADS * HEAD])?;
        let rows = self.g.add(Op::Cast(DType::F16), &[rows])?;
        let offsets = vec![pos.clone(), Dim::zero()];
        let state = self.g.add(Op::StateUpdate { offsets, rows: None }, &[state, rows])?;
        let seen = Op::Slice { axis: 0, start: Dim::zero(), len: total.clone() };
        let seen = self.g.add(seen, &[state])?;
        let split = self.g.reshape(seen, [total.clone(), KV_HEADS.into(), HEAD.into()])?;
        self.g.permute(split, &[1, 0, 2])
    }

    /// The stream after a sublayer that read `normal` gave `f`.
    fn join(&mut self, x: Value, normal: Value, mut f: Value) -> Result<Value, GraphError> {
        if self.block.post_norm {
            f = self.norm(f)?;
        }
        match self.block.residual {
            Residual::Plain => {}
            Residual::Scaled => {
                let factor = self.vector(f)?;
                f = self.op(E::Mul, &[f, factor])?;
            }
            Residual::Gated => {
                let gate = self.linear(normal, WIDTH)?;
                let gate = self.sigmoid(gate)?;
                f = self.op(E::Mul, &[gate, f])?;
            }
        }
        self.op(E::Add, &[x, f])
    }
}
