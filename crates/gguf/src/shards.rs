//! Models in several files, as llama.cpp's `gguf-split` writes them.
//!
//! The files lie in one directory and are called `NAME-00001-of-0000N.gguf` to `NAME-0000N-of-0000N.gguf`. The first one
//! holds all metadata. Each has a tensor table for its own data, `split.no` (its index from 0) and `split.count` (N);
//! the first one's `split.tensors.count` is the number of tensors in all of them.

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use memmap2::Mmap;

use crate::header::{self, Header};
use crate::{GgufError, Metadata, TensorInfo, mmap, optional};

/// Metadata key of a shard's index, from 0.
const NO_KEY: &str = "split.no";
/// Metadata key of the number of shards.
const COUNT_KEY: &str = "split.count";
/// Metadata key of the number of tensors in all shards.
const TENSORS_KEY: &str = "split.tensors.count";

/// The metadata keys that say which part of a model a file is; a file that holds the whole model has none of them.
pub const SPLIT_KEYS: [&str; 3] = [NO_KEY, COUNT_KEY, TENSORS_KEY];

/// Keys that tell models apart, for shards that repeat them.
const IDENTITY_KEYS: [&str; 2] = ["general.architecture", "general.name"];

/// One file of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Where it is.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: usize,
}

/// A file that was mapped, and its head.
pub struct Opened {
    pub shard: Shard,
    pub map: Mmap,
    pub header: Header,
}

impl Opened {
    /// Maps one file and reads its head; errors about its content do not name it.
    pub fn new(path: &Path) -> Result<Opened, GgufError> {
        let open = |source| GgufError::Open { path: path.to_owned(), source };
        // Mapping a directory fails with a message that does not say so.
        if path.is_dir() {
            return Err(open(std::io::Error::from(std::io::ErrorKind::IsADirectory)));
        }
        let map = mmap::map(path).map_err(open)?;
        let header = header::parse(&map)?;
        Ok(Opened { shard: Shard { path: path.to_owned(), bytes: map.len() }, map, header })
    }
}

/// All files of the model that `opened` is part of, in order, and their heads as one.
pub fn complete(opened: Opened) -> Result<(Vec<(Shard, Mmap)>, Header), GgufError> {
    let count = optional(opened.header.metadata.get_u32(COUNT_KEY))?.unwrap_or(0);
    // `gguf-split --merge` writes a count of 0 into the whole file.
    if count <= 1 {
        return Ok((vec![(opened.shard, opened.map)], opened.header));
    }
    let path = opened.shard.path.clone();
    let name = ShardName::of(&path)?;
    // Shards are opened one by one, so that a count of files that are not there costs nothing.
    name.check(&path, &opened.header.metadata)?;
    let first = match name.index {
        0 => opened,
        _ => name.open(0)?,
    };
    let Opened { shard, map, header: mut all } = first;
    let mut files = vec![(shard, map)];
    for index in 1..name.count {
        let Opened { shard, map, header } = name.open(index)?;
        check_identity(&shard.path, &all.metadata, &header.metadata)?;
        join(&mut all.tensors, header.tensors, &files, &shard.path)?;
        files.push((shard, map));
    }
    let first = &files[0].0.path;
    let expected = all.metadata.get_u64(TENSORS_KEY).map_err(|source| within(first, source))?;
    if expected != all.tensors.len() as u64 {
        let found = all.tensors.len();
        let problem = format!("{TENSORS_KEY} is {expected}, but the {} shards have {found}", name.count);
        return Err(refuse(first, problem));
    }
    Ok((files, all))
}

/// Adds a further shard's tensors to those of the files before it.
fn join(
    all: &mut IndexMap<String, TensorInfo>,
    tensors: IndexMap<String, TensorInfo>,
    files: &[(Shard, Mmap)],
    path: &Path,
) -> Result<(), GgufError> {
    for (name, mut tensor) in tensors {
        if let Some(other) = all.get(&name) {
            let other = files[other.shard].0.path.display();
            return Err(refuse(path, format!("tensor {name} is in {other} too")));
        }
        tensor.shard = files.len();
        all.insert(name, tensor);
    }
    Ok(())
}

/// Checks that a shard that says which model it is of says the same as the first.
fn check_identity(path: &Path, first: &Metadata, metadata: &Metadata) -> Result<(), GgufError> {
    for key in IDENTITY_KEYS {
        let (Some(expected), Some(found)) = (first.get(key), metadata.get(key)) else { continue };
        if expected != found {
            let (expected, found) = (expected.describe(), found.describe());
            return Err(refuse(path, format!("is of another model: {key} is {found}, not {expected}")));
        }
    }
    Ok(())
}

/// What the name of a shard says, in the form `DIRECTORY/PREFIX-00001-of-00003.gguf`.
struct ShardName<'a> {
    directory: &'a Path,
    prefix: &'a str,
    /// From 0; the name counts from 1.
    index: u32,
    count: u32,
}

impl<'a> ShardName<'a> {
    fn of(path: &'a Path) -> Result<ShardName<'a>, GgufError> {
        let name = path.file_name().and_then(|name| name.to_str());
        let parsed = name.and_then(|name| {
            let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
            let (prefix, number) = rest.rsplit_once('-')?;
            let (number, count) = (five_digits(number)?, five_digits(count)?);
            let index = number.checked_sub(1).filter(|index| *index < count)?;
            Some(ShardName { directory: path.parent().unwrap_or(Path::new("")), prefix, index, count })
        });
        parsed.ok_or_else(|| {
            let problem = format!(
                "{COUNT_KEY} says that this is one of several files, but its name does not end in \
                 -00001-of-00002.gguf, or other numbers"
            );
            refuse(path, problem)
        })
    }

    /// Opens the shard of an index, and checks that its metadata says what its name says.
    fn open(&self, index: u32) -> Result<Opened, GgufError> {
        let (number, count) = (index + 1, self.count);
        let path = self.directory.join(format!("{}-{number:05}-of-{count:05}.gguf", self.prefix));
        let opened = Opened::new(&path).map_err(|error| match error {
            GgufError::Open { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                refuse(&path, format!("is not there; the model has {count} files"))
            }
            GgufError::Open { .. } => error,
            other => within(&path, other),
        })?;
        ShardName { index, ..*self }.check(&path, &opened.header.metadata)?;
        Ok(opened)
    }

    /// Checks that the metadata of the file at `path` says what its name says.
    fn check(&self, path: &Path, metadata: &Metadata) -> Result<(), GgufError> {
        for (key, expected) in [(COUNT_KEY, self.count), (NO_KEY, self.index)] {
            let found = metadata.get_u32(key).map_err(|source| within(path, source))?;
            if found != expected {
                return Err(refuse(path, format!("{key} is {found}, its name says {expected}")));
            }
        }
        Ok(())
    }
}

/// A number of five digits, as names have it; leading zeros are not optional.
fn five_digits(text: &str) -> Option<u32> {
    (text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

fn refuse(path: &Path, problem: String) -> GgufError {
    GgufError::Shard { path: path.to_owned(), problem }
}

/// An error about the content of one shard, with its name.
fn within(path: &Path, source: GgufError) -> GgufError {
    GgufError::WithinShard { path: path.to_owned(), source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let name = ShardName::of(Path::new("a/b-of-c-00002-of-00003.gguf")).unwrap();
        assert_eq!((name.directory, name.prefix, name.index, name.count), (Path::new("a"), "b-of-c", 1, 3));
        let name = ShardName::of(Path::new("-00001-of-65535.gguf")).unwrap();
        assert_eq!((name.directory, name.prefix, name.index, name.count), (Path::new(""), "", 0, 65535));
        for other in [
            "a.gguf",
            "a-1-of-3.gguf",
            "a-00001-of-00003.bin",
            "a-00000-of-00003.gguf",
            "a-00004-of-00003.gguf",
            "a-+0001-of-00003.gguf",
            "a-000001-of-000003.gguf",
            "00001-of-00003.gguf",
            "..",
            "",
        ] {
            assert!(ShardName::of(Path::new(other)).is_err(), "{other}");
        }
    }
}
