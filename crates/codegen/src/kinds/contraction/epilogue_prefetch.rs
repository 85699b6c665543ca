//! Epilogue prefetch of a matvec: loads of the epilogue's operands are issued before the products, which hide their
//! latency.

use tallow_ir::access::param_reads;
use tallow_ir::form::{Segment, output_root, quantized_root};
use tallow_ir::index::{AtomDef, AtomId, Index};
use tallow_ir::{DType, Dim, Op, Value};

use super::plan::Matvec;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::lines::block;

/// Maximum number of elements that an invocation prefetches. Each occupies a register during the products.
const MOST: usize = 2;

/// Maximum number of results of a workgroup for which operands are prefetched: about one subgroup's worth.
const RESULTS: u32 = 32;

/// The epilogue operands that an invocation prefetched, and their coordinates.
///
/// The epilogue must use these row and column atoms. Code outside it must not read the variables, even for an element
/// that all results share: only invocations with a result have loaded them.
pub(crate) struct EpiloguePrefetch {
    pub row: AtomId,
    pub column: AtomId,
    cached: Vec<((usize, Index), String)>,
}

impl EpiloguePrefetch {
    /// From here on, reads at the row and column use the prefetched variables.
    pub fn show(&self, e: &mut Emitter<'_>) {
        e.cached.extend(self.cached.iter().cloned());
    }

    /// From here on, reads load from memory again.
    pub fn hide(&self, e: &mut Emitter<'_>) {
        e.cached.retain(|key, _| self.cached.iter().all(|(own, _)| own != key));
    }
}

/// Emits the loads of the operands that invocation `t` needs for the epilogue of result `t` of a tile.
///
/// Returns `None` and emits nothing if the epilogue reads nothing or too much, if there are several segments, or if the
/// tile has many results. With many results, the registers are worth more than the hidden latency (H200, Q4_0, greedy
/// decode step of the 8B shape: prefetching saves 18 us in the output and down projections, but costs 80 us in gate and
/// up).
pub(crate) fn issue(e: &mut Emitter<'_>, mv: &Matvec<'_>) -> Result<Option<EpiloguePrefetch>, CodegenError> {
    let ([segment], [tile]) = (mv.form.segments.as_slice(), mv.tiles.as_slice()) else { return Ok(None) };
    if mv.m * tile > RESULTS.min(mv.workgroup) {
        return Ok(None);
    }
    let [row, column] = [&mv.form.m, &segment.n].map(|extent| e.atoms.fresh(extent, AtomDef::Free));
    let found = reads(e, mv, segment, [row, column]);
    if found.is_empty() || found.len() > MOST {
        return Ok(None);
    }
    let (cached, loads) = e.scope(|e| {
        e.bind_atom(row, "m");
        e.bind_atom(column, "n");
        let mut cached = vec![];
        for (param, at) in found {
            let Op::Param { index, .. } = e.body.op(param) else { continue };
            let (buffer, name) = (e.param(*index), format!("early{}", cached.len()));
            let i = e.index(&at)?.text;
            let load = e.load(buffer, &i);
            e.line(format!("{name} = {load};  // %{} = {}", param.node.0, e.body.node_text(param.node)));
            cached.push(((buffer, at), name));
        }
        Ok(cached)
    })?;
    let declared: Vec<String> = cached.iter().map(|(_, name)| format!("{name} = 0.0")).collect();
    let last = e.dim(&(&segment.n - &Dim::one()));
    let m = format!("lane / {tile}u");
    let m = mv.existing(&m).unwrap_or(m);
    let place = format!("const uint m = {m}, n = min(group * {tile}u + lane % {tile}u, {last});");
    e.line("// Operands of the epilogue, in flight during the products.");
    e.line(format!("float {};", declared.join(", ")));
    e.lines(block(&format!("if (lane < {}u)", mv.m * tile), [vec![place], loads].concat()));
    Ok(Some(EpiloguePrefetch { row, column, cached }))
}

/// The elements that the epilogue reads at the row and column. Empty if any of its reads depends on other coordinates,
/// or is not f32, f16 or bf16.
fn reads(e: &mut Emitter<'_>, mv: &Matvec<'_>, segment: &Segment, own: [AtomId; 2]) -> Vec<(Value, Index)> {
    let [row, column] = own.map(|id| e.atoms.index(id));
    let mut found = vec![];
    for output in &segment.outputs {
        let at = [mv.batch.clone(), row.clone(), column.clone()];
        let linear = mv.form.element(segment, *output, at, &mut e.atoms);
        let root = quantized_root(e.body, *output).unwrap_or_else(|| output_root(e.body, *output));
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
