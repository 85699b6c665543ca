//! Layers whose weights are in the host's memory, and how fast a model decodes with them.

use std::fmt;
use std::str::FromStr;

use tallow_ir::cost::{KERNEL_US, REACHED};

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
/// the memory or the bus, and some time for each kernel. The cache is not counted, so it is the speed at the start of a
/// text.
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
    /// Kernels that wait for one another.
    pub kernels: usize,
}

impl Speed {
    /// The same with a bus that was measured, in MB/s.
    pub fn at_bus(self, bus_mb_per_s: u32) -> Speed {
        Speed { bus_mb_per_s, ..self }
    }

    /// Tokens per second, at most.
    pub fn tokens_per_s(&self) -> f64 {
        let device = self.device_bytes as f64 / (f64::from(self.device_gb_per_s.max(1)) * 1e9 * REACHED);
        let host = self.host_bytes as f64 / (f64::from(self.bus_mb_per_s.max(1)) * 1e6);
        1.0 / (device + host + self.kernels as f64 * KERNEL_US / 1e6).max(1e-9)
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
        let (device_bytes, host_bytes, kernels) = (84_000_000, 0, 0);
        let speed = Speed { device_bytes, host_bytes, device_gb_per_s: 1, bus_mb_per_s: 1, kernels };
        assert!((speed.tokens_per_s() - 10.0).abs() < 1e-6, "{}", speed.tokens_per_s());
        // And as long for the bus.
        let speed = Speed { host_bytes: 1_200_000_000, ..speed }.at_bus(12_000);
        assert!((speed.tokens_per_s() - 5.0).abs() < 1e-6, "{}", speed.tokens_per_s());
        let slower = Speed { kernels: 1000, ..speed };
        assert!(slower.tokens_per_s() < speed.tokens_per_s());
    }
}
