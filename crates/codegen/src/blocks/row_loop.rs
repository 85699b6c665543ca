//! Loops of a workgroup's invocations over the elements of a row, or of several adjacent columns.

use tallow_ir::index::{AtomDef, AtomId, Index};
use tallow_ir::{DeviceCaps, Dim};

use super::row_group::RowGroup;
use crate::emit::{Emitter, Group};
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::lines::{block, unrolled};

/// Which invocations reduce a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReduceScope {
    /// All invocations of a workgroup of this size; each receives the result.
    Workgroup(u32),
    /// All invocations of a subgroup.
    Subgroup,
    /// One invocation.
    Invocation,
    /// This many slices of a workgroup; adjacent invocations of a slice reduce adjacent columns.
    Slices(u32),
}

/// The loop over the elements of a row, one group of adjacent elements per iteration. All loops of a kernel use the same
/// atoms, so that later loops find the register-cached elements.
#[derive(Clone, Debug)]
pub(crate) struct RowLoop {
    pub scope: ReduceScope,
    /// Elements of a row, or of a column.
    pub inner: Dim,
    /// The index of the current row.
    pub row: Index,
    /// The index of the current element in the row.
    pub i: Index,
    /// Iterations per invocation, if the loop is unrolled because the row is register-cached.
    pub steps: Option<u32>,
    /// Workgroups per row or per tile of columns, if it is split. They divide the iterations among them.
    pub parts: Option<u32>,
    /// The condition that an invocation's column exists; `None` if it always does.
    pub inside: Option<String>,
    /// The loop variable and its extent.
    step: (AtomId, Dim),
    /// The variable of the loop over a group's elements, the group's size, and whether its elements are rows, of which
    /// each has accumulators, or columns.
    group: Option<(AtomId, u32, bool)>,
}

impl RowLoop {
    /// A loop over single elements.
    pub fn each(e: &mut Emitter<'_>, row: &Index, inner: &Dim, scope: ReduceScope) -> RowLoop {
        let id = e.atoms.fresh(inner, AtomDef::Free);
        RowLoop {
            scope,
            inner: inner.clone(),
            row: row.clone(),
            i: e.atoms.index(id),
            steps: None,
            parts: None,
            inside: None,
            step: (id, inner.clone()),
            group: None,
        }
    }

    /// A loop over `groups` groups of `size` adjacent elements.
    pub fn groups(e: &mut Emitter<'_>, row: &Index, groups: &Dim, size: u32, scope: ReduceScope) -> RowLoop {
        let plain = RowLoop::each(e, row, groups, scope);
        let (size_dim, j) = (Dim::constant(size.into()), e.set_group(size));
        let i = e.atoms.add(&plain.i.scale(&size_dim), &e.atoms.index(j));
        RowLoop { inner: groups * &size_dim, i, group: Some((j, size, false)), ..plain }
    }

    /// A loop over the elements of `size` adjacent columns, those of column group `r`.
    pub fn columns(e: &mut Emitter<'_>, r: &Index, inner: &Dim, size: u32, slices: u32) -> RowLoop {
        let plain = RowLoop::each(e, r, inner, ReduceScope::Slices(slices));
        if size == 1 {
            return plain;
        }
        let j = e.set_group(size);
        let row = e.atoms.add(&r.scale(&Dim::constant(size.into())), &e.atoms.index(j));
        RowLoop { row, group: Some((j, size, true)), ..plain }
    }

    /// A loop of one invocation over the elements of several rows, those of group `g`.
    pub fn rows(e: &mut Emitter<'_>, g: &Index, inner: &Dim, rows: RowGroup) -> RowLoop {
        let plain = RowLoop::each(e, g, inner, ReduceScope::Invocation);
        if rows.size == 1 {
            return plain;
        }
        let j = e.atoms.fresh(&Dim::constant(rows.size.into()), AtomDef::Free);
        e.group = rows.is_vector().then_some(Group { atom: j, size: rows.size });
        let each = e.atoms.index(j);
        let row = rows.row(g, &each, &mut e.atoms);
        RowLoop { row, group: Some((j, rows.size, true)), ..plain }
    }

    /// Columns or rows per invocation, if more than one.
    pub fn columns_at_once(&self) -> Option<u32> {
        self.group.filter(|(_, _, columns)| *columns).map(|(_, size, _)| size)
    }

    /// The variable of the loop over an invocation's columns or rows, if it has several.
    pub fn column_variable(&self) -> Option<AtomId> {
        self.group.filter(|(_, _, columns)| *columns).map(|(j, _, _)| j)
    }

    /// Declares a variable, or an array with one element per column.
    pub fn declare(&self, e: &mut Emitter<'_>, ty: Glsl, name: &str, start: &str) {
        let ty = e.uses().ty(ty);
        match self.columns_at_once() {
            None => e.line(format!("{ty} {name} = {start};")),
            Some(n) => {
                e.line(format!("{ty} {name}[{n}];"));
                e.line(format!("[[unroll]] for (uint j = 0u; j < {n}u; ++j) {name}[j] = {start};"));
            }
        }
    }

    /// The variable, or its element for the current column.
    pub fn column(&self, name: &str) -> String {
        if self.columns_at_once().is_some() { format!("{name}[j]") } else { name.to_string() }
    }

    /// The name of the loop variable.
    fn name(&self) -> &'static str {
        match (self.scope, self.group) {
            (ReduceScope::Workgroup(_) | ReduceScope::Subgroup, Some((_, _, false)) | None)
                if self.steps == Some(1) =>
            {
                "lane"
            }
            (_, Some((_, _, false))) => "g",
            (_, Some((_, _, true)) | None) => "i",
        }
    }

    /// The register-cached element (or group of `size`) of the current iteration as an expression, and the declaration
    /// of the array for all `steps` iterations.
    pub fn cached(&self, ty: &str, name: &str, size: u32, steps: u32) -> (String, String) {
        let group = if size == 1 { String::new() } else { format!("[{size}]") };
        let step = match self.scope {
            ReduceScope::Workgroup(_) | ReduceScope::Subgroup if steps == 1 => {
                return (name.to_string(), format!("{ty} {name}{group};"));
            }
            ReduceScope::Workgroup(_) | ReduceScope::Subgroup => "k",
            ReduceScope::Invocation | ReduceScope::Slices(_) => self.name(),
        };
        (format!("{name}[{step}]"), format!("{ty} {name}[{steps}]{group};"))
    }

    /// The atom of the loop variable.
    pub fn variable(&self) -> AtomId {
        self.step.0
    }

    /// Iterations per invocation, if constant.
    pub fn steps_each(&self, caps: &DeviceCaps) -> Option<u32> {
        let groups = u32::try_from(self.step.1.as_const()?).ok()?;
        match self.scope {
            ReduceScope::Workgroup(size) => Some(groups.div_ceil(size)),
            ReduceScope::Slices(slices) => Some(groups.div_ceil(slices)),
            ReduceScope::Invocation => Some(groups),
            ReduceScope::Subgroup => Some(groups.div_ceil(caps.scheduled_subgroup_size().max(1))),
        }
    }

    /// The variable of the loop over a group's elements, and the group's size.
    pub fn group(&self) -> Option<(AtomId, u32)> {
        self.group.map(|(j, size, _)| (j, size))
    }

    /// Runs `lines` with the emitter set to load in groups, as inside the loop over the row.
    pub fn in_groups<T>(&self, e: &mut Emitter<'_>, lines: impl FnOnce(&mut Emitter<'_>) -> T) -> T {
        e.group = self.group().map(|(atom, size)| Group { atom, size });
        let result = lines(e);
        e.group = None;
        result
    }

    /// Runs `emit` as one iteration of the loop over groups. Returns its result and the lines of the iteration.
    pub fn step<T>(
        &self,
        e: &mut Emitter<'_>,
        emit: impl FnOnce(&mut Emitter<'_>) -> Result<T, CodegenError>,
    ) -> Result<(T, Vec<String>), CodegenError> {
        e.scope(|e| {
            e.bind_atom(self.step.0, self.name());
            emit(e)
        })
    }

    /// Emits the loop over groups, which runs only if the condition `only_if` holds.
    pub fn each_step<T>(
        &self,
        e: &mut Emitter<'_>,
        only_if: Option<&str>,
        emit: impl FnOnce(&mut Emitter<'_>) -> Result<T, CodegenError>,
    ) -> Result<T, CodegenError> {
        let (result, lines) = self.step(e, emit)?;
        let (name, end) = (self.name(), e.dim(&self.step.1));
        let (place, size) = match self.scope {
            ReduceScope::Workgroup(size) => ("lane", size),
            ReduceScope::Slices(slices) => ("slice", slices),
            ReduceScope::Subgroup => ("gl_SubgroupInvocationID", e.caps.scheduled_subgroup_size()),
            ReduceScope::Invocation => ("0u", 1),
        };
        let first = match self.parts {
            Some(_) => format!("part * {size}u + {place}"),
            None => place.to_string(),
        };
        let lines = match (self.scope, self.steps) {
            (ReduceScope::Workgroup(_) | ReduceScope::Subgroup, Some(steps)) => {
                self.unrolled(e, lines, &end, [size, steps])
            }
            (ReduceScope::Invocation, Some(_)) => {
                block(&format!("[[unroll]] for (uint {name} = 0u; {name} < {end}; ++{name})"), lines)
            }
            (ReduceScope::Invocation, None) => {
                block(&format!("for (uint {name} = 0u; {name} < {end}; ++{name})"), lines)
            }
            (ReduceScope::Workgroup(_) | ReduceScope::Slices(_) | ReduceScope::Subgroup, _) => {
                let all = self.parts.unwrap_or(1) * size;
                block(&format!("for (uint {name} = {first}; {name} < {end}; {name} += {all}u)"), lines)
            }
        };
        e.lines(match only_if {
            Some(test) => block(&format!("if ({test})"), lines),
            None => lines,
        });
        Ok(result)
    }

    /// The `steps` iterations of a workgroup or subgroup of `size` invocations over a register-cached row that ends at `end`.
    fn unrolled(
        &self,
        e: &Emitter<'_>,
        mut lines: Vec<String>,
        end: &str,
        [size, steps]: [u32; 2],
    ) -> Vec<String> {
        let name = self.name();
        let whole = self.step.1.as_const() == Some(i64::from(steps) * i64::from(size));
        if !whole {
            lines = block(&format!("if ({name} < {end})"), lines);
        }
        if steps == 1 {
            return lines;
        }
        if !whole || e.has_read(self.step.0) {
            lines.insert(0, format!("const uint {name} = k * {size}u + lane;"));
        }
        block(&unrolled("k", steps), lines)
    }

    /// Emits the loop over a group's elements; without groups, the single element.
    pub fn each_of_group<T>(
        &self,
        e: &mut Emitter<'_>,
        emit: impl FnOnce(&mut Emitter<'_>) -> Result<T, CodegenError>,
    ) -> Result<T, CodegenError> {
        match self.group {
            Some((j, size, _)) => e.each_of_group(Group { atom: j, size }, emit),
            None => emit(e),
        }
    }

    /// Emits the loop over adjacent columns; a single column or row has none.
    pub fn each_column<T>(
        &self,
        e: &mut Emitter<'_>,
        emit: impl FnOnce(&mut Emitter<'_>) -> Result<T, CodegenError>,
    ) -> Result<T, CodegenError> {
        match self.columns_at_once() {
            Some(_) => self.each_of_group(e, emit),
            None => emit(e),
        }
    }
}
