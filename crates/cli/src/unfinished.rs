//! Files that appear under their name when they are whole.

use std::fs::{File, OpenOptions};
use std::io::Result;
use std::path::{Path, PathBuf};

/// A file beside its place, removed again unless it is finished.
pub struct Unfinished {
    out: PathBuf,
    part: PathBuf,
    finished: bool,
}

impl Unfinished {
    /// Opens a new file beside `out`.
    pub fn create(out: &Path) -> Result<(Unfinished, File)> {
        let mut name = out.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let part = out.with_file_name(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&part)?;
        Ok((Unfinished { out: out.into(), part, finished: false }, file))
    }

    /// Moves the file to its place, when all of it is on the disk; gives its size in bytes.
    pub fn finish(mut self, file: &File) -> Result<u64> {
        file.sync_all()?;
        let size = file.metadata()?.len();
        std::fs::rename(&self.part, &self.out)?;
        self.finished = true;
        Ok(size)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.finished {
            // Nothing more can be done about a file that cannot be removed.
            let _ = std::fs::remove_file(&self.part);
        }
    }
}
