//! Choices of a generator, reproducible by seed.

use tallow::DType;

/// How large networks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Of real networks: 20 us to 3 ms on a large GPU.
    Full,
    /// The same structure with small extents, which an interpreter computes in milliseconds.
    Tiny,
}

/// A random number generator (SplitMix64) and the scale of what is drawn.
pub struct Draw {
    state: u64,
    scale: Scale,
}

impl Draw {
    /// The choices of a seed.
    pub fn new(seed: u64, scale: Scale) -> Draw {
        Draw { state: seed.wrapping_mul(0xd1b5_4a32_d192_ed03), scale }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// One of `options`.
    pub fn pick<T: Copy>(&mut self, options: &[T]) -> T {
        options[(self.next() >> 33) as usize % options.len()]
    }

    /// From 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of `options`, divided by `tiny_divisor` at the tiny scale.
    pub fn extent(&mut self, options: &[usize], tiny_divisor: usize) -> usize {
        let full = self.pick(options);
        match self.scale {
            Scale::Full => full,
            Scale::Tiny => (full / tiny_divisor).max(1),
        }
    }

    /// True for half of all draws.
    pub fn coin(&mut self) -> bool {
        self.pick(&[false, true])
    }

    /// The element type of a network; 16-bit types are three of four.
    pub fn dtype(&mut self) -> DType {
        self.pick(&[DType::F16, DType::F16, DType::BF16, DType::F32])
    }
}

/// The output function of SplitMix64.
pub fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
