//! What the parts of a matvec generator share.

use tallow_ir::Value;
use tallow_ir::form::ContractionForm;
use tallow_ir::index::Index;

use crate::emit::Emitter;
use crate::glsl::Glsl;

/// Where the products of a matvec read their activations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// In memory. Each invocation loads an item into registers.
    Memory,
    /// In shared memory, as f32.
    Floats,
    /// In shared memory, as 8-bit blocks that the workgroup quantizes from this value.
    Bytes(Value),
    /// In memory, as 8-bit blocks that another kernel has written to this param.
    Blocks(u32),
}

impl Source {
    /// Whether the products are integer dot products.
    pub fn is_packed(self) -> bool {
        matches!(self, Source::Bytes(_) | Source::Blocks(_))
    }
}

/// What all parts of a matvec kernel share.
pub(crate) struct Matvec<'f> {
    pub form: &'f ContractionForm,
    pub source: Source,
    pub batch: Index,
    /// The buffer of each output.
    pub buffers: Vec<usize>,
    /// Rows, and elements per row: the maxima if they are known only at run time.
    pub m: u32,
    pub k: u32,
    /// The number of rows, as a GLSL `uint` expression, if it is known only at run time. Loops over rows are unrolled
    /// for the maximum; those past the last read the last row, and store nothing.
    pub rows: Option<String>,
    pub workgroup: u32,
    /// Maximum prefetch distance of packed weights, in columns.
    pub prefetch: u32,
    /// Columns per tile, by segment.
    pub tiles: Vec<u32>,
    /// The accumulator type.
    pub ty: Glsl,
    /// Partials of each sum that the epilogue combines, and the sums of a tile in the segment that has the most.
    pub slices: u32,
    pub slice_floats: u32,
    /// Whether activations that are the same for all columns are read before everything else, which waits for them.
    pub item_first: bool,
}

impl Matvec<'_> {
    /// The row that variable `m` numbers, which an unrolled loop counts: one that exists. Emits what its name needs.
    pub fn row(&self, e: &mut Emitter<'_>) -> Index {
        match self.existing("m") {
            None => e.atom(&self.form.m, "m"),
            Some(row) => {
                e.line(format!("const uint row = {row};"));
                e.atom(&self.form.m, "row")
            }
        }
    }

    /// A row that exists in place of row `m`; `None` if all do.
    pub fn existing(&self, m: &str) -> Option<String> {
        self.rows.as_ref().map(|rows| format!("min({m}, {rows} - 1u)"))
    }
}
