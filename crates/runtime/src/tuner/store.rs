//! Store of tuning results: one file per device and driver.
//!
//! The file is `<dir>/tuning/<vendor>-<device>-<driver's cache id>.jsonl` in JSON lines, readable, and safe to delete.
//! The first line names format, device and driver; each other line is an [`Entry`]. Adding an entry reads the file
//! again, so that entries of other processes stay, and replaces it atomically. Invalid lines are ignored, and so are
//! whole files of another format, device or driver. A file can only select among the candidates of a kernel.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Once;

use serde::{Deserialize, Serialize};
use tallow_ir::DeviceCaps;

use crate::cache_dir::write_atomically;

/// Version of the file format and of the rule by which a schedule wins.
const FORMAT: u32 = 3;

/// A larger file is corrupt: a thousand models have fewer kernels.
const MAX_BYTES: u64 = 16 << 20;

/// The device and driver that entries are valid for: the file's first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    tallow_tuning: u32,
    device: String,
    driver: String,
    #[serde(skip)]
    file: String,
}

impl Device {
    /// The device of these caps, with the pipeline cache UUID of its driver.
    pub fn new(caps: &DeviceCaps, cache_uuid: [u8; 16]) -> Device {
        let uuid: String = cache_uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let file = format!("{:04x}-{:04x}-{uuid}.jsonl", caps.vendor_id, caps.device_id);
        Device { tallow_tuning: FORMAT, device: caps.name.clone(), driver: caps.driver.clone(), file }
    }
}

/// Tuning result for a class of fusions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The class, see [`tallow_codegen::class_of`].
    pub class: String,
    /// For people: the kernel that was measured.
    pub kernel: String,
    /// For people: the types of its operands and results.
    pub types: String,
    /// The schedule as text.
    pub schedule: String,
    /// Median microseconds with this schedule.
    pub micros: f64,
    /// Median microseconds with the cost model's default.
    pub first_micros: f64,
}

/// All tuning results of a device.
#[derive(Debug)]
pub struct Store {
    device: Device,
    path: Option<PathBuf>,
    entries: BTreeMap<String, Entry>,
}

impl Store {
    /// Loads the file below `dir`; without a directory, the store is empty and not persistent.
    pub fn open(dir: Option<&Path>, device: &Device) -> Store {
        let path = dir.map(|dir| dir.join("tuning").join(&device.file));
        let entries = path.as_deref().map(|path| read(path, device)).unwrap_or_default();
        Store { device: device.clone(), path, entries }
    }

    /// The result for a class.
    pub fn get(&self, class: &str) -> Option<&Entry> {
        self.entries.get(class)
    }

    /// Adds an entry and writes the file. Warns once if that fails.
    pub fn put(&mut self, entry: Entry) {
        if let Some(path) = &self.path {
            let mut stored = read(path, &self.device);
            // Results of this process are newer.
            stored.append(&mut self.entries);
            self.entries = stored;
        }
        self.entries.insert(entry.class.clone(), entry);
        let Some(path) = &self.path else { return };
        let written = self.text().map_err(std::io::Error::other);
        if let Err(error) = written.and_then(|text| write_atomically(path, text.as_bytes())) {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                tracing::warn!("tuning is not kept: {} cannot be written ({error})", path.display());
            });
        }
    }

    fn text(&self) -> serde_json::Result<String> {
        let mut text = serde_json::to_string(&self.device)? + "\n";
        for entry in self.entries.values() {
            text += &serde_json::to_string(entry)?;
            text.push('\n');
        }
        Ok(text)
    }
}

/// The entries of a file, if it is for this device and driver.
fn read(path: &Path, device: &Device) -> BTreeMap<String, Entry> {
    let mut bytes = vec![];
    let opened = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    let text = match opened {
        Ok(_) if bytes.len() as u64 <= MAX_BYTES => String::from_utf8_lossy(&bytes),
        Ok(_) | Err(_) => return BTreeMap::new(),
    };
    let mut lines = text.lines();
    let first: Option<Device> = lines.next().and_then(|line| serde_json::from_str(line).ok());
    let here = |d: &Device| {
        (d.tallow_tuning, &d.device, &d.driver) == (device.tallow_tuning, &device.device, &device.driver)
    };
    if !first.as_ref().is_some_and(here) {
        tracing::debug!(path = %path.display(), "this is no file of the device's tuning and is not used");
        return BTreeMap::new();
    }
    let entries = lines.filter_map(|line| serde_json::from_str::<Entry>(line).ok());
    entries.map(|entry| (entry.class.clone(), entry)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tallow_ir::caps;

    use super::*;

    fn entry(class: &str, schedule: &str) -> Entry {
        Entry {
            class: class.into(),
            kernel: "matvec fma 1x4 wg128 .. add".into(),
            types: "f32[1,64] -> f32[1,8]".into(),
            schedule: schedule.into(),
            micros: 1.5,
            first_micros: 2.0,
        }
    }

    fn device() -> Device {
        Device::new(&caps::h200(), [7; 16])
    }

    #[test]
    fn entries_are_found_again_by_the_next_process() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(Some(dir.path()), &device());
        assert_eq!(store.get("a"), None);
        store.put(entry("a", "one"));
        store.put(entry("b", "two"));
        store.put(entry("a", "three"));
        let again = Store::open(Some(dir.path()), &device());
        assert_eq!(again.get("a"), Some(&entry("a", "three")));
        assert_eq!(again.get("b"), Some(&entry("b", "two")));
        // Readable: a line per entry, after the header.
        let file = fs::read_dir(dir.path().join("tuning")).unwrap().next().unwrap().unwrap();
        let text = fs::read_to_string(file.path()).unwrap();
        assert_eq!(text.lines().count(), 3);
        assert!(text.starts_with("{\"tallow_tuning\":3,\"device\":\""), "{text}");
    }

    #[test]
    fn what_several_processes_add_stays() {
        let dir = tempfile::tempdir().unwrap();
        let mut one = Store::open(Some(dir.path()), &device());
        let mut other = Store::open(Some(dir.path()), &device());
        one.put(entry("a", "one"));
        other.put(entry("b", "two"));
        assert_eq!(other.get("a"), Some(&entry("a", "one")));
        let again = Store::open(Some(dir.path()), &device());
        assert!(again.get("a").is_some() && again.get("b").is_some());
    }

    #[test]
    fn another_driver_or_device_starts_anew() {
        let dir = tempfile::tempdir().unwrap();
        Store::open(Some(dir.path()), &device()).put(entry("a", "one"));
        assert!(Store::open(Some(dir.path()), &device()).get("a").is_some());
        let other = Device::new(&caps::h200(), [8; 16]);
        assert!(Store::open(Some(dir.path()), &other).get("a").is_none(), "by its file");
        let mut newer = caps::h200();
        newer.driver += ".1";
        let newer = Device::new(&newer, [7; 16]);
        assert!(Store::open(Some(dir.path()), &newer).get("a").is_none(), "by its first line");
    }

    #[test]
    fn nothing_in_a_file_is_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tuning").join(device().file);
        Store::open(Some(dir.path()), &device()).put(entry("a", "one"));
        let good = fs::read(&path).unwrap();
        for cut in 0..good.len() {
            fs::write(&path, &good[..cut]).unwrap();
            let store = Store::open(Some(dir.path()), &device());
            // Only the final newline may be missing from a line.
            assert_eq!(store.get("a").is_some(), cut + 1 == good.len(), "cut to {cut} bytes");
        }
        let text = String::from_utf8(good.clone()).unwrap();
        let first = text.lines().next().unwrap();
        for line in [
            "",
            "\u{0}",
            "null",
            "[]",
            "{",
            "{}",
            "{\"class\":1}",
            "{\"class\":\"a\"}",
            &"[".repeat(100_000),
            "{\"class\":\"a\",\"kernel\":\"\",\"types\":\"\",\"schedule\":[],\"micros\":1,\"first_micros\":1}",
            "{\"class\":\"a\",\"kernel\":\"\",\"types\":\"\",\"schedule\":\"\",\"micros\":1e999,\"first_micros\":1}",
        ] {
            fs::write(&path, format!("{first}\n{line}\n")).unwrap();
            let mut store = Store::open(Some(dir.path()), &device());
            assert!(store.get("a").is_none(), "{line:.80}");
            store.put(entry("b", "two"));
            assert!(Store::open(Some(dir.path()), &device()).get("b").is_some(), "it is replaced");
        }
        let mut invalid = good.clone();
        invalid.extend([0xff, 0xfe, b'\n']);
        fs::write(&path, &invalid).unwrap();
        assert!(Store::open(Some(dir.path()), &device()).get("a").is_some(), "lines that are good stay");
        fs::write(&path, vec![b' '; MAX_BYTES as usize + 2]).unwrap();
        assert!(Store::open(Some(dir.path()), &device()).get("a").is_none(), "too large");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let mut store = Store::open(Some(dir.path()), &device());
        store.put(entry("a", "one"));
        assert!(store.get("a").is_some(), "known while the process lives");
    }
}
