//! I8: a signed byte, no weight but a table.

/// The value of the block's only element.
#[inline(always)]
pub fn element(block: &[u8], _: usize) -> f32 {
    f32::from(block[0] as i8)
}
