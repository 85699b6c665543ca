//! Tiled matmul: slices of both operands in shared memory, dequantized and transformed on the way in.

use minijinja::{Value as Hole, context};
use tallow_ir::form::{ContractionForm, Segment};
use tallow_ir::index::{AtomDef, Index};

use super::matvec::{accumulator, batch_at, columns_grid, left_at, segment_groups, stores};
use super::{Parts, finish, operand, whole};
use crate::emit::{Anchor, Emitter};
use crate::kernel::{CodegenError, Count, Kernel};
use crate::scalar::Glsl;

/// 8 x 8 invocations; each computes `BM / 8` rows of every eighth column.
const WORKGROUP: u32 = 64;

/// Columns of a tile, unless an epilogue needs more together.
const BN: u32 = 32;

/// Slice of the inner extent: two wide loads.
const BK: u32 = 16;

pub(crate) fn kernel(mut e: Emitter<'_>, form: &ContractionForm) -> Result<Kernel, CodegenError> {
    let (ty, _) = accumulator(&e, form)?;
    let widths = form.segments.iter().map(|s| (s.anchors.len() as u32, s.tile.max(BN)));
    let columns = widths.map(|(a, bn)| a * (bn + 1)).max().unwrap_or(BN);
    // As many rows as shared memory holds: left, right and result tiles.
    let bytes = |bm: u32| ty.bytes() * (bm * (BK + 1) + columns * BK + columns * bm);
    let has = e.caps.shared_memory_bytes;
    let bm = [32, 16, 8].into_iter().find(|bm| bytes(*bm) <= has);
    let bm = bm.ok_or_else(|| CodegenError::SharedMemory { what: "matmul".into(), needs: bytes(8), has })?;
    let batch = e.atom(&form.batch.numel(), "batch");
    let buffers: Vec<usize> = (0..e.body.outputs().len()).map(|o| e.result(o as u32)).collect();
    let limits = e.caps.max_workgroup_count;
    let tiles: Vec<u32> = form.segments.iter().map(|s| s.tile.max(BN)).collect();
    let grid = [
        columns_grid(form, &tiles, limits[0]),
        Count { value: form.m.clone(), per: bm, limit: limits[1] },
        Count { value: form.batch.numel(), per: 1, limit: limits[2] },
    ];
    whole("matmul", &grid)?;
    let (mut segments, mut text) = (vec![], String::new());
    for (segment, &bn) in form.segments.iter().zip(&tiles) {
        let n_groups = segment_groups(&mut e, segment, bn);
        segments.push(segment_holes(
            &mut e,
            form,
            segment,
            &batch,
            (ty, bm, bn, n_groups),
            &buffers,
            &mut text,
        )?);
    }
    let (m, k) = (e.dim(&form.m), e.dim(&form.k));
    let parts = Parts {
        kind: "matmul",
        template: "matmul.comp",
        workgroup: WORKGROUP,
        grid,
        functions: String::new(),
        text,
        holes: context! {
            segments => segments, m => m, k => k, bm => bm, bk => BK, rows => bm / 8,
            right_floats => columns * BK, tile_floats => columns * bm,
            type => ty.name(), zero => ty.int_literal(0),
            step => ty.multiply_add("w", "x[i]", &format!("acc[c * {}u + i]", bm / 8)),
        },
    };
    finish(e, parts)
}

fn segment_holes(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    segment: &Segment,
    batch: &Index,
    (ty, bm, bn, groups): (Glsl, u32, u32, String),
    buffers: &[usize],
    text: &mut String,
) -> Result<Hole, CodegenError> {
    e.open(); // the segment
    e.open(); // a slice of k
    e.open(); // an element of the left slice
    let (row, k) = (e.atom(&form.m, "m"), e.atom(&form.k, "k"));
    let at = left_at(e, form, batch, &row, &k);
    let x = e.value(form.lhs, &at)?;
    let x_lines = e.close().join("\n");
    let mut anchors = vec![];
    for (i, id) in segment.anchors.iter().enumerate() {
        let load = right(e, form, *id, batch, bn, (i as u32, ty))?;
        text.push_str(&load);
        anchors.push(context! { load => load, comment => format!("%{} = {}", id.0, e.body.node_text(*id)) });
    }
    let k_lines = e.close().join("\n");
    e.open(); // the epilogue
    let depth = e.depth();
    let (row, column) = (e.atom(&form.m, "m"), e.atom(&segment.n, "n"));
    for (i, id) in segment.anchors.iter().enumerate() {
        let row = format!("({}u + i) * {bn}u", i as u32 * bm);
        e.anchors.insert(
            *id,
            Anchor::Tile { array: "tile".into(), row, base: "column0".into(), depth, call: false },
        );
    }
    stores(e, form, segment, [batch, &row, &column], buffers)?;
    let store = e.close().join("\n");
    let prelude = e.close().join("\n");
    let n = e.dim(&segment.n);
    for part in [&x_lines, &k_lines, &x.text, &store, &prelude] {
        text.push_str(part);
    }
    let columns = segment.anchors.len() as u32 * bn / 8;
    Ok(context! {
        groups => groups, bn => bn, columns => columns, accs => columns * bm / 8, x_lines => x_lines,
        k_lines => k_lines, x => x.text, anchors => anchors, store => store, prelude => prelude, n => n,
    })
}

/// Lines that fill the right slice of anchor number `slot`: `right[slot][k][n]`.
fn right(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    id: tallow_ir::NodeId,
    batch: &Index,
    bn: u32,
    (slot, ty): (u32, Glsl),
) -> Result<String, CodegenError> {
    let rhs = e.body.node(id).operands[1];
    let shape = e.body.ty(rhs).shape.clone();
    let n_extent = shape.dims()[shape.rank() - 1].clone();
    let (n, k_end) = (e.dim(&n_extent), e.dim(&form.k));
    let base = slot * BK * (bn + 1);
    e.open();
    let column = e.atom(&n_extent, "n");
    let probe = e.atoms.fresh(&form.k, AtomDef::Free);
    let mut at = batch_at(e, &form.batch, &shape, batch);
    at.extend([e.atoms.index(probe), column.clone()]);
    let eights = form.k.as_const().is_some_and(|k| k % operand::WIDE == 0);
    let found = if eights { operand::wide(e, rhs, &at, probe) } else { None };
    let mut lines = vec![];
    if let Some((buffer, offset)) = found {
        let offset = e.index(&offset)?;
        let load = format!("load8_{}({} + k, w);", e.buffers[buffer].binding, offset.text);
        let inner = e.close();
        lines.push(format!("for (uint t = lane; t < {}u; t += {WORKGROUP}u) {{", bn * BK / 8));
        lines.push(format!("    const uint n = column0 + t / {}u, k = k0 + t % {}u * 8u;", BK / 8, BK / 8));
        lines.push("    float w[8];".into());
        lines.push("    [[unroll]] for (uint j = 0u; j < 8u; ++j) w[j] = 0.0;".into());
        lines.push(format!("    if (n < {n} && k < {k_end}) {{"));
        lines.extend(inner.into_iter().map(|l| format!("        {l}")));
        lines.push(format!("        {load}"));
        lines.push("    }".into());
        lines.push(format!(
            "    [[unroll]] for (uint j = 0u; j < 8u; ++j) right[{base}u + (k - k0 + j) * {}u + n - column0] = w[j];",
            bn + 1
        ));
        lines.push("}".into());
    } else {
        let k = e.atom(&form.k, "k");
        let mut at = batch_at(e, &form.batch, &shape, batch);
        at.extend([k, column]);
        let w = e.value(rhs, &at)?;
        let inner = e.close();
        lines.push(format!("for (uint t = lane; t < {}u; t += {WORKGROUP}u) {{", bn * BK));
        lines.push(format!("    const uint n = column0 + t % {bn}u, k = k0 + t / {bn}u;"));
        lines.push(format!("    {} w = {};", ty.name(), ty.int_literal(0)));
        lines.push(format!("    if (n < {n} && k < {k_end}) {{"));
        lines.extend(inner.into_iter().map(|l| format!("        {l}")));
        lines.push(format!("        w = {};", w.text));
        lines.push("    }".into());
        lines.push(format!("    right[{base}u + (k - k0) * {}u + n - column0] = w;", bn + 1));
        lines.push("}".into());
    }
    Ok(lines.join("\n"))
}
