//! Writing model files: the head at once, then the tensors' data one after the other.
//!
//! The data need not be in memory all together, so that a large model can be quantized tensor by
//! tensor.

use std::io::Write;

use tallow_quant::Format;

use crate::header::{self, MAGIC, MAX_DIMS};
use crate::{Array, GgufError, Metadata, Value};

/// A tensor that will be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Format of the data.
    pub format: Format,
}

/// A file being written, version 3.
///
/// ```
/// use tallow_gguf::{Format, GgufFile, GgufWriter, Metadata, TensorSpec, Value};
/// let mut metadata = Metadata::new();
/// metadata.insert("general.architecture", Value::String("none".into()));
/// let specs = vec![TensorSpec { name: "w".into(), shape: vec![2, 2], format: Format::F16 }];
/// let mut bytes = Vec::new();
/// let mut writer = GgufWriter::create(&mut bytes, &metadata, specs)?;
/// writer.tensor("w", &[0; 8])?;
/// writer.finish()?;
/// assert_eq!(GgufFile::parse(bytes)?.require("w")?.shape, [2, 2]);
/// # Ok::<(), tallow_gguf::GgufError>(())
/// ```
pub struct GgufWriter<W: Write> {
    out: W,
    alignment: u64,
    /// Tensors still to come, the next one last.
    waiting: Vec<(String, usize)>,
}

impl<W: Write> GgufWriter<W> {
    /// Writes the head. The alignment is `general.alignment` of the metadata, else 32.
    ///
    /// # Errors
    /// When a shape does not fit its format, a name appears twice, or writing fails.
    pub fn create(
        mut out: W,
        metadata: &Metadata,
        tensors: Vec<TensorSpec>,
    ) -> Result<GgufWriter<W>, GgufError> {
        let alignment = header::alignment(metadata)?;
        let mut head = Vec::new();
        head.extend(MAGIC);
        head.extend(3u32.to_le_bytes());
        head.extend((tensors.len() as u64).to_le_bytes());
        head.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata.iter() {
            put_string(&mut head, key);
            put_value(&mut head, value);
        }
        let mut waiting: Vec<(String, usize)> = Vec::new();
        let mut names = std::collections::HashSet::new();
        let mut offset = 0u64;
        for tensor in tensors {
            let bytes = data_bytes(&tensor)?;
            if !names.insert(tensor.name.clone()) {
                return Err(misuse(&tensor.name, "appears twice"));
            }
            put_string(&mut head, &tensor.name);
            head.extend((tensor.shape.len() as u32).to_le_bytes());
            for extent in tensor.shape.iter().rev() {
                head.extend((*extent as u64).to_le_bytes());
            }
            head.extend(tensor.format.spec().ggml_id.to_le_bytes());
            head.extend(offset.to_le_bytes());
            offset = offset
                .checked_add(bytes as u64)
                .and_then(|end| end.checked_next_multiple_of(alignment))
                .ok_or_else(|| misuse(&tensor.name, "ends beyond what a file can hold"))?;
            waiting.push((tensor.name, bytes));
        }
        waiting.reverse();
        out.write_all(&head)?;
        pad(&mut out, head.len(), alignment)?;
        Ok(GgufWriter { out, alignment, waiting })
    }

    /// Writes the data of the next tensor, which must be `name`.
    ///
    /// # Errors
    /// When it is not the next one of the list given to `create`, has another size, or writing fails.
    pub fn tensor(&mut self, name: &str, data: &[u8]) -> Result<(), GgufError> {
        match self.waiting.last() {
            None => Err(misuse(name, "all tensors have been written")),
            Some((next, _)) if next != name => Err(misuse(name, format!("{next} comes first"))),
            Some((_, bytes)) if *bytes != data.len() => {
                Err(misuse(name, format!("{} bytes of data, but the shape takes {bytes}", data.len())))
            }
            Some(_) => {
                self.out.write_all(data)?;
                self.waiting.pop();
                Ok(pad(&mut self.out, data.len(), self.alignment)?)
            }
        }
    }

    /// Ends the file and gives the output back.
    ///
    /// # Errors
    /// When tensors are missing, or writing fails.
    pub fn finish(mut self) -> Result<W, GgufError> {
        if let Some((name, _)) = self.waiting.last() {
            return Err(misuse(name, "its data is missing"));
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

fn misuse(tensor: &str, problem: impl Into<String>) -> GgufError {
    GgufError::Writer { tensor: tensor.to_owned(), problem: problem.into() }
}

/// Bytes of a tensor's data.
fn data_bytes(tensor: &TensorSpec) -> Result<usize, GgufError> {
    if tensor.shape.len() > MAX_DIMS as usize {
        return Err(misuse(
            &tensor.name,
            format!("has {} dimensions, more than {MAX_DIMS}", tensor.shape.len()),
        ));
    }
    let quant = |source| GgufError::Quant { tensor: tensor.name.clone(), source };
    tensor.format.row_bytes(tensor.shape.last().copied().unwrap_or(1)).map_err(quant)?;
    let elements = tensor
        .shape
        .iter()
        .try_fold(1usize, |product, &extent| product.checked_mul(extent))
        .ok_or_else(|| misuse(&tensor.name, "has more elements than this machine can address"))?;
    tensor.format.row_bytes(elements).map_err(quant)
}

/// Zeros from `written` bytes to the next multiple of `alignment`, a power of two.
fn pad(out: &mut impl Write, written: usize, alignment: u64) -> std::io::Result<()> {
    let padding = (written as u64).wrapping_neg() & (alignment - 1);
    std::io::copy(&mut std::io::Read::take(std::io::repeat(0), padding), out).map(drop)
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let mut put = |kind: u32, bytes: &[u8]| {
        out.extend(kind.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U8(v) => put(0, &v.to_le_bytes()),
        Value::I8(v) => put(1, &v.to_le_bytes()),
        Value::U16(v) => put(2, &v.to_le_bytes()),
        Value::I16(v) => put(3, &v.to_le_bytes()),
        Value::U32(v) => put(4, &v.to_le_bytes()),
        Value::I32(v) => put(5, &v.to_le_bytes()),
        Value::F32(v) => put(6, &v.to_le_bytes()),
        Value::Bool(v) => put(7, &[u8::from(*v)]),
        Value::String(v) => {
            put(8, &[]);
            put_string(out, v);
        }
        Value::Array(v) => {
            put(9, &[]);
            put_array(out, v);
        }
        Value::U64(v) => put(10, &v.to_le_bytes()),
        Value::I64(v) => put(11, &v.to_le_bytes()),
        Value::F64(v) => put(12, &v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    let kind: u32 = match array {
        Array::U8(_) => 0,
        Array::I8(_) => 1,
        Array::U16(_) => 2,
        Array::I16(_) => 3,
        Array::U32(_) => 4,
        Array::I32(_) => 5,
        Array::F32(_) => 6,
        Array::Bool(_) => 7,
        Array::String(_) => 8,
        Array::U64(_) => 10,
        Array::I64(_) => 11,
        Array::F64(_) => 12,
    };
    out.extend(kind.to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend(v),
        Array::I8(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::U16(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::I16(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::U32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::I32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::F32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::Bool(v) => out.extend(v.iter().map(|&x| u8::from(x))),
        Array::String(v) => v.iter().for_each(|text| put_string(out, text)),
        Array::U64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::I64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::F64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
    }
}
