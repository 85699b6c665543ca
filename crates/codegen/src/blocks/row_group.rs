//! Groups of short rows that one invocation reduces: how many rows, and which.
//!
//! The windows of a convolution or a pool overlap, and its weights are the same for many windows. An invocation that
//! reduces several rows loads each such element once, and computes coordinates and padding tests once. The rows are
//! neighbours along one axis of the results. Mostly that is not the last one: adjacent invocations then still read
//! adjacent elements.

use std::collections::HashSet;

use tallow_ir::access::param_reads;
use tallow_ir::form::{RowForm, RowOutput};
use tallow_ir::index::{AtomDef, AtomId, Atoms, Digit, Index};
use tallow_ir::{Bindings, Dim, Graph, Output, Value};

use crate::storage::{bytes, plain};

/// Most rows of an invocation. Each has an accumulator, and shared elements wait in registers.
const MOST_ROWS: i64 = 8;

/// Most elements that an invocation reduces, in an unrolled loop: four rows of 64.
const MOST_ELEMENTS: i64 = 256;

/// The rows that an invocation reduces: `size` rows, each `apart` rows after the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RowGroup {
    pub size: u32,
    apart: i64,
}

impl RowGroup {
    /// A single row.
    pub const ONE: RowGroup = RowGroup { size: 1, apart: 1 };

    /// Row `j` of group `g`: with `g = above * apart + below`, it is `(above * size + j) * apart + below`.
    pub fn row(self, g: &Index, j: &Index, atoms: &mut Atoms) -> Index {
        let apart = Dim::constant(self.apart);
        let (above, below) = atoms.div_mod(g, &apart);
        let first = atoms.add(&above.scale(&(&apart * &Dim::from(i64::from(self.size)))), &below);
        atoms.add(&first, &j.scale(&apart))
    }

    /// Whether the rows of a group are adjacent, so that vectors of them may be loaded and stored.
    pub fn is_vector(self) -> bool {
        self.size > 1 && self.size.is_power_of_two() && self.apart == 1
    }

    /// Groups of `rows` rows, if they are whole.
    pub fn groups(self, rows: &Dim) -> Option<Dim> {
        rows.div_exact(&Dim::constant(self.apart * i64::from(self.size)))?;
        rows.div_exact(&Dim::constant(self.size.into()))
    }
}

/// The groups that the rows of a kernel allow, with their costs.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowGroups(Vec<(RowGroup, u64)>);

impl RowGroups {
    /// The groups for a form that writes one element per row, and reads at positions that do not depend on data.
    pub fn of(body: &Graph, form: &RowForm) -> RowGroups {
        let reads = Reads::of(body, form).filter(|_| form.outputs.iter().all(|o| *o == RowOutput::Row));
        let Some(reads) = reads else { return RowGroups::default() };
        let mut all = vec![RowGroup::ONE];
        for (apart, extent) in &reads.axes {
            let fits = |size: &i64| extent % size == 0 && size * reads.elements <= MOST_ELEMENTS;
            let groups =
                (2..=MOST_ROWS).filter(fits).map(|size| RowGroup { size: size as u32, apart: *apart });
            all.extend(groups.filter(|group| group.groups(&form.rows).is_some()));
        }
        let mut all: Vec<(RowGroup, u64)> =
            all.into_iter().filter_map(|group| Some((group, reads.cost(group)?))).collect();
        all.sort_by_key(|(group, cost)| (group.size, *cost));
        RowGroups(all)
    }

    /// The group of at most `most` rows with the least cost per row. A larger group takes more registers and leaves fewer
    /// invocations, so it must save an eighth.
    pub fn best(&self, most: u32) -> RowGroup {
        let mut all = self.0.iter().filter(|(group, _)| group.size <= most);
        let Some(mut best) = all.next() else { return RowGroup::ONE };
        for other in all {
            if 8 * other.1 * u64::from(best.0.size) < 7 * best.1 * u64::from(other.0.size) {
                best = other;
            }
        }
        best.0
    }

    /// The group of `size` rows with the least cost.
    pub fn of_size(&self, size: u32) -> RowGroup {
        self.0.iter().find(|(group, _)| group.size == size).map_or(RowGroup::ONE, |(group, _)| *group)
    }
}

/// What the elements of a row read, to count the loads of a group.
struct Reads {
    atoms: Atoms,
    row: AtomId,
    inner: AtomId,
    /// The operand, the position in it, and bytes per element.
    all: Vec<(Value, Index, i64)>,
    /// Bytes of each output's elements.
    stores: Vec<i64>,
    /// The largest values of symbols.
    symbols: Bindings,
    elements: i64,
    /// The axes of the results: how many rows apart their neighbours are, and their extents.
    axes: Vec<(i64, i64)>,
}

impl Reads {
    fn of(body: &Graph, form: &RowForm) -> Option<Reads> {
        let mut atoms = Atoms::default();
        let [row, inner] = [&form.rows, &form.inner].map(|extent| atoms.fresh(extent, AtomDef::Free));
        let (r, i) = (atoms.index(row), atoms.index(inner));
        let mut all = vec![];
        // Kernels count in 32 bits. Positions times strides then fit into 64.
        u32::try_from(form.rows.max_value()).ok()?;
        for (id, rows) in &form.reduces {
            let at = rows.at(&r, &i, &mut atoms);
            for (param, index) in param_reads(body, body.node(*id).operands[0], &at, &mut atoms) {
                u32::try_from(body.ty(param).shape.max_numel()).ok()?;
                all.push((param, index, bytes(plain(body.ty(param).dtype)).into()));
            }
        }
        let digits = all.iter().flat_map(|(_, index, _)| atoms.digits(index, row));
        let axes = digits.flat_map(|digit| axes(&atoms, &digit, form.rows.max_value()));
        let mut axes: Vec<(i64, i64)> = axes.collect();
        axes.sort_unstable();
        axes.dedup_by_key(|(apart, _)| *apart);
        let of_output = |output: &Output| bytes(plain(body.ty(output.value).dtype)).into();
        Some(Reads {
            atoms,
            row,
            inner,
            all,
            stores: body.outputs().iter().map(of_output).collect(),
            symbols: body.symbols().map(|s| (s.name().to_string(), s.limit().into())).collect(),
            elements: form.inner.as_const()?,
            axes,
        })
    }

    /// Bytes of cache lines that an invocation's share of all loads and stores of a group occupies, in the middle of all
    /// axes.
    ///
    /// A subgroup of 32 reads a line of 128 bytes at a time: 4 bytes for each of its invocations, also if all read one
    /// element. It takes as many lines as adjacent invocations are apart, up to one for each.
    fn cost(&self, group: RowGroup) -> Option<u64> {
        let size = i64::from(group.size);
        // The next invocation has the next group along the last axis, or the next row.
        let next = if group.apart == 1 { size } else { 1 };
        let middle = |(apart, extent): &(i64, i64)| match *apart == group.apart {
            true => apart * ((extent - size - next).max(0) / 2),
            false => apart * ((extent - 1) / 2),
        };
        let first: i64 = self.axes.iter().map(middle).sum();
        let line = |apart: i64, bytes: i64| (apart.abs() * bytes).clamp(4, 128).unsigned_abs();
        let mut cost: u64 = self.stores.iter().map(|bytes| size.unsigned_abs() * line(next, *bytes)).sum();
        let mut seen = HashSet::new();
        for row in (0..size).map(|j| first + j * group.apart) {
            for i in 0..self.elements {
                for (param, index, bytes) in &self.all {
                    let (here, there) = (self.position(index, row, i)?, self.position(index, row + next, i)?);
                    if seen.insert((*param, here, there)) {
                        cost += line(there - here, *bytes);
                    }
                }
            }
        }
        Some(cost)
    }

    /// The position that element `i` of a row reads; `None` if it depends on data.
    fn position(&self, index: &Index, row: i64, i: i64) -> Option<i64> {
        let of = |atom: AtomId| {
            [(self.row, row), (self.inner, i)].iter().find(|(a, _)| *a == atom).map(|(_, v)| *v)
        };
        self.atoms.eval(index, &of, &self.symbols)
    }
}

/// The axes of the results that a digit of the row number tells: its own, and the outer ones as one.
fn axes(atoms: &Atoms, digit: &Digit, rows: i64) -> Vec<(i64, i64)> {
    let Some(apart) = digit.div.as_const() else { return vec![] };
    let extent = atoms.digit_extent(digit).max_value();
    let outer = digit.modulo.as_ref().and_then(Dim::as_const).map(|modulo| apart * modulo);
    let outer = outer.filter(|outer| *outer > 0).map(|outer| (outer, rows / outer));
    [(apart, extent)].into_iter().chain(outer).collect()
}
