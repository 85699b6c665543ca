//! Kernels that a driver was seen to compute right: a file for each device, in the cache directory.
//!
//! `<dir>/verified/<device>.txt` is text and safe to delete. The first line names format, device, driver and version of
//! Tallow as JSON; each other line is a kernel's hash ([`Executable::kernel_digests`](super::Executable::kernel_digests)).
//! A file of another driver or version counts as empty, and is replaced. So are damaged files.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Once;

use tallow_runtime::cache_dir::write_atomically;

use super::{Executable, KernelCheck, VerifyOptions};
use crate::device::Device;
use crate::error::Result;

/// Version of the file format, and of what is compared.
const FORMAT: u32 = 1;

/// Most kernels of a file, which has 65 bytes for each. A model has about 50.
const MOST: usize = 16384;

/// What computes kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// The device's name.
    pub device: String,
    /// The driver's name and version.
    pub driver: String,
    /// The version of Tallow, whose compiler is part of it.
    pub tallow: String,
}

impl Driver {
    /// Of a Vulkan device; `None` for the CPU.
    pub fn of(device: &Device) -> Option<Driver> {
        let driver = device.caps()?.driver.clone();
        Some(Driver { device: device.name(), driver, tallow: env!("CARGO_PKG_VERSION").into() })
    }

    /// The first line of a file.
    fn line(&self) -> String {
        let Driver { device, driver, tallow } = self;
        let head = serde_json::json!({
            "tallow_verified": FORMAT, "device": device, "driver": driver, "tallow": tallow,
        });
        head.to_string()
    }

    /// The file of the device: letters and digits of its name.
    fn file(&self) -> String {
        let letters = self.device.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
        letters.take(100).collect::<String>() + ".txt"
    }
}

/// The kernels that a driver was seen to compute right, by their hashes.
#[derive(Clone, Debug, Default)]
pub struct VerifiedKernels {
    kernels: BTreeSet<String>,
    /// The file and its first line.
    file: Option<(PathBuf, String)>,
}

impl VerifiedKernels {
    /// Those that are remembered in this directory, if any. [`VerifiedKernels::default`] has none and remembers none.
    pub fn open(dir: &Path, driver: &Driver) -> VerifiedKernels {
        let (path, line) = (dir.join("verified").join(driver.file()), driver.line());
        VerifiedKernels { kernels: read(&path, &line).unwrap_or_default(), file: Some((path, line)) }
    }

    /// Whether this kernel, by its hash, is among them.
    pub fn contains(&self, digest: &str) -> bool {
        self.kernels.contains(digest)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.kernels.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }

    /// Adds kernels, and writes the file whole or not at all, with what other processes have added before. (Of two that write at once, the
    /// last one's stays; what is lost is compared again.) A file that cannot be written is no error: then nothing is
    /// remembered, and a warning says so once.
    pub fn add(&mut self, digests: impl IntoIterator<Item = String>) {
        let new: BTreeSet<String> = digests.into_iter().collect();
        self.kernels.extend(new.iter().cloned());
        let Some((path, line)) = &self.file else { return };
        let mut all = read(path, line).unwrap_or_default();
        all.extend(new.iter().cloned());
        // Those that are dropped are verified again when they are met again.
        let all = if all.len() > MOST { new } else { all };
        let text = std::iter::once(line).chain(&all).fold(String::new(), |text, line| text + line + "\n");
        if let Err(error) = write_atomically(path, text.as_bytes()) {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                tracing::warn!(
                    "verified kernels are not remembered: {} cannot be written ({error})",
                    path.display()
                );
            });
        }
    }
}

impl Executable {
    /// The kernels that were not verified, by their hashes. None on the CPU, which has no kernels.
    pub fn new_kernels(&self, verified: &VerifiedKernels) -> BTreeSet<String> {
        self.kernel_digests().into_iter().filter(|digest| !verified.contains(digest)).collect()
    }

    /// Runs as [`Executable::verify`] does and compares the kernels that are not in `verified`, to which it adds those that are
    /// right. Ends at the first that is wrong, which it returns; after all that are right the run is complete.
    ///
    /// Kernels that cannot be compared within `options` are not added: another time there may be more memory. `visit` gets
    /// each comparison. What was found right before an error is added, too.
    ///
    /// # Errors
    /// As [`Executable::verify`].
    pub fn verify_new(
        &self,
        symbols: &[(&str, u64)],
        inputs: &[(&str, &[u8])],
        options: &VerifyOptions,
        verified: &mut VerifiedKernels,
        visit: &mut dyn FnMut(&KernelCheck),
    ) -> Result<Option<KernelCheck>> {
        let (digests, new) = (self.kernel_digests(), self.new_kernels(verified));
        let is_new = |kernel: usize| digests.get(kernel).is_some_and(|digest| new.contains(digest));
        let (mut right, mut wrong) = (vec![], None);
        let done = self.verify_some(symbols, inputs, options, &is_new, &mut |check| {
            visit(&check);
            if check.difference().is_some() {
                wrong = Some(check);
                return ControlFlow::Break(());
            }
            right.extend(digests.get(check.kernel).filter(|_| check.worst().is_some()).cloned());
            ControlFlow::Continue(())
        });
        // With `all` a kernel is compared several times.
        let of_wrong = wrong.as_ref().and_then(|check| digests.get(check.kernel));
        verified.add(right.into_iter().filter(|digest| Some(digest) != of_wrong));
        done.map(|()| wrong)
    }
}

/// The kernels of a file with this first line.
fn read(path: &Path, line: &str) -> Option<BTreeSet<String>> {
    let most = (MOST as u64 + 1) * 65 + line.len() as u64;
    let mut bytes = vec![];
    File::open(path).ok()?.take(most).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    // What follows the last newline was cut.
    let mut lines = text.rsplit_once('\n')?.0.lines();
    let is_digest = |line: &&str| line.len() == 64 && line.bytes().all(|byte| byte.is_ascii_hexdigit());
    (lines.next()? == line).then(|| lines.filter(is_digest).map(str::to_owned).take(MOST).collect())
}
