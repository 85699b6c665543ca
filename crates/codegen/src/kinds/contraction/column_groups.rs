//! Reductions over column groups of a matvec's results, such as a per-head norm. A subgroup reduces one group from the
//! tile in shared memory and writes the result to shared memory. Without subgroup operations, one invocation does it.

use minijinja::context;
use tallow_ir::form::{ContractionForm, reductions_fit_shared_memory};
use tallow_ir::{Dim, NodeId, Shape};

use super::plan::Matvec;
use crate::blocks::reduce_functions::Used;
use crate::blocks::reduction;
use crate::blocks::row_loop::{ReduceScope, RowLoop};
use crate::emit::{Anchor, Emitter, Place};
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::template::render;

/// The name, element type and length of each shared array of column-group reductions, for segments with these tiles.
fn arrays(
    e: &Emitter<'_>,
    form: &ContractionForm,
    tiles: &[u32],
) -> Result<Vec<(String, Glsl, u32)>, CodegenError> {
    let m = form.m.max_value() as u32;
    let mut found: Vec<(String, Glsl, u32)> = vec![];
    for (segment, tile) in form.segments.iter().zip(tiles) {
        let Some(runs) = &segment.column_groups else { continue };
        for (i, (id, _)) in runs.reduces.iter().enumerate() {
            let (name, ty) = array(e, i, *id)?;
            let count = m * (tile / runs.columns);
            match found.iter_mut().find(|(other, _, _)| *other == name) {
                Some((_, _, most)) => *most = count.max(*most),
                None => found.push((name, ty, count)),
            }
        }
    }
    Ok(found)
}

/// The name and element type of the array for a segment's `i`th reduction. Segments share arrays of one type.
fn array(e: &Emitter<'_>, i: usize, id: NodeId) -> Result<(String, Glsl), CodegenError> {
    let dtype = e.body.node(id).types[0].dtype;
    let refused = || CodegenError::Dtype { what: e.body.node_text(id), dtype };
    let ty = Glsl::of(dtype, e.caps).ok_or_else(refused)?;
    let name = if ty == Glsl::Float { format!("reduced{i}") } else { format!("reduced{i}_{}", ty.word()) };
    Ok((name, ty))
}

/// Declares the arrays; also returns their size in bytes.
pub(crate) fn declarations(
    e: &Emitter<'_>,
    form: &ContractionForm,
    tiles: &[u32],
) -> Result<(String, u32), CodegenError> {
    let (mut text, mut bytes) = (String::new(), 0);
    for (name, ty, count) in arrays(e, form, tiles)? {
        if text.is_empty() {
            text += "// Results that are reduced over groups of columns: [row][group].\n";
        }
        text += &format!("shared {} {name}[{count}];\n", ty.name());
        bytes += ty.bytes() * count;
    }
    Ok((text, bytes))
}

/// Emits the reductions of a segment over its tile. `e.anchors` must bind the matmul results at a depth one scope
/// inside this one. Binds each reduction to its array for the scope that is opened next.
pub(crate) fn lines(
    e: &mut Emitter<'_>,
    used: &mut Used,
    mv: &Matvec<'_>,
    number: usize,
) -> Result<String, CodegenError> {
    let (form, segment, tile) = (mv.form, &mv.form.segments[number], mv.tiles[number]);
    let Some(runs) = &segment.column_groups else { return Ok(String::new()) };
    let Some(count) = segment.n.div_exact(&Dim::constant(runs.columns.into())) else {
        return Err(CodegenError::Node(e.body.node_text(segment.anchors[0])));
    };
    if !reductions_fit_shared_memory(e.body, form, e.caps) {
        return Err(CodegenError::Node(e.body.node_text(segment.anchors[0])));
    }
    let all = Shape::new(vec![form.batch.numel(), form.m.clone(), count.clone()]);
    let side_by_side = tile / runs.columns;
    let by_subgroups = e.caps.has_fixed_subgroup_size()
        && mv.workgroup.is_multiple_of(e.caps.scheduled_subgroup_size())
        && runs.reduces.iter().all(|(id, _)| reduction::has_subgroup_op(e, *id));
    let scope = if by_subgroups { ReduceScope::Subgroup } else { ReduceScope::Invocation };
    let rows = mv.m * side_by_side;
    let at = if rows == 1 { "0u" } else { "r" };
    let store = |e: &mut Emitter<'_>| {
        for (i, (id, _)) in runs.reduces.iter().enumerate() {
            let (array, _) = array(e, i, *id)?;
            if let Some(Anchor::Var(v)) = e.anchors.get(id).cloned() {
                e.line(format!("{array}[{at}] = {};", v.text));
            }
        }
        Ok(())
    };
    let lines = e.scoped_lines(|e| {
        let (row, run) = (e.atom(&form.m, "m"), e.atom(&count, "run"));
        let row = e.atoms.flatten(&[mv.batch.clone(), row, run], &all);
        let row_loop = RowLoop::each(e, &row, &Dim::constant(runs.columns.into()), scope);
        reduction::emit_loop(e, used, &runs.reduces, &row_loop)?;
        if by_subgroups { e.block("if (gl_SubgroupInvocationID == 0u)", store) } else { store(e) }
    })?;
    let lines = lines.join("\n");
    // The depth of the epilogue's scope.
    let depth = e.depth() + 1;
    for (i, (id, _)) in runs.reduces.iter().enumerate() {
        let (array, _) = array(e, i, *id)?;
        let (all, columns) = (all.clone(), runs.columns);
        e.anchors.insert(*id, Anchor::Run(Box::new(Place { array, all, side_by_side, columns, depth })));
    }
    // The last tile may extend past the last column.
    let whole = segment.n.as_const().is_some_and(|n| n % i64::from(tile) == 0);
    let column = (!whole).then(|| format!("run < {}", e.dim(&count)));
    let row = mv.rows.as_ref().map(|rows| format!("m < {rows}"));
    let inside = column.into_iter().chain(row).collect::<Vec<String>>().join(" && ");
    let holes = context! {
        by_subgroups, rows, inside, lines, m => mv.m, side_by_side, columns => runs.columns, workgroup => mv.workgroup,
    };
    render("matvec_column_groups.glsl", holes)
}
