//! Register caching of row elements.

use tallow_ir::access::param_reads;
use tallow_ir::index::{AtomDef, Index};
use tallow_ir::{NodeId, Op, Value};

use super::row_loop::RowLoop;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::storage::{Buffer, plain};

/// Most elements of one operand that an invocation caches in registers. Longer rows are not cached.
const MOST_ELEMENTS: i64 = 32;

/// Most elements that an invocation caches over all operands.
const MAX_ELEMENTS_IN_ALL: usize = 48;

/// Loads the groups that `roots` (values and the coordinates where the loop computes them) read into registers, if the
/// row fits. Memory is then read once, and all loads of an invocation are in flight before the first use.
pub(crate) fn load(
    e: &mut Emitter<'_>,
    row_loop: &mut RowLoop,
    roots: Vec<(Value, Vec<Index>)>,
) -> Result<(), CodegenError> {
    let Some(steps) = row_loop.steps_each(e.caps) else { return Ok(()) };
    let size = row_loop.group().map_or(1, |(_, size)| size);
    let each = (steps * size) as usize;
    if each == 0 || each > MOST_ELEMENTS as usize {
        return Ok(());
    }
    let mut reads: Vec<(Value, Index)> = vec![];
    for (value, at) in roots {
        for (param, linear) in param_reads(e.body, value, &at, &mut e.atoms) {
            let dtype = plain(e.body.ty(param).dtype);
            let base = match row_loop.group() {
                Some((j, size)) => {
                    e.atoms.base(&linear, j, size.into()).filter(|_| Buffer::groups(dtype, size))
                }
                None => Some(linear),
            };
            let Some(base) = base else { continue };
            let of_row = e.atoms.roots(&base);
            let data = of_row.iter().any(|a| e.atoms.get(*a).def == AtomDef::Data);
            if of_row.contains(&row_loop.variable()) && !data && !reads.contains(&(param, base.clone())) {
                reads.push((param, base));
            }
        }
    }
    reads.truncate(MAX_ELEMENTS_IN_ALL / each);
    if reads.is_empty() {
        return Ok(());
    }
    row_loop.steps = Some(steps);
    let mut loads: Vec<(NodeId, usize, Index, String)> = vec![];
    for (param, base) in reads {
        let Op::Param { index, .. } = e.body.op(param) else { continue };
        let (buffer, name) = (e.param(*index), e.fresh_name("x"));
        let ty = e.group_type(param.node, buffer)?;
        let (array, declaration) = row_loop.cached(e.uses().ty(ty), &name, size, steps);
        e.line(declaration);
        loads.push((param.node, buffer, base, array));
    }
    row_loop.each_step(e, None, |e| {
        loads.iter().try_for_each(|(node, buffer, base, name)| e.load_group(*node, *buffer, base, name))
    })?;
    e.cached.extend(loads.into_iter().map(|(_, buffer, base, name)| ((buffer, base), name)));
    Ok(())
}
