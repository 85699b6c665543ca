//! One op in one element type and class, with data.

use std::fmt;

use tallow::{Device, Tensor};
use tallow_ir::{DType, Graph, Value};
use tallow_reference::Array;
use tallow_tests::Inputs;
use tallow_tests::random_inputs::Leaf as Data;
use tallow_tests::rng::Rng;

use crate::class::Class;
use crate::layout;
use crate::row::{Expression, Fill, Leaf, Operand, Row};

/// A cell of the product of rows, element types and classes.
pub struct Case<'a> {
    pub row: &'a Row,
    pub dtype: DType,
    pub class: Class,
    pub operands: Vec<Operand>,
    /// What is stored for each operand.
    pub data: Vec<Array>,
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}, {}", self.row.name, self.dtype, self.class)
    }
}

impl<'a> Case<'a> {
    pub fn new(row: &'a Row, dtype: DType, class: Class) -> Case<'a> {
        Case::of_shape(row, dtype, class, &(row.dims)(class))
    }

    /// A case whose base shape is another than that of its class.
    pub fn of_shape(row: &'a Row, dtype: DType, class: Class, dims: &[usize]) -> Case<'a> {
        let operands = (row.operands)(dims, dtype);
        // The same values for the same cell, whatever else is tested.
        let seed = row
            .name
            .bytes()
            .fold(u64::from(dtype.size_in_bytes() as u32), |s, b| s.wrapping_mul(31).wrapping_add(b.into()));
        let rng = &mut Rng::new(seed ^ class as u64);
        let data = operands.iter().map(|o| array(rng, o, &stored(o, class))).collect();
        Case { row, dtype, class, operands, data }
    }

    /// Appends the case to a graph, its leaves named by `prefix`.
    pub fn add_to(&self, graph: &mut Graph, prefix: &str) -> Result<Value, String> {
        let mut values = vec![];
        for (i, operand) in self.operands.iter().enumerate() {
            let leaf = leaf(graph, &format!("{prefix}.{i}"), operand, &stored(operand, self.class))?;
            values.push(match operand.leaf {
                Leaf::Input => layout::view(graph, leaf, &operand.dims, self.class)?,
                Leaf::Blocks(_) | Leaf::State => leaf,
            });
        }
        (self.row.build)(graph, &values)
    }

    /// A graph of this case alone, verified.
    pub fn graph(&self) -> Result<Graph, String> {
        let mut graph = Graph::new("case");
        let value = self.add_to(&mut graph, "c")?;
        graph.output("c", value).map_err(|e| e.to_string())?;
        let verified = tallow_ir::verify(graph).map_err(|found| format!("{found:?}"))?;
        Ok(verified.into_graph())
    }

    /// The data of its leaves; integers of all bits instead, where `wide` and they are plain numbers.
    pub fn fill(&self, prefix: &str, inputs: &mut Inputs, wide: bool) {
        for (i, (operand, data)) in self.operands.iter().zip(&self.data).enumerate() {
            let mut bytes = data.to_bytes();
            if wide && operand.dtype.is_int() && operand.fill == Fill::Numbers {
                let mut rng = Rng::new(bytes.len() as u64 + i as u64);
                bytes.iter_mut().for_each(|b| *b = rng.bits() as u8);
            }
            let shape = stored(operand, self.class);
            let leaf = Data { dtype: operand.dtype, shape, bytes };
            let all = match operand.leaf {
                Leaf::Input => &mut inputs.inputs,
                Leaf::Blocks(_) => &mut inputs.weights,
                Leaf::State => &mut inputs.states,
            };
            all.insert(format!("{prefix}.{i}"), leaf);
        }
    }

    /// The row's expression of tensors on a device.
    pub fn on(&self, device: &Device, expression: &Expression) -> tallow::Result<Tensor> {
        let mut operands = vec![];
        for (operand, data) in self.operands.iter().zip(&self.data) {
            let shape = stored(operand, self.class);
            let plain = Tensor::from_raw_buffer(&data.to_bytes(), operand.dtype, &shape, device)?;
            operands.push(layout::tensor(&plain, &operand.dims, self.class)?);
        }
        expression(&operands)
    }

    /// What the interpreter gives.
    pub fn interpret(&self, graph: &Graph) -> Result<Array, String> {
        if let Some(expression) = &self.row.expression {
            return self.on(&Device::Cpu, expression).and_then(|t| value(&t)).map_err(|e| e.to_string());
        }
        let mut inputs = Inputs::default();
        self.fill("c", &mut inputs, false);
        // Leaves that nothing needs are not in the graph.
        let results = tallow_reference::evaluate(graph, &mut inputs.env()).map_err(|e| e.to_string())?;
        results.into_iter().next().map(|(_, array)| array).ok_or_else(|| "no result".to_string())
    }
}

/// A tensor's value.
pub fn value(tensor: &Tensor) -> tallow::Result<Array> {
    let shape = tensor.dims().to_vec();
    let mut bytes = vec![];
    tensor.write_bytes(&mut bytes)?;
    Ok(Array::from_bytes(tensor.dtype(), &shape, &bytes).expect("a tensor has the bytes of its type"))
}

/// The leaf of an operand.
pub fn leaf(graph: &mut Graph, name: &str, operand: &Operand, shape: &[usize]) -> Result<Value, String> {
    let made = match operand.leaf {
        Leaf::Input => graph.input(name, operand.dtype, shape),
        Leaf::Blocks(_) => graph.weight(name, operand.dtype, shape),
        Leaf::State => graph.state(name, operand.dtype, shape),
    };
    made.map_err(|e| e.to_string())
}

/// Blocks and states lie as they are.
pub fn stored(operand: &Operand, class: Class) -> Vec<usize> {
    match operand.leaf {
        Leaf::Input => layout::stored(&operand.dims, class),
        Leaf::Blocks(_) | Leaf::State => operand.dims.clone(),
    }
}

/// Random data.
fn array(rng: &mut Rng, operand: &Operand, shape: &[usize]) -> Array {
    let count = shape.iter().product();
    let values: Vec<f64> = (0..count).map(|_| number(rng, operand.dtype, operand.fill)).collect();
    match operand.leaf {
        Leaf::Blocks(format) if shape.last().is_some_and(|n| n % format.spec().block_elements == 0) => {
            let values: Vec<f32> = values.iter().map(|x| *x as f32).collect();
            let bytes = tallow_quant::quantize(format, &values).expect("whole blocks");
            Array::from_bytes(operand.dtype, shape, &bytes).expect("whole blocks")
        }
        // Refused before data is looked at.
        Leaf::Blocks(_) => Array::zeros(DType::F32, &[0]).expect("nothing"),
        Leaf::Input | Leaf::State => Array::from_f64s(operand.dtype, shape, &values).expect("as many"),
    }
}

fn number(rng: &mut Rng, dtype: DType, fill: Fill) -> f64 {
    let unsigned = matches!(dtype, DType::U8 | DType::U32);
    let grid = match dtype {
        DType::BF16 => 1,
        DType::F8E4M3 => 4,
        DType::F16 | DType::F32 | DType::F64 | DType::Block(_) => 16,
        DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 => 0,
    };
    // Integers up to 8, floats up to 4 in steps of 1 / grid.
    let (reach, scale) = if grid == 0 { (8, 1.0) } else { (4 * grid, 1.0 / grid as f64) };
    let low = if unsigned { 0 } else { -reach };
    match fill {
        Fill::Numbers => rng.between(low, reach) as f64 * scale,
        Fill::Positive => rng.between(1, reach) as f64 * scale,
        Fill::NonZero => {
            let size = rng.between(1, reach) as f64 * scale;
            if !unsigned && rng.chance(50) { -size } else { size }
        }
        Fill::Unit => rng.between(-16, 16) as f64 / 16.0,
        Fill::Powers if dtype.is_int() => rng.between(1, 2) as f64,
        Fill::Powers => [0.5, 1.0, 2.0, -1.0][rng.below(4)],
        Fill::Ends => {
            let special = [
                f64::NAN,
                f64::INFINITY,
                f64::NEG_INFINITY,
                -0.0,
                255.0,
                256.5,
                -300.0,
                32767.0,
                -32769.0,
                65504.0,
                1e6,
                2147483647.0,
                4.3e9,
                -4.3e9,
                2.5,
                464.1,
            ];
            let one = special[rng.below(special.len())];
            if rng.chance(30) && (dtype.is_float() || one.is_finite()) {
                one
            } else {
                rng.between(low, reach) as f64 * 0.75
            }
        }
        Fill::Truths => rng.below(2) as f64,
        Fill::Below(n) => rng.below(n) as f64,
        Fill::Shifts => rng.below(8 * dtype.size_in_bytes() + 3) as f64,
    }
}
