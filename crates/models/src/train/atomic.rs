//! Files that appear under their name when all of them is on the disk.

use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::path::{Path, PathBuf};

/// Writes a file beside its place, waits until the disk has it, and renames it. Whenever the process is killed, the old file
/// or the new one is there, whole. The file beside has one name, so that the next write replaces what a killed process left.
///
/// # Errors
/// When writing fails; then the old file is as it was.
pub fn write_atomically(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let part = part_of(path);
    let done = write_synced(&part, write).and_then(|()| std::fs::rename(&part, path));
    if done.is_err() {
        // Nothing more can be done about a file that cannot be removed.
        let _ = std::fs::remove_file(&part);
    }
    done?;
    sync_folder(path)
}

fn part_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    path.with_file_name(name)
}

fn write_synced(part: &Path, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let mut out = BufWriter::new(File::create(part)?);
    write(&mut out)?;
    out.flush()?;
    out.get_ref().sync_all()
}

/// The rename is on the disk when the folder is. Only Unix opens folders as files.
#[cfg(unix)]
fn sync_folder(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(not(unix))]
fn sync_folder(_: &Path) -> Result<()> {
    Ok(())
}
