//! Reading and writing NumPy's files: `.npy`, one array, and `.npz`, a zip archive of them.
//!
//! An `.npy` file is a magic string, a version, the length of a header, the header, and the elements. The
//! header is a Python dictionary of three entries: the element type, whether columns come first, the shape.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use tallow_ir::{DType, Shape};
use zip::write::SimpleFileOptions;
use zip::{ZipArchive, ZipWriter};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Where the elements start is a multiple of this.
const ALIGNMENT: usize = 64;
/// A header names a type and a shape; a longer one is none.
const MAX_HEADER: usize = 1 << 16;
/// What an array's file in an archive ends in.
const SUFFIX: &str = ".npy";

fn wrong(why: impl std::fmt::Display) -> Error {
    Error::Npy(why.to_string())
}

/// What a header says.
struct Header {
    dtype: DType,
    columns_first: bool,
    shape: Vec<usize>,
}

impl Header {
    fn read(input: &mut impl Read) -> Result<Header> {
        let mut start = [0u8; 8];
        input.read_exact(&mut start).map_err(wrong)?;
        if start[..6] != *MAGIC {
            return Err(wrong("the magic string is missing"));
        }
        let mut length = [0u8; 4];
        // The first version has a shorter length.
        let bytes = if start[6] == 1 { 2 } else { 4 };
        input.read_exact(&mut length[..bytes]).map_err(wrong)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_HEADER {
            return Err(wrong(format!("a header of {length} bytes")));
        }
        let mut text = vec![0u8; length];
        input.read_exact(&mut text).map_err(wrong)?;
        Header::parse(std::str::from_utf8(&text).map_err(wrong)?)
    }

    /// `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`
    fn parse(text: &str) -> Result<Header> {
        let entry = |key: &str| {
            let (_, rest) = text.split_once(key).ok_or_else(|| wrong(format!("no {key} in {text:?}")))?;
            Ok::<_, Error>(rest.trim_start_matches([' ', ':']))
        };
        let quoted = entry("'descr'")?.split('\'').nth(1);
        let descr = quoted.ok_or_else(|| wrong(format!("no plain element type in {text:?}")))?;
        let order = entry("'fortran_order'")?;
        let columns_first = order.starts_with("True");
        if !columns_first && !order.starts_with("False") {
            return Err(wrong(format!("neither order in {text:?}")));
        }
        let shape = entry("'shape'")?;
        let inner = shape.strip_prefix('(').and_then(|rest| rest.split_once(')')).map(|(inner, _)| inner);
        let inner = inner.ok_or_else(|| wrong(format!("no shape in {text:?}")))?;
        let extents = inner.split(',').map(str::trim).filter(|extent| !extent.is_empty());
        let shape = extents.map(|e| e.parse().map_err(wrong)).collect::<Result<_>>()?;
        Ok(Header { dtype: dtype_of(descr)?, columns_first, shape })
    }

    fn text(dtype: DType, shape: &[usize]) -> Result<String> {
        let descr = match dtype {
            DType::U8 => "|u1",
            DType::U32 => "<u4",
            DType::I16 => "<i2",
            DType::I32 => "<i4",
            DType::I64 => "<i8",
            DType::F16 => "<f2",
            DType::F32 => "<f4",
            DType::F64 => "<f8",
            DType::F8E4M3 | DType::BF16 | DType::Block(_) => {
                return Err(wrong(format!("elements of type {dtype} are not supported")));
            }
        };
        // A tuple of one element needs its comma, others may have it.
        let extents: String = shape.iter().map(|extent| format!("{extent},")).collect();
        Ok(format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({extents}), }}"))
    }
}

fn dtype_of(descr: &str) -> Result<DType> {
    let unsupported = || wrong(format!("elements of type {descr:?} are not supported"));
    let (order, kind) = match descr.split_at_checked(1) {
        Some((order @ ("<" | ">" | "=" | "|"), kind)) => (order, kind),
        _ => ("=", descr),
    };
    let dtype = match kind {
        "u1" | "B" | "b1" | "?" => DType::U8,
        "u4" | "I" => DType::U32,
        "i2" | "h" => DType::I16,
        "i4" | "i" => DType::I32,
        "i8" | "q" => DType::I64,
        "f2" | "e" => DType::F16,
        "f4" | "f" => DType::F32,
        "f8" | "d" => DType::F64,
        _ => return Err(unsupported()),
    };
    if order == ">" && dtype.size_in_bytes() > 1 { Err(unsupported()) } else { Ok(dtype) }
}

fn read_array(input: &mut impl Read) -> Result<Tensor> {
    let Header { dtype, columns_first, mut shape } = Header::read(input)?;
    let count = shape.iter().try_fold(dtype.size_in_bytes(), |n, extent| n.checked_mul(*extent));
    let count = count.ok_or_else(|| wrong(format!("shape {shape:?} is too large")))? as u64;
    // Read as it comes: a header that claims too much must not cost memory.
    let mut bytes = Vec::new();
    input.take(count).read_to_end(&mut bytes).map_err(wrong)?;
    if !columns_first {
        return Tensor::from_raw_bytes(&bytes, dtype, shape, &Device::Cpu);
    }
    shape.reverse();
    let reversed: Vec<usize> = (0..shape.len()).rev().collect();
    Tensor::from_raw_bytes(&bytes, dtype, shape, &Device::Cpu)?.permute(reversed)
}

fn write_array(tensor: &Tensor, output: &mut impl Write) -> Result<()> {
    let mut header = Header::text(tensor.dtype(), tensor.const_dims()?)?;
    let bytes = tensor.bytes("write_npy")?;
    // The header ends in a line break, where the elements' alignment wants it to.
    let before = MAGIC.len() + 4;
    let padding = (before + header.len() + 1).next_multiple_of(ALIGNMENT) - (before + header.len() + 1);
    header.extend(std::iter::repeat_n(' ', padding));
    header.push('\n');
    let length = u16::try_from(header.len()).map_err(wrong)?;
    for part in [&MAGIC[..], &[1, 0], &length.to_le_bytes(), header.as_bytes(), &bytes] {
        output.write_all(part).map_err(wrong)?;
    }
    Ok(())
}

fn open(path: &Path) -> Result<std::io::BufReader<File>> {
    File::open(path).map(std::io::BufReader::new).map_err(|e| Error::io(path, &e))
}

fn create(path: &Path) -> Result<std::io::BufWriter<File>> {
    File::create(path).map(std::io::BufWriter::new).map_err(|e| Error::io(path, &e))
}

impl Tensor {
    /// The array of an `.npy` file, on the CPU.
    ///
    /// # Errors
    /// When the file cannot be read or is not of this format, or holds elements of a type that tensors have
    /// not.
    pub fn read_npy(path: impl AsRef<Path>) -> Result<Tensor> {
        read_array(&mut open(path.as_ref())?)
    }

    /// Writes an `.npy` file, computed if need be.
    ///
    /// # Errors
    /// When the elements are bf16, computing fails, or the file cannot be written.
    pub fn write_npy(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut file = create(path.as_ref())?;
        write_array(self, &mut file)?;
        file.flush().map_err(|e| Error::io(path.as_ref(), &e))
    }

    /// All arrays of an `.npz` file with their names, on the CPU.
    ///
    /// # Errors
    /// As [`Tensor::read_npy`].
    pub fn read_npz(path: impl AsRef<Path>) -> Result<Vec<(String, Tensor)>> {
        let archive = NpzTensors::new(path)?;
        let mut file = ZipArchive::new(open(&archive.path)?).map_err(wrong)?;
        archive.order.iter().map(|name| Ok((name.clone(), archive.array(&mut file, name)?))).collect()
    }

    /// The arrays of these names of an `.npz` file, on the CPU.
    ///
    /// # Errors
    /// As [`Tensor::read_npy`], and when there is none of a name.
    pub fn read_npz_by_name(path: impl AsRef<Path>, names: &[&str]) -> Result<Vec<Tensor>> {
        let archive = NpzTensors::new(path)?;
        let find =
            |name: &&str| archive.get(name)?.ok_or_else(|| Error::CannotFindTensor { path: (*name).into() });
        names.iter().map(find).collect()
    }

    /// Writes an `.npz` file, all computed in one plan if need be.
    ///
    /// # Errors
    /// When the elements are bf16, two names are equal, computing fails, or the file cannot be written.
    pub fn write_npz<S: AsRef<str>, T: AsRef<Tensor>>(
        tensors: &[(S, T)],
        path: impl AsRef<Path>,
    ) -> Result<()> {
        let values: Vec<&Tensor> = tensors.iter().map(|(_, tensor)| tensor.as_ref()).collect();
        crate::eval::eval_for("write_npz", &values)?;
        let mut archive = ZipWriter::new(create(path.as_ref())?);
        for (name, tensor) in tensors {
            let file = format!("{}{SUFFIX}", name.as_ref());
            // Stored as they are: numbers hardly compress, and NumPy's `savez` does the same.
            let options = SimpleFileOptions::default()
                .compression_method(zip::CompressionMethod::Stored)
                .large_file(true);
            archive.start_file(file, options).map_err(wrong)?;
            write_array(tensor.as_ref(), &mut archive)?;
        }
        archive.finish().map_err(wrong)?.flush().map_err(|e| Error::io(path.as_ref(), &e))
    }
}

/// An `.npz` file, from which arrays are read one by one.
#[derive(Debug)]
pub struct NpzTensors {
    path: PathBuf,
    order: Vec<String>,
    files: HashMap<String, String>,
}

impl NpzTensors {
    /// Reads the names of the arrays.
    ///
    /// # Errors
    /// When the file cannot be read or is no zip archive.
    pub fn new(path: impl AsRef<Path>) -> Result<NpzTensors> {
        let path = path.as_ref().to_path_buf();
        let archive = ZipArchive::new(open(&path)?).map_err(wrong)?;
        let mut order = Vec::new();
        let mut files = HashMap::new();
        for file in archive.file_names() {
            let file = file.map_err(wrong)?.into_owned();
            let name = file.strip_suffix(SUFFIX).unwrap_or(&file).to_string();
            order.push(name.clone());
            files.insert(name, file);
        }
        Ok(NpzTensors { path, order, files })
    }

    /// The names of the arrays.
    pub fn names(&self) -> Vec<&String> {
        self.order.iter().collect()
    }

    /// Shape and element type of an array, without its elements.
    ///
    /// # Errors
    /// When there is none of this name, or it is no array.
    pub fn get_shape_and_dtype(&self, name: &str) -> Result<(Shape, DType)> {
        let file = self.files.get(name).ok_or_else(|| Error::CannotFindTensor { path: name.into() })?;
        let mut archive = ZipArchive::new(open(&self.path)?).map_err(wrong)?;
        let header = Header::read(&mut archive.by_name(file).map_err(wrong)?)?;
        Ok((Shape::from(header.shape), header.dtype))
    }

    /// The array of this name, on the CPU; `None` where there is none.
    ///
    /// # Errors
    /// When the file cannot be read or it is no array.
    pub fn get(&self, name: &str) -> Result<Option<Tensor>> {
        if !self.files.contains_key(name) {
            return Ok(None);
        }
        self.array(&mut ZipArchive::new(open(&self.path)?).map_err(wrong)?, name).map(Some)
    }

    fn array<R: Read + Seek>(&self, archive: &mut ZipArchive<R>, name: &str) -> Result<Tensor> {
        read_array(&mut archive.by_name(&self.files[name]).map_err(wrong)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_are_none_are_errors() {
        for text in [
            "",
            "{'descr': '<f4', 'fortran_order': False}",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }",
            "{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }",
            "{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }",
            "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2 }",
        ] {
            assert!(Header::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn columns_may_come_first() {
        let mut file = Vec::new();
        let x = Tensor::new([[1u32, 2, 3], [4, 5, 6]], &Device::Cpu).unwrap();
        write_array(&x, &mut file).unwrap();
        assert_eq!(file.len() % ALIGNMENT, 24);
        let header = String::from_utf8_lossy(&file[10..]).find("False").unwrap() + 10;
        file.splice(header..header + 5, *b"True ");
        let turned = read_array(&mut file.as_slice()).unwrap();
        assert_eq!(turned.to_vec2::<u32>().unwrap(), [[1, 3, 5], [2, 4, 6]]);
        assert!(read_array(&mut &file[..file.len() - 1]).is_err());
    }
}
