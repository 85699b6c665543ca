//! Layers whose weights are in the host's memory, and how fast a model decodes with them.

use std::fmt;
use std::str::FromStr;

use tallow::caps::DeviceCaps;
use tallow_ir::cost::REACHED;

use crate::config::Config;
use crate::error::{Error, Result};

/// How many of the last layers have their weights in the host's memory. A GPU with memory of its own reads those over the
/// bus in each step, and keeps its memory for the rest. Where host and device share their memory, and on the interpreter,
/// they are where they would be anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostLayers {
    /// So many.
    Last(usize),
    /// As few as make the rest fit the device's memory.
    Auto,
}

impl Default for HostLayers {
    fn default() -> HostLayers {
        HostLayers::Last(0)
    }
}

impl HostLayers {
    /// The number; `None` where it depends on the memory.
    ///
    /// # Errors
    /// When the model has fewer layers.
    pub(crate) fn count(self, config: &Config) -> Result<Option<usize>> {
        match self {
            HostLayers::Auto => Ok(None),
            HostLayers::Last(count) if count <= config.layers => Ok(Some(count)),
            HostLayers::Last(requested) => Err(Error::HostLayers { requested, layers: config.layers }),
        }
    }
}

impl fmt::Display for HostLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostLayers::Last(count) => count.fmt(f),
            HostLayers::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for HostLayers {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<HostLayers, String> {
        match s {
            "auto" => Ok(HostLayers::Auto),
            _ => s.parse().map(HostLayers::Last).map_err(|_| "expected a number of layers or 'auto'".into()),
        }
    }
}

/// The layer that a weight of this name belongs to, from 0 on: 3 for `blk.3.attn_q.weight`.
pub fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// What a bus to a GPU is taken to deliver where nobody measured it, in MB/s (10^6 bytes): PCI Express 3.0 with 16 lanes
/// has 15750, of which copies reach about three quarters. Newer ones have two and four times as much.
pub const BUS_MB_PER_S: u32 = 12_000;

/// How fast a model decodes, estimated from the bytes of weights that a token reads: each from where it is, at the rate of
/// the memory or the bus. The cache is not counted, so it is the speed at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// Bytes that a token reads from the device's memory.
    pub device_bytes: u64,
    /// Bytes that it reads from the host's.
    pub host_bytes: u64,
    /// Peak bandwidth of the device's memory in GB/s, of which kernels reach a share.
    pub device_gb_per_s: u32,
    /// What the bus delivers, in MB/s.
    pub bus_mb_per_s: u32,
}

impl Speed {
    /// Of a decode step that reads these weights, each with its name and bytes, with the last `host_layers` layers in the
    /// host's memory. A token reads one row of the embedding, unless that is the output matrix too, and of the experts
    /// those that it uses.
    pub(crate) fn of(
        config: &Config,
        caps: &DeviceCaps,
        weights: &[(String, u64)],
        host_layers: usize,
    ) -> Speed {
        let has_output = weights.iter().any(|(name, _)| name == "output.weight");
        let read = |name: &str, bytes: u64| match &config.experts {
            _ if name == "token_embd.weight" && has_output => 0,
            Some(experts) if name.contains("_exps.") => {
                (u128::from(bytes) * experts.used as u128 / experts.count.max(1) as u128) as u64
            }
            Some(_) | None => bytes,
        };
        let (mut device_bytes, mut host_bytes) = (0u64, 0u64);
        for (name, bytes) in weights {
            let bytes = read(name, *bytes);
            match !caps.unified_memory && is_last(name, config.layers, host_layers) {
                true => host_bytes = host_bytes.saturating_add(bytes),
                false => device_bytes = device_bytes.saturating_add(bytes),
            }
        }
        let device_gb_per_s = caps.hardware.memory_gb_per_s;
        Speed { device_bytes, host_bytes, device_gb_per_s, bus_mb_per_s: BUS_MB_PER_S }
    }

    /// The same with a bus that was measured, in MB/s.
    pub fn at_bus(self, bus_mb_per_s: u32) -> Speed {
        Speed { bus_mb_per_s, ..self }
    }

    /// Tokens per second, at most.
    pub fn tokens_per_s(&self) -> f64 {
        let device = self.device_bytes as f64 / (f64::from(self.device_gb_per_s.max(1)) * 1e9 * REACHED);
        let host = self.host_bytes as f64 / (f64::from(self.bus_mb_per_s.max(1)) * 1e6);
        1.0 / (device + host).max(1e-9)
    }
}

/// Whether a weight belongs to the last `count` of so many layers.
pub(crate) fn is_last(name: &str, layers: usize, count: usize) -> bool {
    layer_of(name).is_some_and(|layer| layer < layers && layer >= layers.saturating_sub(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_auto_are_read_back() {
        for (text, expected) in
            [("0", HostLayers::Last(0)), ("12", HostLayers::Last(12)), ("auto", HostLayers::Auto)]
        {
            assert_eq!(text.parse(), Ok(expected));
            assert_eq!(expected.to_string(), text);
        }
        for text in ["", "-1", "all", "1.5"] {
            assert!(text.parse::<HostLayers>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_have_layers() {
        assert_eq!(layer_of("blk.3.attn_q.weight"), Some(3));
        assert_eq!(layer_of("blk.31.attn_q.weight, copy 0"), Some(31));
        assert_eq!(["output.weight", "blk.x.a", "lora.0.blk.3.attn_q.weight"].map(layer_of), [None; 3]);
        assert!(is_last("blk.3.a", 4, 1) && !is_last("blk.2.a", 4, 1) && !is_last("blk.3.a", 4, 0));
        assert!(!is_last("blk.4.a", 4, 4), "a layer that the model does not run");
    }

    #[test]
    fn a_token_takes_the_time_of_its_bytes() {
        // 84 ms of the device's memory, of which 84 % are reached: a tenth of a second.
        let speed = Speed { device_bytes: 84_000_000, host_bytes: 0, device_gb_per_s: 1, bus_mb_per_s: 1 };
        assert!((speed.tokens_per_s() - 10.0).abs() < 1e-6, "{}", speed.tokens_per_s());
        // And as long for the bus.
        let speed = Speed { host_bytes: 1_200_000_000, ..speed }.at_bus(12_000);
        assert!((speed.tokens_per_s() - 5.0).abs() < 1e-6, "{}", speed.tokens_per_s());
    }
}
