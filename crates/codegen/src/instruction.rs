//! The instructions that multiply in contractions and attention. To add one, add a variant here and its arms below: the
//! register tiles of `kinds/contraction/fma.rs` and the schedules that are measured follow.

use crate::glsl::Glsl;

/// The instruction that multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Instruction {
    /// Scalar fused multiply-add.
    Fma,
    /// Dot product of four packed 8-bit integers (DP4A).
    Dot4,
    /// Subgroup-scope cooperative matrices (`VK_KHR_cooperative_matrix`).
    Coopmat,
    /// Workgroup-scope cooperative matrices (`VK_NV_cooperative_matrix2`).
    Coopmat2,
}

impl Instruction {
    /// The instructions that accumulate the register tiles of a matmul, the default first.
    pub(crate) const OF_REGISTER_TILES: &[Instruction] = &[Instruction::Fma];

    /// The name in the printed form of a schedule.
    pub fn name(self) -> &'static str {
        match self {
            Instruction::Fma => "fma",
            Instruction::Dot4 => "dot4",
            Instruction::Coopmat => "coopmat",
            Instruction::Coopmat2 => "coopmat2",
        }
    }

    /// The name of the instructions that are candidates for the same kernel.
    pub(crate) fn family(self) -> &'static str {
        match self {
            Instruction::Fma => "fma",
            Instruction::Dot4 => "dot4",
            Instruction::Coopmat | Instruction::Coopmat2 => "coopmat",
        }
    }

    /// Whether all invocations of a subgroup or workgroup execute it together.
    pub(crate) fn is_cooperative(self) -> bool {
        match self {
            Instruction::Fma | Instruction::Dot4 => false,
            Instruction::Coopmat | Instruction::Coopmat2 => true,
        }
    }

    /// The expression `x * w + sum` for one element of a register tile.
    pub(crate) fn multiply_add(self, ty: Glsl, [x, w, sum]: [&str; 3]) -> String {
        match self {
            Instruction::Fma | Instruction::Dot4 | Instruction::Coopmat | Instruction::Coopmat2 => {
                ty.multiply_add(x, w, sum)
            }
        }
    }
}
