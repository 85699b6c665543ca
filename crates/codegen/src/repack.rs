//! The kernel that rearranges blocks into planes when a weight is loaded: one for all formats, which it knows by the
//! numbers of their rows in the table of formats.

use minijinja::context;
use tallow_quant::{FormatSpec, Plane};

use crate::kernel::CodegenError;
use crate::template::render;

/// Invocations of a workgroup; every device has as many.
pub const REPACK_WORKGROUP: u32 = 128;

/// Bytes of the push constants that the kernel takes.
pub const REPACK_PUSH_BYTES: u32 = 36;

/// The kernel as GLSL. Binding 0 is a run of a file's blocks and a word behind it, binding 1 a part of the weight with the
/// plane's words of these blocks.
///
/// # Errors
/// When the template does not render, which is a bug.
pub fn repack_kernel() -> Result<String, CodegenError> {
    render("repack.comp", context! { workgroup => REPACK_WORKGROUP })
}

/// The part of one dispatch: one plane of a run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepackRun<'a> {
    /// The format's row.
    pub spec: &'a FormatSpec,
    /// The plane that is written.
    pub plane: &'a Plane,
    /// Blocks of the run.
    pub blocks: u32,
    /// The word of binding 1 at which the run starts.
    pub first: u32,
}

impl RepackRun<'_> {
    /// Words that are written: those of the fields, and zeros up to the next multiple of
    /// [`PLANE_ALIGNMENT`](tallow_quant::PLANE_ALIGNMENT) bytes.
    pub fn words(&self) -> u32 {
        self.bytes().next_multiple_of(tallow_quant::PLANE_ALIGNMENT as u32) / 4
    }

    /// Workgroups that write them.
    pub fn workgroups(&self) -> u32 {
        self.words().div_ceil(REPACK_WORKGROUP)
    }

    /// What the kernel is told.
    pub fn push(&self) -> [u8; REPACK_PUSH_BYTES as usize] {
        let shifts = self.plane.shifts();
        let numbers = [
            self.spec.block_bytes as u32,
            self.plane.offset_in_block as u32,
            self.plane.bytes_per_block as u32,
            self.bytes(),
            self.first,
            self.words(),
            u32::from_ne_bytes([self.plane.share; 4]),
            8 / shifts.len() as u32,
            // Of at most eight shares of a bit each, at 4 bits a shift.
            shifts.iter().rev().fold(0, |all, shift| all << 4 | shift),
        ];
        let mut bytes = [0; REPACK_PUSH_BYTES as usize];
        for (to, number) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
            *to = number.to_le_bytes();
        }
        bytes
    }

    fn bytes(&self) -> u32 {
        self.blocks * self.plane.bytes_per_block as u32
    }
}
