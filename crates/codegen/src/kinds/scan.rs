//! Scan (prefix sum and product, linear recurrence). The invocations of a row scan several consecutive elements each, then the totals of all
//! invocations; a row carries its running total from chunk to chunk.
//!
//! - A subgroup or a workgroup scans a row. With subgroup arithmetic, a chunk needs one barrier or none.
//! - One invocation scans a short row.
//! - Where memory is contiguous across rows, adjacent invocations scan adjacent rows.
//!
//! A linear recurrence combines pairs (`linear_scan.comp`), for which subgroups have no operation.

use minijinja::context;
use tallow_ir::form::{ScanExtents, ScanTile, SingleForm};
use tallow_ir::index::Index;
use tallow_ir::{Dim, Op, ScanKind, Shape};

use crate::assemble::finish;
use crate::blocks::tiles::Tiles;
use crate::blocks::vector_group::{self, Root};
use crate::emit::{Anchor, Emitter, Expr};
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::kernel::{Count, Kernel};
use crate::lines::{block, unrolled};
use crate::schedule::{Algorithm, Schedule, Tile};

/// What a scan kernel loops over.
struct Scan {
    kind: ScanKind,
    axis: usize,
    ty: Glsl,
    /// Extents of the operand, with the number of parts in place of the axis: one row of the kernel per element.
    rows: Shape,
    /// Elements of the axis.
    all: Dim,
    /// Elements of a part, which is the whole axis if it is not divided.
    part: Dim,
    /// Adjacent elements that are loaded and stored together.
    group: u32,
    /// Whether memory is contiguous across rows.
    across: bool,
    /// The size of the subgroups that scan a row together, if they do.
    lanes: Option<u32>,
    tile: ScanTile,
}

/// The schedule: rows per workgroup, if several, and elements per invocation.
pub(crate) fn schedule(e: &Emitter<'_>, form: &SingleForm) -> Result<Schedule, CodegenError> {
    let ScanTile { rows, slices, elements } = scan(e, form)?.tile;
    let tile = Tile { m: if rows > 1 { rows } else { 0 }, n: elements, k: 0 };
    Ok(Schedule { tile, ..Schedule::new(Algorithm::Scan, rows * slices) })
}

/// The kernel for [`schedule`].
pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &SingleForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let scan = scan(&e, form)?;
    let ScanTile { rows, slices, elements } = scan.tile;
    let count = scan.rows.numel();
    let per_tile = if rows > 1 { rows } else { 0 };
    let tiles = Tiles::of(&count, &e.dim(&count), per_tile);
    let ty = e.uses().ty(scan.ty);
    let ((before, [load, store]), row_lines) = e.scope(|e| {
        let row = e.atom(&count, if rows > 1 { "r" } else { "row" });
        let at = e.atoms.unflatten(&row, &scan.rows);
        let before = match e.body.node(form.node).operands.get(scan.kind.operands()) {
            Some(before) => e.value(*before, &at)?.text,
            None => scan.identity(),
        };
        let end = scan.end(e, &at)?;
        let load = scan.load(e, form, &at, &end)?;
        let store = scan.store(e, form, &at, &end)?;
        let store = match &tiles.inside {
            Some(inside) => block(&format!("if ({inside})"), store),
            None => store,
        };
        Ok((before, [load, store]))
    })?;
    let by_subgroup = scan.lanes.is_some();
    e.uses().subgroups |= by_subgroup;
    let lanes = scan.lanes.unwrap_or(1);
    // Totals that are combined in shared memory.
    let slots = match slices / lanes {
        1 => 0,
        _ if by_subgroup => slices / lanes,
        _ => schedule.workgroup,
    };
    // The last step may be partial.
    let steps = match scan.part.as_const() {
        Some(n) => format!("{}u", n.unsigned_abs().div_ceil(elements.into())),
        None => format!("({} + {}u) / {elements}u", e.dim(&scan.part), elements - 1),
    };
    let holes = context! {
        type => ty, slots, slices, elements, by_subgroup, lanes, subgroups => slices / lanes,
        coordinates => scan.coordinates(), name => if rows > 1 { "tile" } else { "row" }, count => tiles.count,
        row_lines => [tiles.r, row_lines].concat().join("\n"), before, steps, identity => scan.identity(), one => scan.ty.literal(1.0),
        load => load.join("\n"), store => store.join("\n"), sign => scan.sign(), word => scan.word(),
        stride => if scan.across { rows } else { 1 },
        last => match (scan.across, rows) {
            (_, 1) => format!("{}u", slices - 1),
            (true, _) => format!("{}u + lane", (slices - 1) * rows),
            (false, _) => format!("lane * {slices}u + {}u", slices - 1),
        },
    };
    let grid = Count::along_x(e.caps, count, rows);
    finish(e, schedule, scan.template(), grid, String::new(), holes)
}

fn scan(e: &Emitter<'_>, form: &SingleForm) -> Result<Scan, CodegenError> {
    let node = e.body.node(form.node);
    let Op::Scan { kind, axis, part } = node.op else {
        return Err(CodegenError::Node(e.body.node_text(form.node)));
    };
    let (dtype, dims) = (node.types[0].dtype, node.types[0].shape.dims());
    let unknown = || CodegenError::Dtype { what: e.body.node_text(form.node), dtype };
    let ty = Glsl::of(dtype, e.caps).ok_or_else(unknown)?;
    let all = dims[axis].clone();
    let parts = match node.operands.get(kind.operands()) {
        Some(before) => e.body.ty(*before).shape.dims()[axis].clone(),
        None => Dim::one(),
    };
    let part = part.map_or_else(|| all.clone(), Dim::from);
    let mut rows = dims.to_vec();
    rows[axis] = parts.clone();
    // A row of the kernel is a part of a row.
    let mut each = dims.to_vec();
    each[axis] = part.clone();
    each.insert(0, parts);
    let extents = ScanExtents::of(&each, axis + 1);
    let across = extents.inner > 1;
    // 64-bit subgroup operations need a separate device feature.
    let able = e.caps.subgroup_arithmetic && e.caps.has_fixed_subgroup_size() && ty.bytes() == 4 && !across;
    let able = able && kind != ScanKind::Linear;
    let lanes = able.then(|| e.caps.scheduled_subgroup_size());
    let mut scan = Scan {
        kind,
        axis,
        ty,
        rows: Shape::new(rows),
        all,
        part,
        group: 1,
        across,
        lanes,
        tile: extents.tile(e.caps, 1, lanes),
    };
    if !across {
        scan.group = scan.vector_width(e, form);
        scan.tile = extents.tile(e.caps, scan.group, lanes);
    }
    // A subgroup that has a row alone scans it in one step: no total is carried from one to the next.
    let ScanTile { slices, elements, .. } = scan.tile;
    let steps = extents.len.div_ceil(u64::from(slices) * u64::from(elements));
    if lanes == Some(slices) && steps > 1 {
        scan.lanes = None;
        scan.tile = extents.tile(e.caps, scan.group, None);
    }
    scan.lanes = scan.lanes.filter(|_| scan.tile.slices > 1);
    if kind == ScanKind::Linear {
        // Fewer slices where the pairs of all invocations, double-buffered, exceed shared memory.
        let bytes = |tile: ScanTile| u64::from(4 * tile.rows * tile.slices * ty.bytes());
        while scan.tile.slices > 1 && bytes(scan.tile) > u64::from(e.caps.shared_memory_bytes) {
            scan.tile.slices /= 2;
        }
    }
    Ok(scan)
}

impl Scan {
    fn template(&self) -> &'static str {
        match self.kind {
            ScanKind::Sum | ScanKind::Prod => "scan.comp",
            ScanKind::Linear => "linear_scan.comp",
        }
    }

    /// The operator that combines two elements; a linear recurrence adds them.
    fn sign(&self) -> &'static str {
        match self.kind {
            ScanKind::Sum | ScanKind::Linear => "+",
            ScanKind::Prod => "*",
        }
    }

    /// The name of the operator in subgroup operations.
    fn word(&self) -> &'static str {
        match self.kind {
            ScanKind::Sum | ScanKind::Linear => "Add",
            ScanKind::Prod => "Mul",
        }
    }

    fn identity(&self) -> String {
        self.ty.literal(match self.kind {
            ScanKind::Sum | ScanKind::Linear => 0.0,
            ScanKind::Prod => 1.0,
        })
    }

    /// The scan of an element alone, after the elements of earlier slices.
    fn total(&self) -> String {
        match (self.kind, self.tile.slices) {
            (_, 1) => "x[j]".to_string(),
            (ScanKind::Sum | ScanKind::Prod, _) => format!("first {} x[j]", self.sign()),
            (ScanKind::Linear, _) => "g > 0u ? c[j] * first + x[j] : x[j]".to_string(),
        }
    }

    fn is_grouped(&self) -> bool {
        self.group > 1
    }

    /// The coordinates of element `i` of the part that starts the row at `at`.
    fn at(&self, at: &[Index], i: &Index, atoms: &mut tallow_ir::index::Atoms) -> Vec<Index> {
        let mut at = at.to_vec();
        at[self.axis] = atoms.add(&at[self.axis].scale(&self.part), i);
        at
    }

    /// The vector width along a contiguous row.
    fn vector_width(&self, e: &Emitter<'_>, form: &SingleForm) -> u32 {
        let operands = &e.body.node(form.node).operands[..self.kind.operands()];
        vector_group::size(e.body, |atoms, j, size| {
            let size = Dim::constant(size.into());
            // The last part ends with the axis.
            self.all.div_exact(&size)?;
            let groups = self.part.div_exact(&size).filter(|n| !n.is(0))?;
            let row = atoms.free(&self.rows.numel());
            let row = atoms.unflatten(&row, &self.rows);
            let g = atoms.free(&groups);
            let i = atoms.add(&g.scale(&size), &atoms.index(j));
            let at = self.at(&row, &i, atoms);
            let read = operands.iter().map(|v| Root { value: *v, at: at.clone(), output: None });
            let written = Root { value: form.node.into(), at: at.clone(), output: Some(0) };
            Some(read.chain([written]).collect())
        })
    }

    /// The number of elements of the row at `at`. The last part ends with the axis.
    fn end(&self, e: &mut Emitter<'_>, at: &[Index]) -> Result<String, CodegenError> {
        let part = e.dim(&self.part);
        let parts = &self.rows.dims()[self.axis];
        if parts * &self.part == self.all {
            return Ok(part);
        }
        let (all, p) = (e.dim(&self.all), e.index(&at[self.axis])?.text);
        e.line(format!("const uint end = min({part}, {all} - ({p}) * {part});"));
        Ok("end".into())
    }

    /// The invocation's place: its row in a tile of several, and its slice of the row.
    fn coordinates(&self) -> String {
        let (rows, slices, at) = (self.tile.rows, self.tile.slices, "gl_LocalInvocationIndex");
        let (lane, slice) = match (self.lanes, self.across) {
            _ if slices == 1 => (at.to_string(), "0u".to_string()),
            (Some(lanes), _) if lanes == slices => ("gl_SubgroupID".into(), "gl_SubgroupInvocationID".into()),
            (Some(lanes), _) => {
                (String::new(), format!("gl_SubgroupID * {lanes}u + gl_SubgroupInvocationID"))
            }
            _ if rows == 1 => (String::new(), at.into()),
            (None, true) => (format!("{at} % {rows}u"), format!("{at} / {rows}u")),
            (None, false) => (format!("{at} / {slices}u"), format!("{at} % {slices}u")),
        };
        match rows {
            1 => format!("const uint slice = {slice};"),
            _ => format!("const uint lane = {lane}, slice = {slice};"),
        }
    }

    /// Emits what `body` does at the coordinates of each of the invocation's elements, which is number `j`. `body` returns
    /// the lines that follow the loop over a group.
    fn each(
        &self,
        e: &mut Emitter<'_>,
        at: &[Index],
        end: &str,
        body: impl FnOnce(&mut Emitter<'_>, &[Index]) -> Result<Vec<String>, CodegenError>,
    ) -> Result<Vec<String>, CodegenError> {
        let elements = self.tile.elements;
        if self.is_grouped() {
            let size = Dim::constant(self.group.into());
            let groups = self.part.div_exact(&size).unwrap_or_else(|| self.part.clone());
            let lines = e.scoped_lines(|e| {
                let g = e.atom(&groups, "g");
                e.store_each(g, self.group, |e, i| {
                    let at = self.at(at, &i, &mut e.atoms);
                    body(e, &at)
                })
            })?;
            return Ok(block(&format!("if (g * {elements}u < {end})"), lines));
        }
        let lines = e.scoped_lines(|e| {
            let i = e.atom(&self.part, "i");
            let at = self.at(at, &i, &mut e.atoms);
            let after = body(e, &at)?;
            e.lines(after);
            Ok(())
        })?;
        let lines = block(&format!("if (i < {end})"), lines);
        Ok(block(
            &unrolled("j", elements),
            [vec![format!("const uint i = g * {elements}u + j;")], lines].concat(),
        ))
    }

    fn load(
        &self,
        e: &mut Emitter<'_>,
        form: &SingleForm,
        at: &[Index],
        end: &str,
    ) -> Result<Vec<String>, CodegenError> {
        let names: &[&str] = match self.kind {
            ScanKind::Sum | ScanKind::Prod => &["x"],
            ScanKind::Linear => &["c", "x"],
        };
        let body = e.body;
        self.each(e, at, end, |e, at| {
            for (name, operand) in names.iter().zip(&body.node(form.node).operands) {
                let value = e.value(*operand, at)?.text;
                e.line(format!("{name}[j] = {value};"));
            }
            Ok(vec![])
        })
    }

    fn store(
        &self,
        e: &mut Emitter<'_>,
        form: &SingleForm,
        at: &[Index],
        end: &str,
    ) -> Result<Vec<String>, CodegenError> {
        let (result, ty) = (e.result(0), e.uses().ty(self.ty));
        let comment = format!("%{} = {}", form.node.0, e.body.node_text(form.node));
        self.each(e, at, end, |e, at| {
            let total = self.total();
            e.line(format!("const {ty} total = {total};  // {comment}"));
            let depth = e.depth();
            e.anchors.insert(form.node, Anchor::Var(Expr { text: "total".into(), depth }));
            Ok(Vec::from_iter(e.store_grouped(0, result, at)?))
        })
    }
}
