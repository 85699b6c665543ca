//! Parsing a file's head: magic, version, metadata and tensor table.
//!
//! The layout is that of the GGUF specification (`docs/gguf.md` of ggml), little endian:
//! `"GGUF"`, version, number of tensors, number of metadata pairs, the pairs, the tensor table,
//! padding to `general.alignment`, tensor data. Offsets in the table count from the start of the data.

use indexmap::IndexMap;
use tallow_quant::Format;

use crate::cursor::{Cursor, What};
use crate::{Array, GgufError, Metadata, TensorInfo, Value, optional};

/// The first four bytes of a file.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// The alignment of tensor data where the file does not say.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// Metadata key of the alignment.
pub const ALIGNMENT_KEY: &str = "general.alignment";

/// The most dimensions that a tensor may have (`GGML_MAX_DIMS`).
pub const MAX_DIMS: u32 = 4;

/// All of a file but the tensors' data.
pub struct Header {
    pub version: u32,
    pub metadata: Metadata,
    pub tensors: IndexMap<String, TensorInfo>,
    pub alignment: u64,
}

/// Parses the head of `bytes`, a whole file; every tensor's data range is checked to lie in it, and to share no byte
/// with another's.
pub fn parse(bytes: &[u8]) -> Result<Header, GgufError> {
    let mut cursor = Cursor::new(bytes);
    let magic: [u8; 4] = cursor.array(&|| "magic number".to_owned())?;
    if magic != MAGIC {
        return Err(GgufError::NotGguf(magic.to_vec()));
    }
    let version = cursor.u32(&|| "version".to_owned())?;
    match version {
        2 | 3 => {}
        // A sane version in the other byte order has its low half zero.
        swapped if swapped != 0 && swapped & 0xffff == 0 => {
            return Err(GgufError::BigEndian(swapped.swap_bytes()));
        }
        other => return Err(GgufError::Version(other)),
    }
    let tensor_count = cursor.u64(&|| "number of tensors".to_owned())?;
    let pair_count = cursor.u64(&|| "number of metadata keys".to_owned())?;
    let metadata = read_metadata(&mut cursor, pair_count)?;
    let alignment = alignment(&metadata)?;
    let mut tensors = read_tensor_table(&mut cursor, tensor_count)?;

    let data = (cursor.position() as u64).checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
    for tensor in tensors.values_mut() {
        locate(tensor, data, alignment, bytes.len() as u64)?;
    }
    no_overlap(&tensors)?;
    Ok(Header { version, metadata, tensors, alignment })
}

/// The alignment that the metadata asks for.
pub fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    let alignment = optional(metadata.get_u32(ALIGNMENT_KEY))?.map_or(DEFAULT_ALIGNMENT, u64::from);
    if !alignment.is_power_of_two() {
        return Err(malformed(ALIGNMENT_KEY.to_owned(), format!("{alignment} is not a power of two")));
    }
    Ok(alignment)
}

fn malformed(what: String, problem: impl Into<String>) -> GgufError {
    GgufError::Malformed { what, problem: problem.into() }
}

fn read_metadata(cursor: &mut Cursor, count: u64) -> Result<Metadata, GgufError> {
    // A pair takes at least a key's length, a type and one byte.
    cursor.expect_items(count, 8 + 4 + 1, &|| format!("{count} metadata keys"))?;
    let mut metadata = Metadata::new();
    for index in 0..count {
        let key = cursor.string(&|| format!("name of metadata key {index}"))?;
        let what: What = &|| format!("metadata key {key}");
        if key.is_empty() {
            return Err(malformed(format!("metadata key {index}"), "has no name"));
        }
        let kind = cursor.u32(what)?;
        let value = read_value(cursor, kind, what)?;
        if metadata.contains(&key) {
            return Err(malformed(what(), "appears twice"));
        }
        metadata.insert(key, value);
    }
    Ok(metadata)
}

/// One value; `kind` is its number in `gguf_metadata_value_type`.
fn read_value(cursor: &mut Cursor, kind: u32, what: What) -> Result<Value, GgufError> {
    Ok(match kind {
        0 => Value::U8(u8::from_le_bytes(cursor.array(what)?)),
        1 => Value::I8(i8::from_le_bytes(cursor.array(what)?)),
        2 => Value::U16(u16::from_le_bytes(cursor.array(what)?)),
        3 => Value::I16(i16::from_le_bytes(cursor.array(what)?)),
        4 => Value::U32(u32::from_le_bytes(cursor.array(what)?)),
        5 => Value::I32(i32::from_le_bytes(cursor.array(what)?)),
        6 => Value::F32(f32::from_le_bytes(cursor.array(what)?)),
        7 => Value::Bool(cursor.bool(what)?),
        8 => Value::String(cursor.string(what)?),
        9 => {
            let kind = cursor.u32(what)?;
            let count = cursor.u64(what)?;
            Value::Array(read_array(cursor, kind, count, what)?)
        }
        10 => Value::U64(u64::from_le_bytes(cursor.array(what)?)),
        11 => Value::I64(i64::from_le_bytes(cursor.array(what)?)),
        12 => Value::F64(f64::from_le_bytes(cursor.array(what)?)),
        other => return Err(malformed(what(), format!("unknown value type {other}"))),
    })
}

fn read_array(cursor: &mut Cursor, kind: u32, count: u64, what: What) -> Result<Array, GgufError> {
    Ok(match kind {
        0 => Array::U8(numbers(cursor, count, what, u8::from_le_bytes)?),
        1 => Array::I8(numbers(cursor, count, what, i8::from_le_bytes)?),
        2 => Array::U16(numbers(cursor, count, what, u16::from_le_bytes)?),
        3 => Array::I16(numbers(cursor, count, what, i16::from_le_bytes)?),
        4 => Array::U32(numbers(cursor, count, what, u32::from_le_bytes)?),
        5 => Array::I32(numbers(cursor, count, what, i32::from_le_bytes)?),
        6 => Array::F32(numbers(cursor, count, what, f32::from_le_bytes)?),
        7 => {
            let count = cursor.expect_items(count, 1, what)?;
            Array::Bool((0..count).map(|_| cursor.bool(what)).collect::<Result<_, _>>()?)
        }
        8 => {
            let count = cursor.expect_items(count, 8, what)?;
            Array::String((0..count).map(|_| cursor.string(what)).collect::<Result<_, _>>()?)
        }
        9 => return Err(malformed(what(), "arrays of arrays are not supported")),
        10 => Array::U64(numbers(cursor, count, what, u64::from_le_bytes)?),
        11 => Array::I64(numbers(cursor, count, what, i64::from_le_bytes)?),
        12 => Array::F64(numbers(cursor, count, what, f64::from_le_bytes)?),
        other => return Err(malformed(what(), format!("unknown array element type {other}"))),
    })
}

fn numbers<T, const N: usize>(
    cursor: &mut Cursor,
    count: u64,
    what: What,
    convert: fn([u8; N]) -> T,
) -> Result<Vec<T>, GgufError> {
    let count = cursor.expect_items(count, N as u64, what)?;
    (0..count).map(|_| Ok(convert(cursor.array(what)?))).collect()
}

fn read_tensor_table(cursor: &mut Cursor, count: u64) -> Result<IndexMap<String, TensorInfo>, GgufError> {
    // An entry takes at least a name's length, the number of dimensions, a type and an offset.
    cursor.expect_items(count, 8 + 4 + 4 + 8, &|| format!("table of {count} tensors"))?;
    let mut tensors = IndexMap::new();
    for index in 0..count {
        let name = cursor.string(&|| format!("name of tensor {index}"))?;
        let tensor = read_tensor_info(cursor, name.clone())?;
        if tensors.insert(name.clone(), tensor).is_some() {
            return Err(malformed(format!("tensor {name}"), "appears twice"));
        }
    }
    Ok(tensors)
}

/// One entry of the table; its offset still counts from the start of the data.
fn read_tensor_info(cursor: &mut Cursor, name: String) -> Result<TensorInfo, GgufError> {
    let what: What = &|| format!("tensor {name}");
    let rank = cursor.u32(what)?;
    if rank > MAX_DIMS {
        return Err(malformed(what(), format!("has {rank} dimensions, more than {MAX_DIMS}")));
    }
    let mut shape = Vec::new();
    for _ in 0..rank {
        let extent = cursor.u64(what)?;
        shape.push(usize::try_from(extent).map_err(|_| {
            malformed(what(), format!("extent {extent} is more than this machine can address"))
        })?);
    }
    // The file lists the innermost dimension first.
    shape.reverse();
    let elements =
        shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent)).ok_or_else(|| {
            malformed(what(), format!("shape {shape:?} has more elements than this machine can address"))
        })?;
    let ggml_id = cursor.u32(what)?;
    let offset = cursor.u64(what)?;
    let bytes = match Format::from_ggml_id(ggml_id) {
        Some(format) => {
            let quant = |source| GgufError::Quant { tensor: name.clone(), source };
            // Blocks run along rows, so each row must be whole blocks, not only the sum.
            format.row_bytes(shape.last().copied().unwrap_or(1)).map_err(quant)?;
            format.row_bytes(elements).map_err(quant)?
        }
        None => 0,
    };
    Ok(TensorInfo { name, ggml_id, shape, shard: 0, offset, bytes })
}

/// Makes the tensor's offset one in the file, and checks that its data lies there.
fn locate(tensor: &mut TensorInfo, data: u64, alignment: u64, file: u64) -> Result<(), GgufError> {
    let what = || format!("data of tensor {}", tensor.name);
    if !tensor.offset.is_multiple_of(alignment) {
        return Err(malformed(what(), format!("offset {} is not a multiple of {alignment}", tensor.offset)));
    }
    let start = data.saturating_add(tensor.offset);
    let end = start.saturating_add(tensor.bytes as u64);
    // An empty range may stand at the end of the file, even before padding that nobody wrote.
    if end > file && tensor.bytes > 0 {
        return Err(GgufError::Truncated {
            what: what(),
            offset: usize::try_from(start).unwrap_or(usize::MAX),
            needed: tensor.bytes as u64,
            left: usize::try_from(file.saturating_sub(start)).unwrap_or(usize::MAX),
        });
    }
    tensor.offset = start;
    Ok(())
}

/// Checks that no byte of the file is data of two tensors; `tensors` have their places.
fn no_overlap(tensors: &IndexMap<String, TensorInfo>) -> Result<(), GgufError> {
    let mut placed: Vec<&TensorInfo> = tensors.values().filter(|t| t.bytes > 0).collect();
    placed.sort_by_key(|t| t.offset);
    for (before, after) in placed.iter().zip(placed.iter().skip(1)) {
        if after.offset - before.offset < before.bytes as u64 {
            let problem = format!("overlaps that of tensor {}", before.name);
            return Err(malformed(format!("data of tensor {}", after.name), problem));
        }
    }
    Ok(())
}
