//! Matmul with scalar FMAs: each invocation accumulates a register tile.

use minijinja::{Value as Hole, context};
use tallow_ir::cost;
use tallow_ir::form::{ContractionForm, Segment};

use super::k_tile::Layout;
use super::operands::accumulator;
use super::prefetch;
use super::split_k::SplitK;
use super::staging_tile::{self, StagingTile};
use super::store::stores;
use super::tile_code::{Accumulators, Epilogue, Matmul, TileCode, columns};
use crate::emit::{Anchor, Emitter};
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::instruction::Instruction;
use crate::lines::{block, unrolled};
use crate::schedule::{Algorithm, Schedule, Split, Tile};
use crate::template::render;

/// The output tile of a workgroup, and the register tile of each invocation.
#[derive(Clone, Copy, Debug)]
struct RegisterTile {
    /// Rows.
    bm: u32,
    /// Columns of all anchors together.
    bn: u32,
    /// Rows of the register tile, in groups of four that are spread over the tile.
    tm: u32,
    /// Columns of the register tile, in groups of four that are spread over the tile.
    tn: u32,
    /// The K tile, in elements.
    bk: u32,
}

impl RegisterTile {
    const fn new(bm: u32, bn: u32, tm: u32, tn: u32, bk: u32) -> Self {
        RegisterTile { bm, bn, tm, tn, bk }
    }

    fn workgroup(self) -> u32 {
        self.bm / self.tm * (self.bn / self.tn)
    }

    /// Stride in shared memory from one K position of the left operand to the next, in vectors of four, with one of
    /// padding.
    fn left_stride(self) -> u32 {
        self.bm / 4 + 1
    }

    /// Shared memory in vectors of four: both K tiles, reused as the epilogue staging tile.
    fn vectors(self) -> u32 {
        (self.bk * (self.left_stride() + self.bn / 4)).max(self.bm / self.tm * self.bn / 4)
    }

    fn workgroups(self, form: &ContractionForm) -> u64 {
        let columns = |s: &Segment| (s.n.max_value() as u64).div_ceil(u64::from(columns(self.bn, s)));
        let groups: u64 = form.segments.iter().map(columns).sum();
        (form.m.max_value() as u64).div_ceil(u64::from(self.bm)) * groups * form.batch.max_numel()
    }
}

/// Tiles from the largest to the smallest. A larger tile reads less per product; a smaller one leaves fewer cores idle.
/// The K tile is as large as registers allow: an invocation holds the prefetched K tile beside its accumulators.
const SQUARE: [RegisterTile; 3] = [
    RegisterTile::new(128, 128, 8, 8, 8),
    RegisterTile::new(64, 64, 8, 4, 16),
    RegisterTile::new(32, 32, 4, 4, 16),
];

/// The tile for as many rows as a matvec has. Its columns make a row of the right operand's K tile 256 bytes of f16.
const FEW_ROWS: RegisterTile = RegisterTile::new(8, 128, 4, 4, 16);

/// Tiles for epilogues that read many columns together, the narrowest first.
const WIDE: [RegisterTile; 7] = [
    RegisterTile::new(16, 64, 4, 4, 16),
    RegisterTile::new(32, 128, 4, 8, 8),
    RegisterTile::new(32, 256, 4, 8, 8),
    RegisterTile::new(16, 256, 4, 8, 8),
    RegisterTile::new(16, 512, 4, 8, 8),
    RegisterTile::new(8, 512, 4, 8, 8),
    RegisterTile::new(8, 1024, 4, 8, 8),
];

/// Maximum bytes of accumulators per invocation; more would spill.
const MAX_RESULT_BYTES: u32 = 256;

/// Epilogues up to this number of lines are unrolled over the accumulators in registers. Longer ones are emitted once,
/// in a loop over results in shared memory.
const MAX_UNROLLED_LINES: usize = 24;

/// The tiles that fit the device's limits, the cost model's choice first.
fn tiles(e: &Emitter<'_>, form: &ContractionForm) -> Result<Vec<RegisterTile>, CodegenError> {
    let ((ty, _), caps) = (accumulator(e, form)?, e.caps);
    let bytes = |t: RegisterTile| 4 * ty.bytes() * t.vectors();
    let holds = |t: RegisterTile| {
        form.segments.iter().all(|s| t.bn >= 4 * s.anchors.len() as u32 && columns(t.bn, s) >= s.tile)
    };
    let fits = |t: &RegisterTile| {
        holds(*t)
            && t.workgroup() <= caps.max_workgroup_invocations
            && bytes(*t) <= caps.shared_memory_bytes
            && t.tm * t.tn * ty.bytes() <= MAX_RESULT_BYTES
    };
    // A CPU runs a workgroup on one thread, whose registers hold few accumulators.
    let small = |t: &RegisterTile| !cost::runs_workgroups_on_one_thread(caps) || t.tm * t.tn <= 16;
    let few = form.m.max_value() <= i64::from(FEW_ROWS.bm);
    let square = SQUARE.into_iter().chain(few.then_some(FEW_ROWS));
    let square: Vec<RegisterTile> = square.filter(|t| fits(t) && small(t)).collect();
    // Require that the tile has less than twice the actual rows, and that there is a workgroup for each core.
    let wave = u64::from(cost::workgroups_to_fill(caps));
    let filled = |t: &&RegisterTile| i64::from(t.bm) < 2 * form.m.max_value() && t.workgroups(form) >= wave;
    let found = square.iter().find(filled).or(square.last()).copied();
    let mut all = found.map_or_else(|| WIDE.into_iter().filter(fits).collect(), |first| vec![first]);
    all.extend(SQUARE.into_iter().filter(|t| fits(t) && found.is_some_and(|first| first.bm != t.bm)));
    let least = WIDE.into_iter().filter(|t| holds(*t)).map(bytes).min().unwrap_or(u32::MAX);
    match all.is_empty() {
        false => Ok(all),
        true => Err(CodegenError::SharedMemory {
            what: "matmul".into(),
            needs: least,
            has: caps.shared_memory_bytes,
        }),
    }
}

/// The candidate schedules, the cost model's default first.
pub(crate) fn schedules(e: &Emitter<'_>, form: &ContractionForm) -> Result<Vec<Schedule>, CodegenError> {
    let (ty, _) = accumulator(e, form)?;
    let schedule = |t: RegisterTile, instruction: Instruction| {
        let tile = Tile { m: t.bm, n: t.bn, k: t.bk };
        // Partials are floats.
        let slices = if ty == Glsl::Float { SplitK::slices(e, form, tile, t.workgroups(form)) } else { 1 };
        Schedule {
            instruction: Some(instruction),
            tile,
            split: Split { slices, above: 0 },
            prefetch: prefetch::K_TILES,
            ..Schedule::new(Algorithm::Matmul, t.workgroup())
        }
    };
    let tiles = tiles(e, form)?;
    let of = |instruction: &Instruction| tiles.iter().map(|t| schedule(*t, *instruction)).collect::<Vec<_>>();
    Ok(Instruction::OF_REGISTER_TILES.iter().flat_map(of).collect())
}

/// The code of a register tile of this type.
pub(crate) struct Fma {
    tile: RegisterTile,
    ty: Glsl,
    instruction: Instruction,
}

impl Fma {
    /// The code for one of [`schedules`].
    pub fn of(e: &mut Emitter<'_>, form: &ContractionForm, schedule: Schedule) -> Result<Fma, CodegenError> {
        let (ty, _) = accumulator(e, form)?;
        // Tiles differ in their rows or columns.
        let wanted = |t: &RegisterTile| [t.bm, t.bn] == [schedule.tile.m, schedule.tile.n];
        let refused = || CodegenError::NoSuchSchedule { kind: "matmul", schedule: schedule.to_string() };
        let tile = SQUARE.into_iter().chain([FEW_ROWS]).chain(WIDE).find(wanted).ok_or_else(refused)?;
        e.uses().ty(ty);
        let instruction = schedule.instruction.unwrap_or(Instruction::Fma);
        Ok(Fma { tile, ty, instruction })
    }

    /// The stores of a segment whose epilogue reads the accumulators in registers, unrolled over the register tile.
    /// `None` if the epilogue reads other columns of the tile, or is too long to unroll.
    fn register_epilogue(
        &self,
        e: &mut Emitter<'_>,
        mm: &Matmul<'_>,
        number: usize,
    ) -> Result<Option<Vec<String>>, CodegenError> {
        let RegisterTile { bm, bn, tm, tn, .. } = self.tile;
        let (segment, anchors) = (&mm.form.segments[number], mm.form.segments[number].anchors.len() as u32);
        // The register tile holds the results of all anchors for the invocation's columns.
        if segment.staged || anchors * mm.columns[number] != bn || !(tn / 4).is_multiple_of(anchors) {
            return Ok(None);
        }
        let each = tn / anchors;
        let (store, row) = e.scope(|e| {
            let depth = e.depth() + 1;
            for (i, id) in segment.anchors.iter().enumerate() {
                let at = match i as u32 * each {
                    0 => "j".to_string(),
                    first => format!("{first}u + j"),
                };
                e.anchors.insert(*id, Anchor::Result { text: format!("sums[i * {tn}u + {at}]"), depth });
            }
            let row = e.atom(&mm.form.m, "m");
            e.scoped_lines(|e| {
                let column = e.atom(&segment.n, "n");
                stores(e, mm.form, segment, [&mm.batch, &row, &column], &mm.buffers)
            })
        })?;
        if store.len() > MAX_UNROLLED_LINES {
            return Ok(None);
        }
        let n = e.dim(&segment.n);
        let store = block(&format!("if (n < {n})"), store);
        let column = format!("const uint n = column0 + j / 4u * {}u + tx * 4u + j % 4u;", bn * 4 / tn);
        let columns = block(&unrolled("j", each), [vec![column], store].concat());
        let rows = block(&format!("if (m < {})", mm.m), [row, columns].concat());
        let row = format!("const uint m = row0 + i / 4u * {}u + ty * 4u + i % 4u;", bm * 4 / tm);
        Ok(Some(block(&unrolled("i", tm), [vec![row], rows].concat())))
    }
}

impl TileCode for Fma {
    fn layout(&self) -> Layout {
        Layout::Vectors(self.ty)
    }

    fn right_at(&self) -> u32 {
        self.tile.bk * self.tile.left_stride()
    }

    fn words(&self, _: &ContractionForm) -> u32 {
        self.tile.vectors()
    }

    fn start(&self, _: bool) -> Vec<String> {
        let RegisterTile { bm, bn, tm, tn, .. } = self.tile;
        let (block, across) = (8 * (bm / tm).min(4), bn / tn / 8);
        vec![
            format!(
                "// Blocks of {block} invocations, 8 of them along columns, read few different rows and columns together."
            ),
            format!("const uint tx = lane / {block}u % {across}u * 8u + lane % 8u;"),
            format!("const uint ty = lane / {}u * {}u + lane % {block}u / 8u;", block * across, block / 8),
        ]
    }

    fn accumulators(&self, _: &Matmul<'_>, _: usize) -> Accumulators {
        let (ty, zero) = (self.ty.name().into(), self.ty.int_literal(0));
        Accumulators { ty, count: self.tile.tm * self.tile.tn, zero }
    }

    fn products(&self, _: &Matmul<'_>, _: usize, _: &[bool]) -> Result<String, CodegenError> {
        let RegisterTile { bm, bn, tm, tn, bk } = self.tile;
        let sum = format!("sums[i * {tn}u + j]");
        let product =
            self.instruction.multiply_add(self.ty, ["x[i / 4u][i % 4u]", "w[j / 4u][j % 4u]", &sum]);
        let holes = context! {
            bk, tm, tn, sum, product, vector => self.ty.vector(), left_stride => self.tile.left_stride(),
            right_at => self.right_at(), right_stride => bn / 4, rows => bm / tm, columns => bn / tn,
        };
        render("matmul_fma.glsl", holes)
    }

    fn partials(&self, mm: &Matmul<'_>, _: usize) -> Hole {
        let at = format!("i * {}u", mm.schedule.workgroup);
        context! {
            first => "lane", store => format!("partial[to + {at}] = sums[i];"),
            load => format!("sums[i] = partial[from + {at}];"), add => format!("sums[i] += partial[from + {at}];"),
        }
    }

    fn epilogue(
        &self,
        e: &mut Emitter<'_>,
        mm: &Matmul<'_>,
        number: usize,
    ) -> Result<Epilogue, CodegenError> {
        if let Some(lines) = self.register_epilogue(e, mm, number)? {
            return Ok(Epilogue { lines, staged: false });
        }
        let RegisterTile { bm, bn, tm, tn, .. } = self.tile;
        let vector = self.ty.vector();
        let write = vec![
            format!("const uint at = i * {tn}u + g * 4u;"),
            format!(
                "slices[ty * {}u + g * {}u + tx] = {vector}(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]);",
                bn / 4,
                bn / tn
            ),
        ];
        let staging = StagingTile {
            passes: unrolled("i", tm),
            write: block(&unrolled("g", tn / 4), write),
            rows: bm / tm,
            row: format!("i / 4u * {}u + r * 4u + i % 4u", bm * 4 / tm),
            at: Box::new(move |anchor, columns| format!("r * {bn}u + {}u", anchor * columns)),
        };
        Ok(Epilogue { lines: staging_tile::epilogue(e, mm, number, staging)?, staged: true })
    }
}
