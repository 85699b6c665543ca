//! The graph under construction, and what is known of each of its values.

use tallow_ir::{DType, Dim, ElementwiseOp, Graph, Op, Scalar, Shape, Symbol, Value};

use super::Options;
use super::item::{Item, is_exact, range};
use crate::rng::Rng;

/// Awkward extents: single elements, odd, prime, powers of two and their neighbours.
const EXTENTS: [i64; 14] = [1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 33, 64, 127];

/// Values above this are scaled down.
const TAME: f64 = 16.0;

const TYPED: &str = "operands fit by construction";

/// Builds a graph step by step.
pub struct Builder {
    /// The graph so far.
    pub graph: Graph,
    /// The source of all choices.
    pub rng: Rng,
    /// What the graph may contain.
    pub options: Options,
    items: Vec<Item>,
    symbols: Vec<Symbol>,
    wanted: Vec<Value>,
    names: usize,
}

impl Builder {
    /// An empty graph.
    pub fn new(name: &str, mut rng: Rng, options: Options) -> Self {
        let symbols = if options.symbols {
            let limits = [rng.between(3, 17) as u32, rng.between(2, 9) as u32];
            vec![Symbol::new("seq", limits[0]), Symbol::new("pos", limits[1])]
        } else {
            vec![]
        };
        Builder { graph: Graph::new(name), rng, options, items: vec![], symbols, wanted: vec![], names: 0 }
    }

    /// A new name.
    pub fn name(&mut self, prefix: &str) -> String {
        self.names += 1;
        format!("{prefix}{}", self.names)
    }

    /// The symbols; none if they are not wanted.
    pub fn symbols(&self) -> &[Symbol] {
        &self.symbols
    }

    /// The extents of a value.
    pub fn dims(&self, v: Value) -> Vec<Dim> {
        self.graph.ty(v).shape.dims().to_vec()
    }

    /// The element type of a value.
    pub fn dtype(&self, v: Value) -> DType {
        self.graph.ty(v).dtype
    }

    /// True if a tensor of these extents is small enough.
    pub fn fits(&self, dims: &[Dim]) -> bool {
        dims.len() <= 6 && Shape::new(dims.to_vec()).max_numel() <= self.options.max_elements
    }

    /// One of the float types.
    pub fn random_float(&mut self) -> DType {
        *self.rng.pick(&self.options.floats)
    }

    /// An extent; sometimes symbolic.
    pub fn random_dim(&mut self) -> Dim {
        let constant = Dim::from(*self.rng.pick(&EXTENTS));
        if self.symbols.is_empty() || !self.rng.chance(20) {
            return constant;
        }
        let symbol = Dim::from(self.rng.pick(&self.symbols));
        match self.rng.below(4) {
            0 => &symbol * &Dim::from(2),
            1 => &symbol + &Dim::one(),
            _ => symbol,
        }
    }

    /// A shape of rank 1 to 4 that fits.
    pub fn random_shape(&mut self) -> Shape {
        let rank = *self.rng.pick(&[1, 2, 2, 2, 3, 3, 4]);
        let mut dims: Vec<Dim> = (0..rank).map(|_| self.random_dim()).collect();
        while !self.fits(&dims) {
            let i = self.rng.below(dims.len());
            dims[i] = Dim::from(*self.rng.pick(&EXTENTS[..5]));
        }
        Shape::new(dims)
    }

    /// Adds a node.
    pub fn add(&mut self, op: Op, operands: &[Value]) -> Value {
        self.graph.add(op, operands).expect(TYPED)
    }

    /// Adds a node that moves elements of `a`.
    pub fn view(&mut self, op: Op, a: Item) -> Item {
        Item { value: self.add(op, &[a.value]), ..a }
    }

    /// Remembers a value for later steps, scaled down if it may be large.
    pub fn push(&mut self, item: Item) -> Item {
        let item = self.tame(item);
        self.items.push(item);
        item
    }

    /// Makes a value an output whatever happens.
    pub fn want(&mut self, v: Value) {
        self.wanted.push(v);
    }

    /// A new input, also remembered.
    pub fn input(&mut self, dtype: DType, shape: impl Into<Shape>) -> Item {
        let name = self.name("x");
        let value = self.graph.input(&name, dtype, shape).expect(TYPED);
        let item = leaf(value, dtype);
        self.items.push(item);
        item
    }

    /// A new state, not remembered: a state may be read only until it is updated.
    pub fn state(&mut self, dtype: DType, shape: impl Into<Shape>) -> Item {
        let name = self.name("s");
        let value = self.graph.state(&name, dtype, shape).expect(TYPED);
        leaf(value, dtype)
    }

    /// A constant of the type and shape of `like`.
    pub fn constant(&mut self, like: Value, x: f64) -> Item {
        let value = self.graph.full_like(like, x).expect(TYPED);
        let stored = Scalar::of(self.dtype(like), x).as_f64();
        Item { value, low: stored, high: stored, exact: true }
    }

    /// A remembered value, more likely one of the last.
    pub fn pick(&mut self, fits: impl Fn(&Builder, &Item) -> bool) -> Option<Item> {
        let found: Vec<Item> = self.items.iter().filter(|i| fits(self, i)).copied().collect();
        if found.is_empty() {
            return None;
        }
        let recent = &found[found.len().saturating_sub(4)..];
        let all = if self.rng.chance(70) { recent } else { &found[..] };
        Some(*self.rng.pick(all))
    }

    /// A remembered value of a float type.
    pub fn pick_float(&mut self) -> Option<Item> {
        self.pick(|b, i| b.dtype(i.value).is_float())
    }

    /// An elementwise node; the range follows from those of the operands.
    pub fn apply(&mut self, op: ElementwiseOp, operands: &[Item]) -> Item {
        let values: Vec<Value> = operands.iter().map(|i| i.value).collect();
        let value = self.graph.elementwise(op, &values).expect(TYPED);
        let (low, high) = range(op, operands);
        let exact = operands.iter().all(|i| i.exact) && is_exact(op);
        let dtype = self.dtype(value);
        if dtype.is_int() {
            let (low, high) = wrapped(dtype, low, high);
            return Item { value, low, high, exact: true };
        }
        Item { value, low, high, exact }
    }

    /// A float value within about ±16: scaled by a power of two if it may be larger.
    pub fn tame(&mut self, a: Item) -> Item {
        if !self.dtype(a.value).is_float() || a.bound() <= TAME {
            return a;
        }
        let scale = (TAME / 2.0 / a.bound()).log2().floor().exp2();
        let factor = self.constant(a.value, scale);
        Item { exact: false, ..self.apply(ElementwiseOp::Mul, &[a, factor]) }
    }

    /// The graph, with one to about four outputs: what was wanted, the last value and some others. Some versions of states
    /// are only kept.
    pub fn finish(mut self) -> Graph {
        let mut outputs = std::mem::take(&mut self.wanted);
        let last = self.items.last().map(|i| i.value);
        outputs.extend(last);
        for _ in 0..self.rng.below(3) {
            outputs.extend(self.pick(|_, _| true).map(|i| i.value));
        }
        let mut named: Vec<Value> = vec![];
        for v in outputs {
            if !named.contains(&v) {
                named.push(v);
                let is_version = matches!(self.graph.op(v), Op::StateUpdate { .. });
                if is_version && self.rng.chance(30) {
                    self.graph.keep(v).expect("it is a version");
                    continue;
                }
                self.graph.output(&format!("y{}", named.len()), v).expect("names are new");
            }
        }
        self.graph
    }
}

/// What `random_inputs` puts into a leaf.
fn leaf(value: Value, dtype: DType) -> Item {
    let (low, high) = match dtype {
        DType::U8 => (0.0, 3.0),
        DType::U32 => (0.0, 16.0),
        DType::I16 | DType::I32 | DType::I64 => (-8.0, 8.0),
        DType::F8E4M3 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::Block(_) => (-4.0, 4.0),
    };
    Item { value, low, high, exact: true }
}

/// The range of an integer result that may have wrapped.
pub fn wrapped(dtype: DType, low: f64, high: f64) -> (f64, f64) {
    let all = match dtype {
        DType::U8 => (0.0, 255.0),
        DType::U32 => (0.0, f64::from(u32::MAX)),
        DType::I16 => (f64::from(i16::MIN), f64::from(i16::MAX)),
        DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        DType::I64 | DType::F8E4M3 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::Block(_) => {
            (i64::MIN as f64, i64::MAX as f64)
        }
    };
    if low >= all.0 && high <= all.1 { (low, high) } else { all }
}
