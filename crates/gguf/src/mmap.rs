//! Mapping a file into memory: the one place outside the Vulkan bindings with `unsafe`.
#![allow(unsafe_code)]

use std::{fs::File, io, path::Path};

use memmap2::Mmap;

/// Maps a whole file, read-only.
pub fn map(path: &Path) -> io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: the mapping is read-only and private to this process. That nobody changes or cuts the
    // file while it is mapped cannot be enforced, as with every mapped file; `GgufFile::open` says
    // so. All readers treat the bytes as untrusted and check each offset against the mapped length.
    unsafe { Mmap::map(&file) }
}
