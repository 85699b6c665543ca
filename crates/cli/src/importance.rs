//! Importance matrices: for each column of a weight, the mean square of what it was multiplied with.
//!
//! Files are those of llama.cpp: GGUF with `general.type = "imatrix"`, where `<weight>.in_sum2` holds sums of squares, a
//! row for each expert, and `<weight>.counts` over how many tokens; or the older binary form with no magic number: the
//! number of entries, and for each the length of the name, the name, the number of calls, the number of values and the
//! values, summed over calls (32-bit little-endian integers and floats).

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use tallow_gguf::{Array, Format, GgufError, GgufFile, GgufWriter, Metadata, TensorSpec, Value};

/// What the files call themselves in `general.type`.
const TYPE: &str = "imatrix";
/// Key of the names of the texts.
const DATASETS: &str = "imatrix.datasets";
/// Key of the number of chunks of text.
const CHUNK_COUNT: &str = "imatrix.chunk_count";
/// Key of the tokens in a chunk.
const CHUNK_SIZE: &str = "imatrix.chunk_size";
/// Ends of the tensors' names.
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// The importance of the columns of many weights.
#[derive(Clone, Debug, Default)]
pub struct Importance {
    entries: HashMap<String, Entry>,
    /// Where the text came from, as the file says.
    pub datasets: Vec<String>,
    /// Chunks of text, if the file says.
    pub chunks: Option<u32>,
    /// Tokens in a chunk, if the file says.
    pub chunk_size: Option<u32>,
}

/// One weight's.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Sums of squares, a row for each matrix of the weight.
    pub sums: Vec<f32>,
    /// Tokens that went into each row.
    pub counts: Vec<f32>,
}

/// Why a file is no importance matrix.
#[derive(Debug, thiserror::Error)]
pub enum ImportanceError {
    /// The file could not be read, or is damaged.
    #[error("{}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: GgufError,
    },
    /// A GGUF file of another kind.
    #[error("{}: a GGUF file, but no importance matrix (general.type is not \"imatrix\")", .0.display())]
    Kind(PathBuf),
    /// Parts that do not belong together, or end too early.
    #[error("{}: {what}: {problem}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The entry or field.
        what: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl Importance {
    /// Reads a file of either form.
    ///
    /// # Errors
    /// When the file cannot be read, or is not an importance matrix.
    pub fn open(path: &Path) -> Result<Importance, ImportanceError> {
        let read = |source| ImportanceError::Read { path: path.into(), source };
        match GgufFile::open(path) {
            Ok(file) => Importance::from_gguf(path, &file),
            Err(GgufError::NotGguf(_)) => {
                let bytes = std::fs::read(path)
                    .map_err(|source| read(GgufError::Open { path: path.into(), source }))?;
                Importance::from_binary(path, &bytes)
            }
            Err(error) => Err(read(error)),
        }
    }

    fn from_gguf(path: &Path, file: &GgufFile) -> Result<Importance, ImportanceError> {
        let metadata = file.metadata();
        if metadata.get_str("general.type").ok() != Some(TYPE) {
            return Err(ImportanceError::Kind(path.into()));
        }
        let mut made = Importance {
            entries: HashMap::new(),
            datasets: metadata.get_strs(DATASETS).map(<[String]>::to_vec).unwrap_or_default(),
            chunks: metadata.get_u32(CHUNK_COUNT).ok(),
            chunk_size: metadata.get_u32(CHUNK_SIZE).ok(),
        };
        for tensor in file.tensors() {
            let Some(name) = tensor.name.strip_suffix(SUMS) else { continue };
            let floats = |name: &str| {
                let read = |source| ImportanceError::Read { path: path.into(), source };
                let info = file.require(name).map_err(read)?;
                let mut values = vec![0.0; info.elements()];
                let format = info.format().map_err(read)?;
                let bytes = file.tensor_data(info).map_err(read)?;
                tallow_quant::dequantize(format, bytes, &mut values)
                    .map_err(|source| read(GgufError::Quant { tensor: name.into(), source }))?;
                Ok(values)
            };
            let entry = Entry { sums: floats(&tensor.name)?, counts: floats(&format!("{name}{COUNTS}"))? };
            made.read(path, name, entry)?;
        }
        made.not_empty(path)
    }

    fn from_binary(path: &Path, bytes: &[u8]) -> Result<Importance, ImportanceError> {
        let mut rest = bytes;
        let mut take = |count: usize, what: &dyn Fn() -> String| {
            let (head, tail) = rest.split_at_checked(count).ok_or_else(|| ImportanceError::Malformed {
                path: path.into(),
                what: what(),
                problem: "neither GGUF nor an importance matrix that ends here".into(),
            })?;
            rest = tail;
            Ok::<_, ImportanceError>(head)
        };
        // A negative number is a size that no file has.
        let number = |bytes: &[u8]| bytes.try_into().map_or(u32::MAX, u32::from_le_bytes) as usize;
        let mut made = Importance::default();
        let entries = number(take(4, &|| "number of entries".into())?);
        for index in 0..entries {
            let what = || format!("entry {index}");
            let length = number(take(4, &what)?);
            let name = String::from_utf8_lossy(take(length, &what)?).into_owned();
            let calls = number(take(4, &what)?);
            let values = number(take(4, &what)?);
            let values = take(values.saturating_mul(4), &what)?;
            let sums = values.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            made.read(path, &name, Entry { sums, counts: vec![calls as f32] })?;
        }
        // Newer ones say how much text it was, and which.
        if let Ok(chunks) = take(4, &String::new) {
            made.chunks = u32::try_from(number(chunks)).ok();
            let length = take(4, &String::new).map(number).unwrap_or(0);
            if let Ok(name) = take(length, &String::new) {
                made.datasets.push(String::from_utf8_lossy(name).into_owned());
            }
        }
        made.not_empty(path)
    }

    /// Sets a weight's importance; says whether it is one: finite, not negative, and of whole rows.
    pub fn insert(&mut self, name: &str, entry: Entry) -> bool {
        let finite = |values: &[f32]| values.iter().all(|v| v.is_finite() && *v >= 0.0);
        let whole = !entry.counts.is_empty() && entry.sums.len().is_multiple_of(entry.counts.len());
        let good = whole && finite(&entry.sums) && finite(&entry.counts);
        if good {
            self.entries.insert(name.into(), entry);
        }
        good
    }

    fn read(&mut self, path: &Path, name: &str, entry: Entry) -> Result<(), ImportanceError> {
        if self.insert(name, entry) {
            return Ok(());
        }
        let what = format!("importance of {name:?}");
        let problem = "has a value that is negative or not finite, or sums and counts do not fit".into();
        Err(ImportanceError::Malformed { path: path.into(), what, problem })
    }

    fn not_empty(self, path: &Path) -> Result<Importance, ImportanceError> {
        if self.entries.is_empty() {
            let (what, problem) = ("importance matrix".into(), "has no entries".into());
            return Err(ImportanceError::Malformed { path: path.into(), what, problem });
        }
        Ok(self)
    }

    /// Number of weights.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The mean squares for a weight of `matrices` matrices with rows of `columns` elements, one row a matrix; nothing
    /// where the file has none for the weight.
    ///
    /// # Errors
    /// What the file has instead, when its shape is another.
    pub fn means(&self, name: &str, matrices: usize, columns: usize) -> Result<Option<Vec<f32>>, String> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        if entry.sums.len() != matrices * columns || !matrices.is_multiple_of(entry.counts.len()) {
            let (counts, each) = (entry.counts.len(), entry.sums.len() / entry.counts.len().max(1));
            return Err(format!("{counts} x {each} values"));
        }
        let each = entry.sums.len() / entry.counts.len();
        let mean = |(i, sum): (usize, &f32)| match entry.counts[i / each] {
            // Nothing went in: all columns alike.
            0.0 => 1.0,
            count => sum / count,
        };
        Ok(Some(entry.sums.iter().enumerate().map(mean).collect()))
    }

    /// Writes the GGUF form, weights in order of their names.
    ///
    /// # Errors
    /// When writing fails.
    pub fn write(&self, out: impl Write) -> Result<(), GgufError> {
        let mut metadata = Metadata::new();
        metadata.insert("general.type", Value::String(TYPE.into()));
        metadata.insert(DATASETS, Value::Array(Array::String(self.datasets.clone())));
        metadata.insert(CHUNK_COUNT, Value::U32(self.chunks.unwrap_or(0)));
        metadata.insert(CHUNK_SIZE, Value::U32(self.chunk_size.unwrap_or(0)));
        let mut names: Vec<&String> = self.entries.keys().collect();
        names.sort();
        let parts = |name: &String| {
            let entry = &self.entries[name];
            let rows = entry.counts.len();
            [
                (format!("{name}{SUMS}"), vec![rows, entry.sums.len() / rows.max(1)], &entry.sums),
                (format!("{name}{COUNTS}"), vec![rows, 1], &entry.counts),
            ]
        };
        let spec = |(name, shape, _)| TensorSpec { name, shape, format: Format::F32 };
        let specs = names.iter().flat_map(|name| parts(name)).map(spec).collect();
        let mut writer = GgufWriter::create(out, &metadata, specs)?;
        for (name, _, values) in names.iter().flat_map(|name| parts(name)) {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            writer.tensor(&name, &bytes)?;
        }
        writer.finish().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> &'static Path {
        Path::new("a.imatrix")
    }

    /// Two entries as an old file holds them, and the tail of a newer one.
    fn binary() -> Vec<u8> {
        let mut bytes = 2i32.to_le_bytes().to_vec();
        for (name, calls, values) in [("w", 4i32, vec![2.0f32, 8.0]), ("v.weight", 0, vec![5.0])] {
            bytes.extend((name.len() as i32).to_le_bytes());
            bytes.extend(name.as_bytes());
            bytes.extend(calls.to_le_bytes());
            bytes.extend((values.len() as i32).to_le_bytes());
            bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        }
        bytes
    }

    #[test]
    fn both_forms_hold_the_same() {
        let old = Importance::from_binary(path(), &binary()).expect("whole");
        assert_eq!((old.len(), old.chunks, old.datasets.len()), (2, None, 0));
        let mut bytes = binary();
        bytes.extend([7, 0, 0, 0, 3, 0, 0, 0]);
        bytes.extend(b"txt");
        let old = Importance::from_binary(path(), &bytes).expect("whole");
        assert_eq!((old.chunks, &old.datasets[..]), (Some(7), &["txt".to_owned()][..]));
        let mut written = Vec::new();
        old.write(&mut written).expect("written");
        let new = Importance::from_gguf(path(), &GgufFile::parse(written).expect("GGUF")).expect("whole");
        assert_eq!(
            (new.entries, new.chunks, new.datasets),
            (old.entries.clone(), old.chunks, old.datasets.clone())
        );
        assert_eq!(old.means("w", 1, 2), Ok(Some(vec![0.5, 2.0])));
        assert_eq!(old.means("v.weight", 1, 1), Ok(Some(vec![1.0])));
        assert_eq!(old.means("u", 1, 1), Ok(None));
        assert_eq!(old.means("w", 1, 3), Err("1 x 2 values".into()));
    }

    #[test]
    fn a_row_for_each_expert() {
        let mut made = Importance::default();
        let entry = Entry { sums: vec![1.0, 2.0, 3.0, 4.0], counts: vec![1.0, 2.0] };
        assert!(made.insert("w", entry));
        assert_eq!(made.means("w", 2, 2), Ok(Some(vec![1.0, 2.0, 1.5, 2.0])));
        let entry = Entry { sums: vec![1.0; 3], counts: vec![1.0, 2.0] };
        assert!(!made.insert("w", entry));
        let entry = Entry { sums: vec![f32::NAN], counts: vec![1.0] };
        assert!(!made.insert("w", entry));
    }

    /// Cut anywhere, the entries are missed; so are files that only look like one.
    #[test]
    fn what_is_no_importance_matrix() {
        let bytes = binary();
        for length in 0..bytes.len() {
            let error = Importance::from_binary(path(), &bytes[..length]).expect_err("cut");
            assert!(error.to_string().starts_with("a.imatrix: "), "{error}");
        }
        assert!(Importance::from_binary(path(), b"Once upon a time there was a king").is_err());
        assert!(Importance::from_binary(path(), &[0; 4]).is_err());
        assert!(Importance::from_binary(path(), &[0xff; 64]).is_err());
        let mut empty = Vec::new();
        GgufWriter::create(&mut empty, &Metadata::new(), Vec::new())
            .and_then(GgufWriter::finish)
            .expect("written");
        let file = GgufFile::parse(empty).expect("GGUF");
        assert!(matches!(Importance::from_gguf(path(), &file), Err(ImportanceError::Kind(_))));
    }
}
