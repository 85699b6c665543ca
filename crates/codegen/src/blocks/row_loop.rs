//! Loops of a workgroup's invocations over the elements of a row, or of several adjacent columns.

use tallow_ir::Dim;
use tallow_ir::index::{AtomDef, AtomId, Index};

use crate::emit::{Emitter, Group};
use crate::scalar::Glsl;

/// Which invocations reduce a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// All invocations of a workgroup of this size; each receives the result.
    Workgroup(u32),
    /// All invocations of a subgroup.
    Subgroup,
    /// One invocation.
    Alone,
    /// This many slices of a workgroup; adjacent invocations of a slice reduce adjacent columns.
    Slices(u32),
}

/// The loop over the elements of a row. All loops of a kernel use the same atoms, so that later loops find the
/// register-cached elements.
#[derive(Clone, Debug)]
pub(crate) struct RowLoop {
    pub share: Share,
    /// Elements of a row.
    pub inner: Dim,
    /// The index of the current row.
    pub row: Index,
    /// The index of the current element in the row.
    pub i: Index,
    /// Iterations, if the loop is unrolled because the row is register-cached.
    pub steps: Option<u32>,
    /// Workgroups per row or per tile of columns, if it is split; each takes its share of the iterations.
    pub parts: Option<u32>,
    /// A guard for the invocations whose column exists, if not all do.
    pub inside: Option<String>,
    /// The loop variable and its extent.
    step: (AtomId, Dim),
    /// The variable of the loop over a group's elements, the group's size, and whether its elements are columns.
    group: Option<(AtomId, u32, bool)>,
}

impl RowLoop {
    /// A loop over single elements.
    pub fn each(e: &mut Emitter<'_>, row: &Index, inner: &Dim, share: Share) -> RowLoop {
        let id = e.atoms.fresh(inner, AtomDef::Free);
        let (i, step) = (e.atoms.index(id), (id, inner.clone()));
        RowLoop {
            share,
            inner: inner.clone(),
            row: row.clone(),
            i,
            steps: None,
            parts: None,
            inside: None,
            step,
            group: None,
        }
    }

    /// A loop over `groups` groups of `size` adjacent elements.
    pub fn groups(e: &mut Emitter<'_>, row: &Index, groups: &Dim, size: u32, share: Share) -> RowLoop {
        let inner = groups * &Dim::constant(size.into());
        let (g, j) = (e.atoms.fresh(groups, AtomDef::Free), e.set_group(size));
        let i = e.atoms.add(&e.atoms.index(g).scale(&Dim::constant(size.into())), &e.atoms.index(j));
        let group = Some((j, size, false));
        RowLoop {
            share,
            inner,
            row: row.clone(),
            i,
            steps: None,
            parts: None,
            inside: None,
            step: (g, groups.clone()),
            group,
        }
    }

    /// A loop over the elements of `size` adjacent columns, those of column group `r`.
    pub fn columns(e: &mut Emitter<'_>, r: &Index, inner: &Dim, size: u32, slices: u32) -> RowLoop {
        let plain = RowLoop::each(e, r, inner, Share::Slices(slices));
        if size == 1 {
            return plain;
        }
        let j = e.set_group(size);
        let row = e.atoms.add(&r.scale(&Dim::constant(size.into())), &e.atoms.index(j));
        RowLoop { row, group: Some((j, size, true)), ..plain }
    }

    /// Columns per invocation, if more than one.
    pub fn columns_at_once(&self) -> Option<u32> {
        self.group.filter(|(_, _, columns)| *columns).map(|(_, size, _)| size)
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

    /// That variable in the loop over columns.
    pub fn column(&self, name: &str) -> String {
        if self.columns_at_once().is_some() { format!("{name}[j]") } else { name.to_string() }
    }

    fn name(&self) -> &'static str {
        match (self.share, self.group) {
            (Share::Workgroup(_), Some((_, _, false)) | None) if self.steps == Some(1) => "lane",
            (_, Some((_, _, false))) => "g",
            (_, Some((_, _, true)) | None) => "i",
        }
    }

    /// The expression for the register-cached element or group of one iteration, and the declaration for all
    /// iterations.
    pub fn kept(&self, ty: &str, name: &str, size: u32, steps: u32) -> (String, String) {
        let group = if size == 1 { String::new() } else { format!("[{size}]") };
        let step = match self.share {
            Share::Workgroup(_) if steps == 1 => {
                return (name.to_string(), format!("{ty} {name}{group};"));
            }
            Share::Workgroup(_) => "k",
            Share::Alone | Share::Subgroup | Share::Slices(_) => self.name(),
        };
        (format!("{name}[{step}]"), format!("{ty} {name}[{steps}]{group};"))
    }

    /// The loop variable.
    pub fn variable(&self) -> AtomId {
        self.step.0
    }

    /// Iterations per invocation, if constant.
    pub fn steps_each(&self) -> Option<u32> {
        let groups = u32::try_from(self.step.1.as_const()?).ok()?;
        match self.share {
            Share::Workgroup(size) => Some(groups.div_ceil(size)),
            Share::Slices(slices) => Some(groups.div_ceil(slices)),
            Share::Alone => Some(groups),
            Share::Subgroup => None,
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

    /// Opens the scopes of the loop.
    pub fn open(&self, e: &mut Emitter<'_>) {
        self.open_steps(e);
        self.open_group(e);
    }

    /// Opens the scope of the loop over groups.
    pub fn open_steps(&self, e: &mut Emitter<'_>) {
        e.open();
        e.bind_atom(self.step.0, self.name());
    }

    /// Closes them. Lines of `after` follow the loop over a group's elements. The whole loop runs only if the condition
    /// `only_if` holds.
    pub fn close(&self, e: &mut Emitter<'_>, after: Vec<String>, only_if: Option<&str>) {
        self.close_group(e, after);
        self.close_steps(e, only_if);
    }

    /// Closes the loop over groups.
    pub fn close_steps(&self, e: &mut Emitter<'_>, only_if: Option<&str>) {
        let (mut lines, name, end) = (e.close(), self.name(), e.dim(&self.step.1));
        let head = match (self.share, self.steps) {
            (Share::Workgroup(size), Some(steps)) => {
                let whole = self.step.1.as_const() == Some(i64::from(steps) * i64::from(size));
                let test = format!("if ({name} < {end})");
                if steps == 1 && whole {
                    lines.into_iter().for_each(|line| e.line(line));
                    return;
                }
                if steps == 1 {
                    test
                } else {
                    if !whole {
                        lines.iter_mut().for_each(|line| line.insert_str(0, "    "));
                        lines.insert(0, format!("{test} {{"));
                        lines.push("}".into());
                    }
                    if !whole || e.has_read(self.step.0) {
                        lines.insert(0, format!("const uint {name} = k * {size}u + lane;"));
                    }
                    format!("[[unroll]] for (uint k = 0u; k < {steps}u; ++k)")
                }
            }
            (Share::Workgroup(size), None) if let Some(parts) = self.parts => {
                let all = parts * size;
                format!("for (uint {name} = part * {size}u + lane; {name} < {end}; {name} += {all}u)")
            }
            (Share::Workgroup(size), None) => {
                format!("for (uint {name} = lane; {name} < {end}; {name} += {size}u)")
            }
            (Share::Slices(slices), _) if let Some(parts) = self.parts => {
                let all = parts * slices;
                format!("for (uint {name} = part * {slices}u + slice; {name} < {end}; {name} += {all}u)")
            }
            (Share::Slices(slices), _) => {
                format!("for (uint {name} = slice; {name} < {end}; {name} += {slices}u)")
            }
            (Share::Subgroup, _) => {
                let size = e.caps.scheduled_subgroup_size();
                format!("for (uint {name} = gl_SubgroupInvocationID; {name} < {end}; {name} += {size}u)")
            }
            (Share::Alone, Some(_)) => format!("[[unroll]] for (uint {name} = 0u; {name} < {end}; ++{name})"),
            (Share::Alone, None) => format!("for (uint {name} = 0u; {name} < {end}; ++{name})"),
        };
        if only_if.is_some() {
            e.open();
        }
        e.open();
        lines.into_iter().for_each(|line| e.line(line));
        e.close_block(&head);
        if let Some(test) = only_if {
            e.close_block(&format!("if ({test})"));
        }
    }

    /// Opens the scope of the loop over a group's elements, if there is one.
    pub fn open_group(&self, e: &mut Emitter<'_>) {
        if let Some((j, _, _)) = self.group {
            e.open();
            e.bind_atom(j, "j");
        }
    }

    /// Closes it; the lines of `after` follow the loop.
    pub fn close_group(&self, e: &mut Emitter<'_>, after: Vec<String>) {
        if let Some((_, size, _)) = self.group {
            e.close_block(&format!("[[unroll]] for (uint j = 0u; j < {size}u; ++j)"));
        }
        after.into_iter().for_each(|line| e.line(line));
    }
}
