//! What the parts of a matmul generator share, and what an instruction contributes to it.

use minijinja::Value as Hole;
use tallow_ir::form::{ContractionForm, Segment};
use tallow_ir::index::Index;

use super::k_tile::Layout;
use crate::assemble::floor_pow2;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::schedule::Schedule;

/// What the parts of a matmul kernel share.
pub(crate) struct Matmul<'f> {
    pub form: &'f ContractionForm,
    pub batch: Index,
    /// The buffer of each output.
    pub buffers: Vec<usize>,
    pub schedule: Schedule,
    /// Columns of each anchor in an output tile, by segment.
    pub columns: Vec<u32>,
    /// Rows and elements of K, as expressions.
    pub m: String,
    pub k: String,
}

impl Matmul<'_> {
    /// K tiles that wait in registers.
    pub fn depth(&self) -> u32 {
        self.schedule.prefetch.max(1)
    }
}

/// The accumulators `sums` of an invocation or subgroup for one segment.
pub(crate) struct Accumulators {
    pub ty: String,
    pub count: u32,
    pub zero: String,
}

/// The code that multiplies K tiles with one kind of instruction.
pub(crate) trait TileCode {
    /// The layout of K tiles in shared memory.
    fn layout(&self) -> Layout;
    /// Offset of the first K tile of the right operand in shared memory, in vectors or words.
    fn right_at(&self) -> u32;
    /// Vectors or words of shared memory.
    fn words(&self, form: &ContractionForm) -> u32;
    /// Lines that compute which part of an output tile an invocation or subgroup has; `across` says whether the left
    /// operand's K tile is `[k][row]`.
    fn start(&self, across: bool) -> Vec<String>;
    /// The accumulators of a segment.
    fn accumulators(&self, mm: &Matmul<'_>, number: usize) -> Accumulators;
    /// Multiplies the K tiles in shared memory. `across` says of the left operand and of each anchor's right one whether its
    /// K tile is `[k][row or column]`.
    fn products(&self, mm: &Matmul<'_>, number: usize, across: &[bool]) -> Result<String, CodegenError>;
    /// The statements that move accumulator `sums[i]` to and from its partials of split-K, and `first`, the position of
    /// the partials among those of the workgroup. `store` writes at `to`; `load` reads at `from`, and `add` adds what it
    /// reads.
    fn partials(&self, mm: &Matmul<'_>, number: usize) -> Hole;
    /// Generates the stores of a segment's results.
    fn epilogue(&self, e: &mut Emitter<'_>, mm: &Matmul<'_>, number: usize)
    -> Result<Epilogue, CodegenError>;
}

/// The stores of a segment's results.
pub(crate) struct Epilogue {
    pub lines: Vec<String>,
    /// Whether they read results from the staging tile by the function `result`.
    pub staged: bool,
}

/// Columns of each anchor in an output tile of `bn` columns.
pub(crate) fn columns(bn: u32, segment: &Segment) -> u32 {
    match segment.anchors.len() as u32 {
        0 | 1 => bn,
        several => floor_pow2(bn / several),
    }
}
