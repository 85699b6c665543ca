//! The repack kernel, which rearranges blocks into planes when a weight is loaded. One kernel serves all formats: push
//! constants carry the numbers of the format's row in the format table.

use minijinja::context;
use tallow_quant::{FormatSpec, Plane};

use crate::error::CodegenError;
use crate::template::render;

/// Invocations per workgroup; every device supports this many.
pub const REPACK_WORKGROUP: u32 = 128;

/// Bytes of the kernel's push constants.
pub const REPACK_PUSH_BYTES: u32 = 36;

/// The kernel as GLSL. Binding 0 holds a range of a file's blocks and one word after them, since the kernel reads words
/// in pairs. Binding 1 is the part of the weight that holds one plane's words of these blocks.
///
/// # Errors
/// If the template does not render, which is a bug.
pub fn repack_kernel() -> Result<String, CodegenError> {
    render("repack.comp", context! { workgroup => REPACK_WORKGROUP })
}

/// The work of one dispatch: one plane of a range of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepackRun<'a> {
    /// The format's row.
    pub spec: &'a FormatSpec,
    /// The plane to write.
    pub plane: &'a Plane,
    /// Number of blocks.
    pub blocks: u32,
    /// The word of binding 1 at which the range starts.
    pub first: u32,
}

impl RepackRun<'_> {
    /// Words to write: those of the fields, and zeros up to the next multiple of
    /// [`PLANE_ALIGNMENT`](tallow_quant::PLANE_ALIGNMENT) bytes.
    pub fn words(&self) -> u32 {
        self.bytes().next_multiple_of(tallow_quant::PLANE_ALIGNMENT as u32) / 4
    }

    /// Workgroups of the dispatch.
    pub fn workgroups(&self) -> u32 {
        self.words().div_ceil(REPACK_WORKGROUP)
    }

    /// The push constants.
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
            // Up to eight shares of at least one bit each, with 4 bits per shift.
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
