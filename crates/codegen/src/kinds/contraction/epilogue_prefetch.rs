//! What the epilogue of a matvec reads from memory, asked for in front of the products: it is there when the sums are.

use tallow_ir::access::param_reads;
use tallow_ir::form::{ContractionForm, Segment, output_root, rounded_root};
use tallow_ir::index::{AtomDef, AtomId, Index};
use tallow_ir::{DType, Dim, Op, Shape, Value};

use crate::emit::Emitter;
use crate::kernel::CodegenError;

/// Most elements that an invocation asks for, as each takes a register all along.
const MOST: usize = 2;

/// Most results of a workgroup that are asked for: those of a subgroup, mostly.
const RESULTS: u32 = 32;

/// The row and column whose elements an invocation has asked for, and the variables that hold them. The epilogue goes by the same; no other
/// place may take them, even an element that is the same for all: only invocations with a result have asked.
pub(crate) struct EpiloguePrefetch {
    pub row: AtomId,
    pub column: AtomId,
    kept: Vec<((usize, Index), String)>,
}

impl EpiloguePrefetch {
    /// From here on elements at the row and column are read from the variables.
    pub fn show(&self, e: &mut Emitter<'_>) {
        e.kept.extend(self.kept.iter().cloned());
    }

    /// And from here on not any more.
    pub fn hide(&self, e: &mut Emitter<'_>) {
        e.kept.retain(|key, _| self.kept.iter().all(|(own, _)| own != key));
    }
}

/// Emits the loads of what invocation `t` reads in the epilogue of result `t` of the workgroup's tile, `m` rows of `tile` columns.
/// `None`, and nothing emitted, where it reads nothing, or too much, or there are many results: registers are then worth
/// more than the wait (H200, Q4_0, in a greedy step of the 8B shape: output and down projections 18 us less, gate and up 80 more).
pub(crate) fn issue(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    batch: &Index,
    (m, tiles, workgroup): (u32, &[u32], u32),
) -> Result<Option<EpiloguePrefetch>, CodegenError> {
    let ([segment], [tile]) = (form.segments.as_slice(), tiles) else { return Ok(None) };
    if m * tile > RESULTS.min(workgroup) {
        return Ok(None);
    }
    let [row, column] = [&form.m, &segment.n].map(|extent| e.atoms.fresh(extent, AtomDef::Free));
    let found = reads(e, form, segment, batch, [row, column]);
    if found.is_empty() || found.len() > MOST {
        return Ok(None);
    }
    e.open(); // the result
    e.bind_atom(row, "m");
    e.bind_atom(column, "n");
    let (mut declared, mut kept) = (vec![], vec![]);
    for (param, at) in found {
        let Op::Param { index, .. } = e.body.op(param) else { continue };
        let buffer = e.param(*index);
        let name = format!("early{}", kept.len());
        declared.push(format!("{name} = 0.0"));
        e.buffers[buffer].single = true;
        let text = e.index(&at)?.text;
        let text = e.buffers[buffer].load(&text, e.caps);
        e.line(format!("{name} = {text};  // %{} = {}", param.node.0, e.body.node_text(param.node)));
        kept.push(((buffer, at), name));
    }
    let lines = e.close();
    e.line("// What the epilogue reads, on its way while there are products.");
    e.line(format!("float {};", declared.join(", ")));
    e.line(format!("if (lane < {}u) {{", m * tile));
    let last = e.dim(&(&segment.n - &Dim::one()));
    e.line(format!("    const uint m = lane / {tile}u, n = min(group * {tile}u + lane % {tile}u, {last});"));
    lines.into_iter().for_each(|line| e.line(format!("    {line}")));
    e.line("}");
    Ok(Some(EpiloguePrefetch { row, column, kept }))
}

/// The plain elements that a result's epilogue reads at that row and column; none if it also reads others.
fn reads(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    segment: &Segment,
    batch: &Index,
    own: [AtomId; 2],
) -> Vec<(Value, Index)> {
    let all = Shape::new(vec![form.batch.numel(), form.m.clone(), segment.n.clone()]);
    let [row, column] = own.map(|id| e.atoms.index(id));
    let linear = e.atoms.flatten(&[batch.clone(), row, column], &all);
    let mut found = vec![];
    for output in &segment.outputs {
        let root = rounded_root(e.body, *output).unwrap_or_else(|| output_root(e.body, *output));
        let at = e.atoms.unflatten(&linear, &e.body.ty(root).shape);
        for read in param_reads(e.body, root, &at, &mut e.atoms) {
            if !found.contains(&read) {
                found.push(read);
            }
        }
    }
    let plain = |(param, at): &(Value, Index)| {
        e.atoms.roots(at).iter().all(|id| own.contains(id))
            && matches!(e.body.ty(*param).dtype, DType::F32 | DType::F16 | DType::BF16)
    };
    if found.iter().all(plain) { found } else { vec![] }
}
