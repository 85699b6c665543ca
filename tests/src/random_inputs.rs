//! Random data for the leaves of a graph.

use std::collections::BTreeMap;
use std::sync::Arc;

use tallow_ir::{Bindings, DType, Graph, Op, TensorType};
use tallow_reference::{Array, Env};

use crate::rng::Rng;

/// Values for the symbols and leaves of one graph: bytes as both backends take them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    /// Values of the symbols.
    pub symbols: Bindings,
    /// Bytes of each input.
    pub inputs: BTreeMap<String, Leaf>,
    /// Bytes of each weight; blocks as in a GGUF file.
    pub weights: BTreeMap<String, Leaf>,
    /// Bytes of each state before the run.
    pub states: BTreeMap<String, Leaf>,
}

/// Data of one leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Element type.
    pub dtype: DType,
    /// Extents under the symbol values.
    pub shape: Vec<usize>,
    /// Row-major little-endian elements, or blocks.
    pub bytes: Vec<u8>,
}

impl Leaf {
    /// The leaf as the interpreter takes it.
    pub fn array(&self) -> Array {
        Array::from_bytes(self.dtype, &self.shape, &self.bytes).expect("a leaf has the bytes of its type")
    }
}

impl Inputs {
    /// An environment for the interpreter.
    pub fn env(&self) -> Env {
        let shared = |all: &BTreeMap<String, Leaf>| {
            all.iter().map(|(name, leaf)| (name.clone(), Arc::new(leaf.array()))).collect()
        };
        Env {
            symbols: self.symbols.clone(),
            inputs: shared(&self.inputs),
            weights: shared(&self.weights),
            states: self.states.iter().map(|(name, leaf)| (name.clone(), leaf.array())).collect(),
        }
    }
}

/// Random values for every symbol and leaf of `graph`, the same for the same seed.
///
/// Symbols are at least 1 and satisfy [`Graph::constraints`]. Floats are n/32 in -4 ..= 4, exact in every
/// float type but f8e4m3, those of weights n/256 in -1/2 ..= 1/2 before they are quantized; `u8` are 0 ..= 3,
/// other integers within -8 ..= 8 or, if unsigned, 0 ..= 16.
pub fn random_inputs(graph: &Graph, seed: u64) -> Inputs {
    // Another sequence than the graph's own, which may have the same seed.
    let mut rng = Rng::new(seed ^ 0x0069_6e70_7574_7321);
    let symbols = random_symbols(graph, &mut rng);
    leaves(graph, symbols, &mut rng)
}

/// As [`random_inputs`], with these symbol values.
pub fn with_symbols(graph: &Graph, seed: u64, symbols: Bindings) -> Inputs {
    leaves(graph, symbols, &mut Rng::new(seed))
}

/// Random data of a weight of this type, which has no symbols, the same for the same seed; as in [`random_inputs`].
pub fn random_weight(ty: &TensorType, seed: u64) -> Leaf {
    random_leaf(ty, &Bindings::default(), true, &mut Rng::new(seed))
}

fn leaves(graph: &Graph, symbols: Bindings, rng: &mut Rng) -> Inputs {
    let mut inputs = Inputs { symbols, ..Inputs::default() };
    for (_, node) in graph.nodes() {
        let (name, ty, is_weight) = match &node.op {
            Op::Input { name, ty } | Op::State { name, ty } => (name, ty, false),
            Op::Weight { name, ty } => (name, ty, true),
            _ => continue,
        };
        let leaf = random_leaf(ty, &inputs.symbols, is_weight, rng);
        let kind = match &node.op {
            Op::Input { .. } => &mut inputs.inputs,
            Op::Weight { .. } => &mut inputs.weights,
            _ => &mut inputs.states,
        };
        kind.insert(name.clone(), leaf);
    }
    inputs
}

fn random_symbols(graph: &Graph, rng: &mut Rng) -> Bindings {
    let constraints = graph.constraints();
    let mut tries: Vec<Bindings> = vec![];
    for _ in 0..1000 {
        let value = |s: &tallow_ir::Symbol| {
            let least = s.least().max(1);
            let above = rng.below((s.limit().max(least) - least + 1) as usize);
            (s.name().to_string(), u64::from(least) + above as u64)
        };
        tries.push(graph.symbols().map(value).collect());
    }
    // The ends of the range, in case few values satisfy all constraints.
    for limit in [1, u64::MAX] {
        let value =
            |s: &tallow_ir::Symbol| (s.name().to_string(), limit.clamp(s.least().into(), s.limit().into()));
        tries.push(graph.symbols().map(value).collect());
    }
    let satisfies = |b: &Bindings| constraints.iter().all(|(end, extent)| end.eval(b) <= extent.eval(b));
    tries
        .into_iter()
        .find(satisfies)
        .unwrap_or_else(|| panic!("no symbol values satisfy the bounds of\n{graph}"))
}

fn random_leaf(ty: &TensorType, symbols: &Bindings, is_weight: bool, rng: &mut Rng) -> Leaf {
    let shape = ty.shape.eval(symbols).expect("all symbols are bound");
    let n: usize = shape.iter().product();
    let dtype = ty.dtype;
    let number = |rng: &mut Rng| match dtype {
        DType::U8 => rng.between(0, 3) as f64,
        DType::U32 => rng.between(0, 16) as f64,
        DType::I16 | DType::I32 | DType::I64 => rng.between(-8, 8) as f64,
        DType::F8E4M3 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::Block(_) if is_weight => {
            rng.between(-128, 128) as f64 / 256.0
        }
        DType::F8E4M3 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::Block(_) => {
            rng.between(-128, 128) as f64 / 32.0
        }
    };
    let values: Vec<f64> = (0..n).map(|_| number(rng)).collect();
    let bytes = match dtype {
        DType::Block(format) if !format.can_quantize() => {
            // Nothing is quantized to it. Three or four times the root mean square is the largest magnitude.
            let mut blocks = vec![0; n / format.block_elements() * format.block_bytes()];
            tallow_quant::random_blocks(format, &mut blocks, 0.12, rng.bits()).expect("whole blocks");
            blocks
        }
        DType::Block(format) => {
            let values: Vec<f32> = values.iter().map(|x| *x as f32).collect();
            tallow_quant::quantize(format, &values).expect("rows are whole blocks")
        }
        DType::U8
        | DType::U32
        | DType::I16
        | DType::I32
        | DType::F8E4M3
        | DType::I64
        | DType::F16
        | DType::BF16
        | DType::F32
        | DType::F64 => {
            Array::from_f64s(dtype, &shape, &values).expect("as many values as elements").to_bytes()
        }
    };
    Leaf { dtype, shape, bytes }
}
