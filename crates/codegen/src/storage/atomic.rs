//! Atomic updates of the elements of a scatter's target.

use tallow_ir::DType;

/// How a store combines with the existing value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    Add,
    Max,
}

/// The extension of atomic sums of floats. One SPIR-V capability serves buffers and shared memory.
pub(crate) const FLOAT_ATOMICS: &str = "GL_EXT_shader_atomic_float";

impl Atomic {
    /// Whether elements of this type combine by compare-and-swap on their bits. `native`: the memory that holds them has
    /// atomic sums of f32, an optional feature.
    pub fn swaps(self, dtype: DType, native: bool) -> bool {
        match (self, dtype) {
            (Atomic::Add, DType::F32) => !native,
            (Atomic::Add, DType::F64) => true,
            (Atomic::Add | Atomic::Max, _) => false,
        }
    }

    /// The statement that combines `x` with the element `place` of an array; its bits, if it [swaps](Atomic::swaps).
    pub fn update(self, dtype: DType, native: bool, place: &str) -> String {
        let swap = |ty: &str, sum: &str| {
            format!(
                "for ({ty} want, seen = {place};;) {{ want = seen; seen = atomicCompSwap({place}, want, {sum}); if (seen == want) break; }}"
            )
        };
        match (self, dtype) {
            (Atomic::Add, DType::F64) => swap("uint64_t", "doubleBitsToUint64(uint64BitsToDouble(want) + x)"),
            (Atomic::Add, DType::F32) if self.swaps(dtype, native) => {
                swap("uint", "floatBitsToUint(uintBitsToFloat(want) + x)")
            }
            (Atomic::Add, _) => format!("atomicAdd({place}, x);"),
            (Atomic::Max, _) => format!("atomicMax({place}, x);"),
        }
    }
}
