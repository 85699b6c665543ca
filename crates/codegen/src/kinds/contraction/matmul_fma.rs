//! Tiled matmul with scalar FMAs. K tiles of both operands are dequantized and transformed on the way to shared memory;
//! the accumulators stay in registers.

use minijinja::{Value as Hole, context};
use tallow_ir::cost;
use tallow_ir::form::{ContractionForm, Segment};
use tallow_ir::index::Index;

use super::grid::{columns_grid, segment_groups};
use super::k_tile::{self, KTile};
use super::operands::{accumulator, batch_at, left_at};
use super::store::stores;
use crate::assemble::{Parts, finish, floor_pow2, whole};
use crate::emit::{Anchor, Emitter};
use crate::kernel::{CodegenError, Count, Kernel};
use crate::scalar::Glsl;
use crate::schedule::{self, Algorithm, Schedule};

/// The output tile of a workgroup, and the register tile of each invocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegisterTile {
    /// Rows.
    pub bm: u32,
    /// Columns of all anchors together.
    pub bn: u32,
    /// Rows of the register tile, in groups of four that are spread over the tile.
    pub tm: u32,
    /// Columns of the register tile, in groups of four that are spread over the tile.
    pub tn: u32,
    /// The K tile, in elements.
    pub bk: u32,
}

impl RegisterTile {
    const fn new(bm: u32, bn: u32, tm: u32, tn: u32, bk: u32) -> Self {
        RegisterTile { bm, bn, tm, tn, bk }
    }

    pub(crate) fn workgroup(self) -> u32 {
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
        let columns = |s: &Segment| (s.n.max_value() as u64).div_ceil(u64::from(columns(self, s)));
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

/// Columns of each anchor in a tile of this segment.
fn columns(tile: RegisterTile, segment: &Segment) -> u32 {
    floor_pow2(tile.bn / segment.anchors.len() as u32)
}

/// The tiles that fit the device's limits, the cost model's choice first.
fn tiles(e: &Emitter<'_>, form: &ContractionForm) -> Result<Vec<RegisterTile>, CodegenError> {
    let ((ty, _), caps) = (accumulator(e, form)?, e.caps);
    let bytes = |t: RegisterTile| 4 * ty.bytes() * t.vectors();
    let holds = |t: RegisterTile| {
        form.segments.iter().all(|s| t.bn >= 4 * s.anchors.len() as u32 && columns(t, s) >= s.tile)
    };
    let fits = |t: &RegisterTile| {
        holds(*t)
            && t.workgroup() <= caps.max_workgroup_invocations
            && bytes(*t) <= caps.shared_memory_bytes
            && t.tm * t.tn * ty.bytes() <= MAX_RESULT_BYTES
    };
    // A CPU runs a workgroup on one thread, whose registers hold few accumulators.
    let small = |t: &RegisterTile| !cost::runs_workgroups_on_one_thread(caps) || t.tm * t.tn <= 16;
    let square: Vec<RegisterTile> = SQUARE.into_iter().filter(|t| fits(t) && small(t)).collect();
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
    let schedule = |t: RegisterTile| Schedule {
        tile: schedule::Tile { m: t.bm, n: t.bn, k: t.bk },
        ..Schedule::new(Algorithm::Matmul, t.workgroup())
    };
    Ok(tiles(e, form)?.into_iter().map(schedule).collect())
}

/// Generates the kernel for one of [`schedules`].
pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &ContractionForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let (ty, _) = accumulator(&e, form)?;
    let all = tiles(&e, form)?;
    let tile = *all.iter().find(|t| [t.bm, t.bn] == [schedule.tile.m, schedule.tile.n]).unwrap_or(&all[0]);
    let batch = e.atom(&form.batch.numel(), "batch");
    let buffers: Vec<usize> = (0..e.body.outputs().len()).map(|o| e.result(o as u32)).collect();
    let limits = e.caps.max_workgroup_count;
    let tiles: Vec<u32> = form.segments.iter().map(|s| columns(tile, s)).collect();
    // Rows along x: workgroups that run at the same time then read the same columns. Swapped if the columns exceed the
    // limit along y, as some devices allow more workgroups along x.
    let rows = |limit| Count { value: form.m.clone(), per: tile.bm, limit };
    let turned = columns_grid(form, &tiles, limits[0]).most() > u64::from(limits[1]);
    let [x, y] = match turned {
        false => [rows(limits[0]), columns_grid(form, &tiles, limits[1])],
        true => [columns_grid(form, &tiles, limits[0]), rows(limits[1])],
    };
    let grid = [x, y, Count { value: form.batch.numel(), per: 1, limit: limits[2] }];
    whole("matmul", &grid)?;
    let (mut segments, mut strips) = (vec![], false);
    for (segment, &bn) in form.segments.iter().zip(&tiles) {
        let groups = segment_groups(&mut e, segment, bn);
        let (holes, own) = segment_holes(&mut e, form, segment, &batch, (ty, tile, bn, groups), &buffers)?;
        segments.push(holes);
        strips |= own;
    }
    if ty == Glsl::Long {
        e.extensions.insert("GL_EXT_shader_explicit_arithmetic_types_int64");
    }
    let (m, k) = (e.dim(&form.m), e.dim(&form.k));
    // Start of the last K tile.
    let last = match form.k.as_const() {
        Some(inner) => format!("{}u", (inner - 1).max(0) / i64::from(tile.bk) * i64::from(tile.bk)),
        None => format!("({k} - 1u) / {0}u * {0}u", tile.bk),
    };
    let RegisterTile { bm, bn, tm, tn, bk } = tile;
    let parts = Parts {
        schedule,
        template: "matmul_fma.comp",
        grid,
        functions: String::new(),
        holes: context! {
            segments => segments, m => m, k => k, turned => turned, bm => bm, bn => bn, tm => tm, tn => tn, bk => bk,
            across => bn / tn, block => 8 * (bm / tm).min(4), vectors => tile.vectors(), strips => strips,
            left_stride => tile.left_stride(), right0 => bk * tile.left_stride(),
            last, empty => form.k.as_const().is_none_or(|k| k < 1), type => ty.name(), vector => ty.vector(),
            zero => ty.int_literal(0),
            step => ty.multiply_add("x[i / 4u][i % 4u]", "w[j / 4u][j % 4u]", &format!("sums[i * {tn}u + j]")),
        },
    };
    finish(e, parts)
}

/// The template's holes for one segment, and whether its epilogue reads results from shared memory.
fn segment_holes(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    segment: &Segment,
    batch: &Index,
    (ty, tile, bn, groups): (Glsl, RegisterTile, u32, String),
    buffers: &[usize],
) -> Result<(Hole, bool), CodegenError> {
    e.open(); // the segment
    let slice = |name: String, comment, own, (size, at, stride)| KTile {
        name,
        comment,
        own,
        size,
        at,
        stride,
        k: &form.k,
        bk: tile.bk,
        workgroup: tile.workgroup(),
        ty,
    };
    let left = slice("left".into(), None, ("m", &form.m, "row0"), (tile.bm, 0, tile.left_stride()));
    let mut at = |e: &mut Emitter<'_>, row: Index, k: Index| left_at(e, form, batch, &row, &k);
    let mut parts = vec![k_tile::text(e, form.lhs, &left, &mut at)?];
    for (i, id) in segment.anchors.iter().enumerate() {
        let rhs = e.body.node(*id).operands[1];
        let shape = e.body.ty(rhs).shape.clone();
        let comment = format!("// %{} = {}", id.0, e.body.node_text(*id));
        let first = tile.bk * tile.left_stride() + i as u32 * bn / 4;
        let own = ("n", &segment.n, "column0");
        let right = slice(format!("right{i}"), Some(comment), own, (bn, first, tile.bn / 4));
        let mut at = |e: &mut Emitter<'_>, column: Index, k: Index| {
            let mut at = batch_at(e, &form.batch, &shape, batch);
            at.extend([k, column]);
            at
        };
        parts.push(k_tile::text(e, rhs, &right, &mut at)?);
    }
    let join = |f: fn(&k_tile::Text) -> &str| parts.iter().map(f).collect::<Vec<_>>().join("\n");
    let (arrays, load, put) = (join(|p| &p.array), join(|p| &p.load), join(|p| &p.put));
    let mut epilogue = None;
    let anchors = segment.anchors.len() as u32;
    // The register tile holds the results of all anchors for the invocation's columns.
    if !segment.staged && anchors * bn == tile.bn && (tile.tn / 4).is_multiple_of(anchors) {
        let own = tile.tn / anchors;
        e.open(); // one row
        let depth = e.depth() + 1;
        for (i, id) in segment.anchors.iter().enumerate() {
            let at = match i as u32 * own {
                0 => "j".to_string(),
                first => format!("{first}u + j"),
            };
            let anchor = Anchor::Result { text: format!("sums[i * {}u + {at}]", tile.tn), depth };
            e.anchors.insert(*id, anchor);
        }
        let row = e.atom(&form.m, "m");
        e.open(); // one column
        let column = e.atom(&segment.n, "n");
        stores(e, form, segment, [batch, &row, &column], buffers)?;
        let (store, row) = (e.close(), e.close());
        if store.len() <= MAX_UNROLLED_LINES {
            epilogue = Some((store.join("\n"), row.join("\n"), own));
        }
    }
    let strips = epilogue.is_none();
    let (store, row, own) = match epilogue {
        Some(found) => found,
        None => {
            e.open();
            let depth = e.depth();
            for (i, id) in segment.anchors.iter().enumerate() {
                let row = format!("r * {}u + {}u", tile.bn, i as u32 * bn);
                let anchor =
                    Anchor::Tile { array: "result".into(), row, base: "column0".into(), depth, call: true };
                e.anchors.insert(*id, anchor);
            }
            let (row, column) = (e.atom(&form.m, "m"), e.atom(&segment.n, "n"));
            stores(e, form, segment, [batch, &row, &column], buffers)?;
            (e.close().join("\n"), String::new(), 0)
        }
    };
    let prelude = e.close().join("\n");
    let n = e.dim(&segment.n);
    let holes = context! {
        groups => groups, bn => bn, n => n, prelude => prelude, arrays => arrays, load => load, put => put,
        strips => strips, row => row, store => store, own => own,
    };
    Ok((holes, strips))
}
