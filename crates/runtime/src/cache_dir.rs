//! Where compiled shaders, pipelines and tuning results are kept between runs.
//!
//! `TALLOW_CACHE_DIR` names the directory; without it it is `tallow` in the user's cache directory
//! (`$XDG_CACHE_HOME` or `~/.cache` on Linux). An empty `TALLOW_CACHE_DIR` switches caching off. A directory
//! that cannot be written is not an error: everything runs without the cache, and a warning says so once.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// The cache directory, created if need be; `None` if caching is off or the directory cannot be written.
pub fn cache_dir() -> Option<PathBuf> {
    choose(std::env::var_os("TALLOW_CACHE_DIR"), dirs::cache_dir())
}

fn choose(variable: Option<OsString>, user_cache: Option<PathBuf>) -> Option<PathBuf> {
    let dir = match variable {
        Some(value) if value.is_empty() => return None,
        Some(value) => PathBuf::from(value),
        None => user_cache?.join("tallow"),
    };
    match make_writable(&dir) {
        Ok(()) => Some(dir),
        Err(error) => {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                tracing::warn!("running without cache: {} cannot be written ({error})", dir.display());
            });
            None
        }
    }
}

/// Creates the directory and proves by writing a file that it can be written.
fn make_writable(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let probe = dir.join(unique_name("probe"));
    fs::write(&probe, b"")?;
    fs::remove_file(&probe)
}

/// Replaces a file whole or not at all: writes a sibling and renames it.
///
/// Readers and writers in other processes see the old content or the new, never a part. The directory is
/// created if it is missing.
pub fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let dir = path.parent().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    fs::create_dir_all(dir)?;
    let sibling = dir.join(unique_name("new"));
    let written = fs::write(&sibling, content).and_then(|()| fs::rename(&sibling, path));
    if written.is_err() {
        // The write failed already; a leftover that cannot be removed either changes nothing.
        let _ = fs::remove_file(&sibling);
    }
    written
}

/// A file name that no other process or thread uses now.
fn unique_name(stem: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!(".{stem}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_wins_and_the_directory_is_created() {
        let base = tempfile::tempdir().unwrap();
        let named = base.path().join("a/b");
        assert_eq!(choose(Some(named.clone().into()), None), Some(named.clone()));
        assert!(named.is_dir());
        assert_eq!(choose(None, Some(base.path().into())), Some(base.path().join("tallow")));
        assert_eq!(fs::read_dir(&named).unwrap().count(), 0, "the probe is gone");
    }

    #[test]
    fn no_cache_where_it_is_off_or_unwritable() {
        assert_eq!(choose(Some("".into()), Some("/tmp".into())), None);
        assert_eq!(choose(None, None), None);
        // A file stands where the directory should be, which not even root can write into.
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("file");
        fs::write(&file, b"x").unwrap();
        assert_eq!(choose(Some(file.join("cache").into()), None), None);
    }

    #[test]
    fn atomic_writes_replace_and_leave_nothing_behind() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("sub/data");
        write_atomically(&path, b"one").unwrap();
        write_atomically(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        fs::create_dir_all(base.path().join("dir")).unwrap();
        assert!(write_atomically(&base.path().join("dir"), b"x").is_err());
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 2);
    }
}
