//! The weights of a model: what the file has, as types of the IR, and how a graph reads them.

use std::sync::Arc;

use indexmap::IndexMap;
use tallow_gguf::{GgufError, GgufFile, TensorInfo};
use tallow_ir::{DType, Format, Graph, GraphError, Op, TensorType, Value};

use crate::error::{Error, LoraError, Result};
use crate::lora::{A, B, LoraAdapter};

/// Types of a model's tensors by name, and the adapters that add to them.
#[derive(Clone, Debug, Default)]
pub struct WeightTypes {
    types: IndexMap<String, TensorType>,
    adapters: Vec<Arc<LoraAdapter>>,
    /// By name of the weight.
    terms: IndexMap<String, Vec<LoraTerm>>,
    /// Whether graphs read weights of the shapes that they require, in f32, whatever the file has.
    assumed: bool,
}

/// What an adapter adds to the products with a weight.
#[derive(Clone, Debug)]
pub(crate) struct LoraTerm {
    /// Name of `A` in graphs.
    pub a: String,
    /// Name of `B` in graphs.
    pub b: String,
    /// Factor of the product.
    pub scale: f32,
}

/// Starts the names of adapters' tensors in graphs, in front of the adapter's number and the name in its file.
const ADAPTER: &str = "lora.";

impl WeightTypes {
    /// The tensors of a file that this program can read; one of another format is left out here and
    /// reported when the architecture asks for it.
    pub fn of_file(file: &GgufFile) -> WeightTypes {
        let known = |t: &TensorInfo| {
            let format = t.format().ok()?;
            Some((t.name.clone(), TensorType::new(dtype(format), t.shape.as_slice())))
        };
        WeightTypes { types: file.tensors().filter_map(known).collect(), ..WeightTypes::default() }
    }

    /// Adds a tensor that does not come from the file.
    pub fn insert(&mut self, name: &str, ty: TensorType) {
        self.types.insert(name.into(), ty);
    }

    /// The type of a tensor, if the file has it.
    pub fn get(&self, name: &str) -> Option<&TensorType> {
        self.types.get(name)
    }

    /// All of them, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.types.iter().map(|(name, ty)| (name.as_str(), ty))
    }

    /// From here on, graphs read each weight as f32 of the shape that they require. Such a graph tells what a file should
    /// have.
    pub(crate) fn assume(&mut self) {
        self.assumed = true;
    }

    /// Adds an adapter, whose products count `scale` times. It must have been checked against the model.
    pub(crate) fn add_lora(&mut self, adapter: LoraAdapter, scale: f32) -> Result<()> {
        if !scale.is_finite() {
            return Err(LoraError::Scale(scale).into());
        }
        let number = self.adapters.len();
        for (weight, _) in adapter.ranks() {
            let mut add = |end: &str| -> Result<String> {
                let (info, _) = adapter.data(&format!("{weight}{end}"))?;
                let name = format!("{ADAPTER}{number}.{weight}{end}");
                let ty = TensorType::new(dtype(info.format()?), info.shape.as_slice());
                self.types.insert(name.clone(), ty);
                Ok(name)
            };
            let (a, b) = (add(A)?, add(B)?);
            let term = LoraTerm { a, b, scale: scale * adapter.scale(weight) };
            self.terms.entry(weight.to_owned()).or_default().push(term);
        }
        self.adapters.push(Arc::new(adapter));
        Ok(())
    }

    /// What adapters add to the products with a weight.
    pub(crate) fn terms(&self, weight: &str) -> &[LoraTerm] {
        self.terms.get(weight).map_or(&[], Vec::as_slice)
    }

    /// The tensor of an adapter that graphs call `name`, with its data.
    pub(crate) fn adapter_data(&self, name: &str) -> Option<Result<(&TensorInfo, &[u8])>> {
        let (number, tensor) = name.strip_prefix(ADAPTER)?.split_once('.')?;
        Some(self.adapters.get(number.parse::<usize>().ok()?)?.data(tensor))
    }

    /// Checks that the file has the tensor, in a readable format and of this shape.
    ///
    /// # Errors
    /// When it has not.
    pub fn require(&self, file: &GgufFile, name: &str, shape: &[usize]) -> Result<()> {
        let info = file.require(name)?;
        info.format()?;
        if info.shape == shape {
            return Ok(());
        }
        let (expected, got) = (shape.to_vec(), info.shape.clone());
        Err(Error::WeightShape { name: name.into(), expected, got })
    }
}

/// The element type of a weight of this format: plain numbers are scalars of the same name, all else is
/// blocks.
pub fn dtype(format: Format) -> DType {
    let scalar = DType::SCALARS.into_iter().find(|d| format.is_plain() && d.name() == format.name());
    scalar.unwrap_or(DType::Block(format))
}

/// The values of weight `name` as f32: dequantized or cast, never stored so. `shape` is that which the hyperparameters give.
pub(crate) fn weight(
    g: &mut Graph,
    types: &WeightTypes,
    name: &str,
    shape: &[usize],
) -> Result<Value, GraphError> {
    if types.assumed {
        return g.weight(name, DType::F32, shape);
    }
    let Some(ty) = types.get(name) else {
        let why = format!("the model has no tensor {name:?}");
        return Err(GraphError::Type { op: "weight", why, operands: String::new() });
    };
    let leaf = g.weight(name, ty.dtype, ty.shape.clone())?;
    match ty.dtype {
        DType::F32 => Ok(leaf),
        DType::Block(_) => g.add(Op::Dequantize(DType::F32), &[leaf]),
        DType::U8
        | DType::U32
        | DType::I16
        | DType::I32
        | DType::F8E4M3
        | DType::I64
        | DType::F16
        | DType::BF16
        | DType::F64 => g.add(Op::Cast(DType::F32), &[leaf]),
    }
}

/// The values of a small tensor of any plain float format.
pub(crate) fn floats(file: &GgufFile, info: &TensorInfo) -> Result<Vec<f32>, GgufError> {
    let mut values = vec![0.0; info.elements()];
    let format = info.format()?;
    tallow_quant::dequantize(format, file.tensor_data(info)?, &mut values)
        .map_err(|source| GgufError::Quant { tensor: info.name.clone(), source })?;
    Ok(values)
}
