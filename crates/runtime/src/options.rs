//! What a user may choose about the device, from code or from the environment.
//!
//! | variable | meaning |
//! |---|---|
//! | `TALLOW_DEVICE` | ordinal of a device, or part of its name in any case |
//! | `TALLOW_DISABLE` | features to do without, comma-separated, or `all` |
//! | `TALLOW_VALIDATE` | `1`: run under the Khronos validation layer, any report fails the run |
//! | `TALLOW_CACHE_DIR` | directory of the caches; empty: none |
//! | `TALLOW_TUNE` | `1`: kernels that can be cut up in several ways are measured, and the fastest taken |
//! | `TALLOW_STORAGE_RANGE` | bytes that one storage-buffer binding may span, at most |
//! | `TALLOW_VULKAN_LOADER` | path of the Vulkan loader library |
//! | `TALLOW_WAIT` | `block` or `poll`: how a thread waits for the device |

use std::path::PathBuf;

use tallow_ir::caps::OptionalFeature;

use crate::cache_dir::cache_dir;
use crate::error::{Error, Result};

/// How a thread waits for the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// It sleeps, which takes almost no CPU time.
    #[default]
    Block,
    /// It spins: one CPU core is busy, but the next step starts at once. A core that slept takes 40 to 200 us to wake up,
    /// once per token of a model.
    Poll,
}

/// The options; [`RuntimeOptions::default`] leaves everything to the device and keeps no cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeOptions {
    /// Ordinal of a device, or part of its name; the best device without it.
    pub device: Option<String>,
    /// Features that are not used and not enabled.
    pub disable: Vec<OptionalFeature>,
    /// Run under the validation layer.
    pub validate: bool,
    /// Directory that keeps pipelines, and what was measured of kernels, between runs.
    pub cache_dir: Option<PathBuf>,
    /// Measure the kernels that can be cut up in several ways, once for each device and driver, and take the fastest. Without,
    /// the choice depends on [`DeviceCaps`](tallow_ir::DeviceCaps) alone.
    pub tune: bool,
    /// Replaces the hint to unroll loops by the opposite in all kernels. A software device then compiles large kernels faster.
    /// For tests, which compare results: Mesa's leaves all loops of an invocation after 65535 iterations, without an error.
    /// Kernels unroll long loops to stay below that.
    pub rolled_loops: bool,
    /// Lowers the range that one storage-buffer binding may span, in bytes.
    pub max_storage_buffer_range: Option<u64>,
    /// Path of the Vulkan loader library; the system's without it.
    pub loader: Option<PathBuf>,
    /// How threads wait for the device.
    pub wait: Wait,
}

impl RuntimeOptions {
    /// Reads the variables listed at the top of this module.
    pub fn from_env() -> Result<RuntimeOptions> {
        let mut options = RuntimeOptions::from_variables(|name| std::env::var(name).ok())?;
        options.cache_dir = cache_dir();
        Ok(options)
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<RuntimeOptions> {
        let set = |name| variable(name).filter(|value| !value.trim().is_empty());
        let on = |name| set(name).is_some_and(|value| value.trim() != "0");
        let disable = match set("TALLOW_DISABLE") {
            None => Vec::new(),
            Some(value) => OptionalFeature::parse_list(&value).map_err(|unknown| {
                let names: Vec<_> = OptionalFeature::ALL.iter().map(|feature| feature.name()).collect();
                let reason =
                    format!("no feature is called {unknown:?}; there are: {}, all", names.join(", "));
                Error::BadOption { variable: "TALLOW_DISABLE", value, reason }
            })?,
        };
        let range = match set("TALLOW_STORAGE_RANGE") {
            None => None,
            Some(value) => match value.trim().parse::<u64>() {
                Ok(bytes) if bytes >= 4096 => Some(bytes),
                Ok(_) | Err(_) => {
                    let reason = "expected a number of bytes, at least 4096".to_string();
                    return Err(Error::BadOption { variable: "TALLOW_STORAGE_RANGE", value, reason });
                }
            },
        };
        let wait = match set("TALLOW_WAIT") {
            None => Wait::default(),
            Some(value) => match value.trim() {
                "block" => Wait::Block,
                "poll" => Wait::Poll,
                _ => {
                    let reason = "expected block or poll".to_string();
                    return Err(Error::BadOption { variable: "TALLOW_WAIT", value, reason });
                }
            },
        };
        Ok(RuntimeOptions {
            device: set("TALLOW_DEVICE"),
            disable,
            validate: on("TALLOW_VALIDATE"),
            tune: on("TALLOW_TUNE"),
            cache_dir: None,
            rolled_loops: false,
            max_storage_buffer_range: range,
            loader: set("TALLOW_VULKAN_LOADER").map(PathBuf::from),
            wait,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<RuntimeOptions> {
        RuntimeOptions::from_variables(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn nothing_set_is_the_default() {
        assert_eq!(read(&[]), Ok(RuntimeOptions::default()));
        assert_eq!(
            read(&[("TALLOW_VALIDATE", "0"), ("TALLOW_TUNE", "0"), ("TALLOW_DEVICE", "")]),
            Ok(RuntimeOptions::default())
        );
    }

    #[test]
    fn every_variable_is_read() {
        let options = read(&[
            ("TALLOW_DEVICE", "h200"),
            ("TALLOW_DISABLE", "f16,sync2"),
            ("TALLOW_VALIDATE", "1"),
            ("TALLOW_TUNE", "1"),
            ("TALLOW_STORAGE_RANGE", "1048576"),
            ("TALLOW_VULKAN_LOADER", "/x/libvulkan.so"),
            ("TALLOW_WAIT", "poll"),
        ])
        .unwrap();
        assert_eq!(options.device.as_deref(), Some("h200"));
        assert_eq!(options.disable, [OptionalFeature::F16, OptionalFeature::Sync2]);
        assert!(options.validate && options.tune);
        assert_eq!(options.max_storage_buffer_range, Some(1 << 20));
        assert_eq!(options.loader, Some(PathBuf::from("/x/libvulkan.so")));
        assert_eq!(options.wait, Wait::Poll);
    }

    #[test]
    fn nonsense_is_an_error_that_names_the_variable() {
        let error = read(&[("TALLOW_DISABLE", "f16,warp")]).unwrap_err().to_string();
        assert!(error.contains("TALLOW_DISABLE") && error.contains("\"warp\"") && error.contains("coopmat"));
        for value in ["1k", "-1", "7"] {
            let error = read(&[("TALLOW_STORAGE_RANGE", value)]).unwrap_err().to_string();
            assert!(error.contains("TALLOW_STORAGE_RANGE"), "{error}");
        }
        assert!(read(&[("TALLOW_WAIT", "sleep")]).unwrap_err().to_string().contains("TALLOW_WAIT"));
    }
}
