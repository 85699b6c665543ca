//! The weights of a model: what the file has, as types of the IR, and how a graph reads them.

use indexmap::IndexMap;
use tallow_gguf::{GgufFile, TensorInfo};
use tallow_ir::{DType, Format, Graph, GraphError, Op, TensorType, Value};

use crate::error::{Error, Result};

/// Types of a model's tensors by name.
#[derive(Clone, Debug, Default)]
pub struct WeightTypes(IndexMap<String, TensorType>);

impl WeightTypes {
    /// The tensors of a file that this program can read; one of another format is left out here and
    /// reported when the architecture asks for it.
    pub fn of_file(file: &GgufFile) -> WeightTypes {
        let known = |t: &TensorInfo| {
            let format = t.format().ok()?;
            Some((t.name.clone(), TensorType::new(dtype(format), t.shape.as_slice())))
        };
        WeightTypes(file.tensors().filter_map(known).collect())
    }

    /// Adds a tensor that does not come from the file.
    pub fn insert(&mut self, name: &str, ty: TensorType) {
        self.0.insert(name.into(), ty);
    }

    /// The type of a tensor, if the file has it.
    pub fn get(&self, name: &str) -> Option<&TensorType> {
        self.0.get(name)
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

/// The values of weight `name` as f32: dequantized or cast, never stored so.
pub fn weight(g: &mut Graph, types: &WeightTypes, name: &str) -> Result<Value, GraphError> {
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
pub(crate) fn floats(file: &GgufFile, info: &TensorInfo) -> Result<Vec<f32>> {
    let mut values = vec![0.0; info.elements()];
    let format = info.format()?;
    tallow_quant::dequantize(format, file.tensor_data(info)?, &mut values)
        .map_err(|source| tallow_gguf::GgufError::Quant { tensor: info.name.clone(), source })?;
    Ok(values)
}
