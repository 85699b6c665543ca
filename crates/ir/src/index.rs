//! Index maps in one normal form: a sum of `coefficient * digit`, plus a constant.
//!
//! An *atom* is an index variable of a kernel (a row, an element of a row, a thread's column ...) with a
//! known extent. A *digit* is `(atom / div) % modulo`: a digit of the atom in a mixed radix. Every chain of
//! views maps coordinates to sums of digits times strides, because reshape is division and remainder of
//! sums whose parts do not overlap. Two maps are equal if their normal forms are. Where a remainder could
//! carry over (a slice that straddles a reshape), the sum becomes a new atom defined by it.

use std::collections::HashMap;

use crate::dim::{Bindings, Dim};
use crate::shape::Shape;

/// An index variable of an [`Atoms`] table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AtomId(pub u32);

/// Where the value of an atom comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AtomDef {
    /// An iteration variable.
    Free,
    /// Equal to an index that has no normal form as a sum of digits.
    Equal(Index),
    /// `index - start` if that lies in `0..extent`, else 0: the guarded coordinate of pad and concat.
    Window {
        /// The coordinate in the padded or concatenated axis.
        index: Index,
        /// Where this operand begins in it.
        start: Dim,
    },
    /// Read from memory: a gathered index, clamped below the extent, or the row that a state update writes if it is
    /// below the extent.
    Data,
}

/// An index variable: a value in `0..extent`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Atom {
    /// Exclusive bound.
    pub extent: Dim,
    /// Where the value comes from.
    pub def: AtomDef,
}

/// `(atom / div) % modulo`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digit {
    /// The variable.
    pub atom: AtomId,
    /// Divisor, 1 for none.
    pub div: Dim,
    /// Modulus, where the quotient can exceed it.
    pub modulo: Option<Dim>,
}

/// A sum of digits times coefficients, plus a constant. Terms are sorted and merged.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Index {
    /// `(digit, coefficient)`, sorted by digit.
    pub terms: Vec<(Digit, Dim)>,
    /// Constant part.
    pub constant: Dim,
}

impl Index {
    /// The constant `value`.
    pub fn constant(value: impl Into<Dim>) -> Self {
        Index { terms: vec![], constant: value.into() }
    }

    /// True if it is the constant 0.
    pub fn is_zero(&self) -> bool {
        self.terms.is_empty() && self.constant.is(0)
    }

    /// `self * factor`.
    pub fn scale(&self, factor: &Dim) -> Index {
        if factor.is(0) {
            return Index::default();
        }
        let terms = self.terms.iter().map(|(d, c)| (d.clone(), c * factor)).collect();
        Index { terms, constant: &self.constant * factor }
    }

    /// `self + offset`.
    pub fn offset(&self, offset: &Dim) -> Index {
        Index { terms: self.terms.clone(), constant: &self.constant + offset }
    }
}

/// The index variables of one kernel.
#[derive(Clone, Debug, Default)]
pub struct Atoms {
    atoms: Vec<Atom>,
    defined: HashMap<Atom, AtomId>,
}

impl Atoms {
    /// An atom by id.
    pub fn get(&self, id: AtomId) -> &Atom {
        &self.atoms[id.0 as usize]
    }

    /// Number of atoms.
    pub fn len(&self) -> usize {
        self.atoms.len()
    }

    /// True without atoms.
    pub fn is_empty(&self) -> bool {
        self.atoms.is_empty()
    }

    /// A new iteration variable (or memory-read index) in `0..extent`.
    pub fn fresh(&mut self, extent: &Dim, def: AtomDef) -> AtomId {
        self.atoms.push(Atom { extent: extent.clone(), def });
        AtomId(self.atoms.len() as u32 - 1)
    }

    /// A new iteration variable as an index; the constant 0 if its extent is 1.
    pub fn free(&mut self, extent: &Dim) -> Index {
        let id = self.fresh(extent, AtomDef::Free);
        self.index(id)
    }

    /// The index that is just `atom`.
    pub fn index(&self, atom: AtomId) -> Index {
        if self.get(atom).extent.is(1) {
            return Index::default();
        }
        let digit = Digit { atom, div: Dim::one(), modulo: None };
        Index { terms: vec![(digit, Dim::one())], constant: Dim::zero() }
    }

    /// The atom with this definition, the same for equal definitions.
    fn define(&mut self, extent: Dim, def: AtomDef) -> Index {
        let atom = Atom { extent, def };
        let id = match self.defined.get(&atom) {
            Some(id) => *id,
            None => {
                self.atoms.push(atom.clone());
                let id = AtomId(self.atoms.len() as u32 - 1);
                self.defined.insert(atom, id);
                id
            }
        };
        self.index(id)
    }

    /// `index - start`, or 0 outside `0..len`.
    pub fn window(&mut self, index: &Index, start: &Dim, len: &Dim) -> Index {
        if start.is(0) && self.max(index).is_some_and(|m| m.le(&(len - &Dim::one()))) {
            return index.clone();
        }
        if let (true, Some(i), Some(start), Some(len)) =
            (index.terms.is_empty(), index.constant.as_const(), start.as_const(), len.as_const())
        {
            let within = (0..len).contains(&(i - start));
            return Index::constant(if within { i - start } else { 0 });
        }
        self.define(len.clone(), AtomDef::Window { index: index.clone(), start: start.clone() })
    }

    /// Number of values that a digit takes (an upper bound).
    pub fn digit_extent(&self, digit: &Digit) -> Dim {
        if let Some(m) = &digit.modulo {
            return m.clone();
        }
        let extent = &self.get(digit.atom).extent;
        match (extent.div_exact(&digit.div), extent.as_const(), digit.div.as_const()) {
            (Some(exact), _, _) => exact,
            (None, Some(e), Some(d)) if d > 0 => Dim::constant((e + d - 1) / d),
            _ => extent.clone(),
        }
    }

    /// The largest value, if it has an expression.
    pub fn max(&self, index: &Index) -> Option<Dim> {
        let mut sum = index.constant.clone();
        for (digit, coef) in &index.terms {
            if coef.is_nonnegative() {
                sum = &sum + &(coef * &(&self.digit_extent(digit) - &Dim::one()));
            } else if coef.max_value() > 0 {
                return None;
            }
        }
        Some(sum)
    }

    /// `a + b`.
    pub fn add(&self, a: &Index, b: &Index) -> Index {
        let terms = a.terms.iter().chain(&b.terms).cloned().collect();
        self.normal(terms, &a.constant + &b.constant)
    }

    /// Merges equal digits and joins neighbouring ones:
    /// `c*q * ((a/(d*q)) % m)  +  c * ((a/d) % q)  =  c * ((a/d) % (q*m))`.
    fn normal(&self, mut terms: Vec<(Digit, Dim)>, constant: Dim) -> Index {
        'again: loop {
            terms.sort();
            let mut merged: Vec<(Digit, Dim)> = vec![];
            for (digit, coef) in terms {
                match merged.last_mut() {
                    Some((d, c)) if *d == digit => *c = &*c + &coef,
                    _ => merged.push((digit, coef)),
                }
            }
            merged.retain(|(_, c)| !c.is(0));
            terms = merged;
            for lo in 0..terms.len() {
                let (low, coef) = &terms[lo];
                let Some(q) = &low.modulo else { continue };
                let above = &low.div * q;
                let hi =
                    terms.iter().position(|(h, c)| h.atom == low.atom && h.div == above && *c == coef * q);
                if let Some(hi) = hi {
                    let modulo = terms[hi].0.modulo.as_ref().map(|m| q * m);
                    let joined = self.digit(low.atom, low.div.clone(), modulo);
                    let coef = coef.clone();
                    terms = terms
                        .iter()
                        .enumerate()
                        .filter(|(i, _)| *i != lo && *i != hi)
                        .map(|(_, t)| t.clone())
                        .collect();
                    terms.push((joined, coef));
                    continue 'again;
                }
            }
            return Index { terms, constant };
        }
    }

    /// A digit without a modulus that its range makes superfluous.
    fn digit(&self, atom: AtomId, div: Dim, modulo: Option<Dim>) -> Digit {
        let bare = Digit { atom, div: div.clone(), modulo: None };
        let needless = modulo.as_ref().is_none_or(|m| self.digit_extent(&bare).le(m));
        Digit { atom, div, modulo: if needless { None } else { modulo } }
    }

    /// `(index / d, index % d)`.
    pub fn div_mod(&mut self, index: &Index, d: &Dim) -> (Index, Index) {
        if d.is(1) {
            return (index.clone(), Index::default());
        }
        // An axis without elements has no coordinates; what is computed for it is never run.
        if d.is(0) {
            return (Index::default(), Index::default());
        }
        let below = |m: Option<Dim>| m.is_some_and(|m| m.le(&(d - &Dim::one())));
        if below(self.max(index)) && index.terms.iter().all(|(_, c)| c.is_nonnegative()) {
            return (Index::default(), index.clone());
        }
        let (mut quotient, mut rest) = (vec![], vec![]);
        for (digit, coef) in &index.terms {
            if let Some(k) = coef.div_exact(d) {
                quotient.push((digit.clone(), k));
            } else if let Some((low, high)) = d.div_exact(coef).and_then(|q| self.split(digit, &q)) {
                quotient.extend(high.map(|h| (h, Dim::one())));
                rest.push((low, coef.clone()));
            } else {
                rest.push((digit.clone(), coef.clone()));
            }
        }
        let (mut kq, mut kr) = (Dim::zero(), index.constant.clone());
        if let Some(exact) = kr.div_exact(d) {
            (kq, kr) = (exact, Dim::zero());
        } else if let (Some(k), Some(c)) = (kr.as_const(), d.as_const()) {
            (kq, kr) = (Dim::constant(k.div_euclid(c)), Dim::constant(k.rem_euclid(c)));
        }
        let rest = self.normal(rest, kr);
        let tame = |i: &Index| i.constant.is_nonnegative() && i.terms.iter().all(|(_, c)| c.is_nonnegative());
        if tame(&rest) && below(self.max(&rest)) {
            return (self.normal(quotient, kq), rest);
        }
        // The rest may carry: name the whole sum and take its digits.
        let extent = self.max(index).map_or_else(|| Dim::constant(i64::from(u32::MAX)), |m| &m + &Dim::one());
        let sum = self.define(extent, AtomDef::Equal(index.clone()));
        let Some((digit, _)) = sum.terms.first().cloned() else {
            return (Index::default(), Index::default());
        };
        let high = self.digit(digit.atom, d.clone(), None);
        let low = self.digit(digit.atom, Dim::one(), Some(d.clone()));
        (
            self.normal(vec![(high, Dim::one())], Dim::zero()),
            self.normal(vec![(low, Dim::one())], Dim::zero()),
        )
    }

    /// `digit = high * q + low` with `low < q`; no high part if the digit is always below `q`.
    fn split(&self, digit: &Digit, q: &Dim) -> Option<(Digit, Option<Digit>)> {
        if self.digit_extent(digit).le(q) {
            return Some((digit.clone(), None));
        }
        let high_modulo = match &digit.modulo {
            None => None,
            Some(m) => Some(m.div_exact(q)?),
        };
        let low = self.digit(digit.atom, digit.div.clone(), Some(q.clone()));
        let high = self.digit(digit.atom, &digit.div * q, high_modulo);
        Some((low, Some(high)))
    }

    /// Row-major position of coordinates `at` in `shape`.
    pub fn flatten(&self, at: &[Index], shape: &Shape) -> Index {
        let strides = shape.strides();
        at.iter().zip(&strides).fold(Index::default(), |sum, (i, s)| self.add(&sum, &i.scale(s)))
    }

    /// Coordinates in `shape` of row-major position `linear`.
    pub fn unflatten(&mut self, linear: &Index, shape: &Shape) -> Vec<Index> {
        let mut at = vec![Index::default(); shape.rank()];
        let mut rest = linear.clone();
        for axis in (0..shape.rank()).rev() {
            if shape.dims()[..axis].iter().all(|d| d.is(1)) {
                at[axis] = rest;
                break;
            }
            let (high, low) = self.div_mod(&rest, &shape.dims()[axis]);
            at[axis] = low;
            rest = high;
        }
        at
    }

    /// `base` if `index` is `base + k` with `base` a multiple of `multiple` that does not depend on `k`.
    pub fn base(&self, index: &Index, k: AtomId, multiple: i64) -> Option<Index> {
        let mut base = self.expand(index);
        let is_k = |(d, c): &(Digit, Dim)| d.atom == k && d.div.is(1) && d.modulo.is_none() && c.is(1);
        base.terms.remove(base.terms.iter().position(is_k)?);
        let multiple = Dim::constant(multiple);
        let aligned = base.constant.div_exact(&multiple).is_some()
            && base.terms.iter().all(|(_, c)| c.div_exact(&multiple).is_some());
        (aligned && !self.roots(&base).contains(&k)).then_some(base)
    }

    /// What `index` grows by from one `k` to the next, if it has a term of `k` alone.
    pub fn step(&self, index: &Index, k: AtomId) -> Option<Dim> {
        let is_k = |(d, _): &&(Digit, Dim)| d.atom == k && d.div.is(1) && d.modulo.is_none();
        self.expand(index).terms.iter().find(is_k).map(|(_, step)| step.clone())
    }

    /// The length of the runs of consecutive `k` whose elements are adjacent: the extent of `k` if `index` is `base + k`,
    /// the modulus of its lowest digit if that counts single elements, else 1.
    pub fn run(&self, index: &Index, k: AtomId) -> i64 {
        let steps = |(digit, step): &(Digit, Dim)| {
            (digit.atom == k && digit.div.is(1) && step.is(1)).then(|| match &digit.modulo {
                Some(modulo) => modulo.max_value(),
                None => self.get(k).extent.max_value(),
            })
        };
        self.expand(index).terms.iter().filter_map(steps).max().unwrap_or(1)
    }

    /// `index` with the sums in place of the atoms that were defined as equal to them.
    fn expand(&self, index: &Index) -> Index {
        let mut sum = Index::constant(index.constant.clone());
        for (digit, coef) in &index.terms {
            let term = match &self.get(digit.atom).def {
                AtomDef::Equal(definition) if digit.div.is(1) && digit.modulo.is_none() => {
                    self.expand(definition).scale(coef)
                }
                AtomDef::Equal(_) | AtomDef::Free | AtomDef::Window { .. } | AtomDef::Data => {
                    Index { terms: vec![(digit.clone(), coef.clone())], constant: Dim::zero() }
                }
            };
            sum = self.add(&sum, &term);
        }
        sum
    }

    /// The free and data atoms that an index depends on, through definitions.
    pub fn roots(&self, index: &Index) -> Vec<AtomId> {
        let mut found = vec![];
        let mut todo: Vec<AtomId> = index.terms.iter().map(|(d, _)| d.atom).collect();
        while let Some(id) = todo.pop() {
            match &self.get(id).def {
                AtomDef::Free | AtomDef::Data => found.push(id),
                AtomDef::Equal(i) | AtomDef::Window { index: i, .. } => {
                    todo.extend(i.terms.iter().map(|(d, _)| d.atom));
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// The digits of an atom on which an index depends, through definitions.
    pub fn digits(&self, index: &Index, atom: AtomId) -> Vec<Digit> {
        let (mut found, mut todo) = (vec![], vec![index]);
        while let Some(index) = todo.pop() {
            for (digit, _) in &index.terms {
                match &self.get(digit.atom).def {
                    AtomDef::Free | AtomDef::Data if digit.atom == atom => found.push(digit.clone()),
                    AtomDef::Free | AtomDef::Data => {}
                    AtomDef::Equal(index) | AtomDef::Window { index, .. } => todo.push(index),
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// The value for given iteration variables; `None` if it depends on memory or an unbound symbol.
    pub fn eval(
        &self,
        index: &Index,
        free: &dyn Fn(AtomId) -> Option<i64>,
        symbols: &Bindings,
    ) -> Option<i64> {
        let mut sum = index.constant.eval(symbols)?;
        for (digit, coef) in &index.terms {
            let atom = self.get(digit.atom);
            let value = match &atom.def {
                AtomDef::Free => free(digit.atom)?,
                AtomDef::Data => return None,
                AtomDef::Equal(i) => self.eval(i, free, symbols)?,
                AtomDef::Window { index, start } => {
                    let at = self.eval(index, free, symbols)? - start.eval(symbols)?;
                    if (0..atom.extent.eval(symbols)?).contains(&at) { at } else { 0 }
                }
            };
            let mut value = value.checked_div(digit.div.eval(symbols)?)?;
            if let Some(m) = &digit.modulo {
                value = value.checked_rem(m.eval(symbols)?)?;
            }
            sum += value * coef.eval(symbols)?;
        }
        Some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Symbol;

    #[test]
    fn reshape_round_trips_join_digits() {
        let mut a = Atoms::default();
        let seq: Dim = Symbol::new("seq", 512).into();
        for shapes in [
            vec![Shape::from([24]), Shape::from([2, 3, 4]), Shape::from([6, 4])],
            vec![Shape::new(vec![seq.clone(), 8.into()]), Shape::new(vec![seq.clone(), 2.into(), 4.into()])],
            vec![Shape::new(vec![8.into(), seq.clone(), 4.into()]), Shape::new(vec![&seq * &32.into()])],
        ] {
            let at: Vec<Index> = shapes[0].dims().iter().map(|d| a.free(d)).collect();
            let mut now = at.clone();
            for (i, to) in shapes.iter().enumerate().cycle().skip(1).take(shapes.len()) {
                let from = &shapes[(i + shapes.len() - 1) % shapes.len()];
                let linear = a.flatten(&now, from);
                now = a.unflatten(&linear, to);
            }
            assert_eq!(now, at, "{shapes:?}");
        }
    }

    #[test]
    fn digits_agree_with_arithmetic() {
        // Every (linear, shape) pair against plain division, also where a slice makes sums carry.
        let mut a = Atoms::default();
        let v = a.fresh(&60.into(), AtomDef::Free);
        let base = a.index(v);
        for offset in [0i64, 1, 4, 7] {
            for radix in [[3i64, 4, 6], [5, 4, 4], [2, 5, 7]] {
                let shape: Shape = radix.into_iter().collect();
                let linear = base.offset(&offset.into());
                let at = a.unflatten(&linear, &shape);
                for x in 0..60 {
                    let n = x + offset;
                    let want = [n / (radix[1] * radix[2]), n / radix[2] % radix[1], n % radix[2]];
                    for (i, w) in at.iter().zip(want) {
                        let got = a.eval(i, &|_| Some(x), &Bindings::new());
                        assert_eq!(got, Some(w), "offset {offset} radix {radix:?} x {x}");
                    }
                }
            }
        }
    }

    #[test]
    fn groups_start_at_multiples_of_their_size() {
        // Element `4 g + j` of tensors of several shapes, moved by several offsets: whole groups stay whole.
        for (shape, offset, aligned) in [
            ([6i64, 8], 0i64, true),
            ([6, 8], 8, true),
            ([6, 8], 2, false),
            // The last axis does not divide, but rows follow each other.
            ([16, 3], 0, true),
            ([16, 3], 3, false),
        ] {
            let mut a = Atoms::default();
            let (g, j) = (a.fresh(&12.into(), AtomDef::Free), a.fresh(&4.into(), AtomDef::Free));
            let linear = a.add(&a.index(g).scale(&4.into()), &a.index(j));
            let shape: Shape = shape.into_iter().collect();
            let at = a.unflatten(&linear, &shape);
            let read = a.flatten(&at, &shape).offset(&offset.into());
            let base = a.index(g).scale(&4.into()).offset(&offset.into());
            assert_eq!(a.base(&read, j, 4), aligned.then_some(base), "{shape} at {offset}");
            // Along another axis nothing lies side by side.
            let turned = a.flatten(&[at[1].clone(), at[0].clone()], &Shape::from([64, 64]));
            assert_eq!(a.base(&turned, j, 4), None);
        }
    }

    #[test]
    fn sums_of_windows_agree_with_arithmetic() {
        // Windows of a reshaped axis that is split again: sums of digits that are no decomposition, so that
        // the same position is reached from several pairs and a remainder may carry.
        for (count, size, stride, dilation) in
            [(5, 3, 1, 1), (4, 3, 2, 1), (3, 3, 3, 2), (3, 2, 5, 1), (4, 4, 1, 3)]
        {
            for (low, high) in [(2i64, 7i64), (3, 5), (4, 3), (1, 16), (7, 2)] {
                let mut a = Atoms::default();
                let v = a.fresh(&(count * size).into(), AtomDef::Free);
                let both = a.index(v);
                let (o, k) = a.div_mod(&both, &size.into());
                let sum = a.add(&o.scale(&stride.into()), &k.scale(&dilation.into()));
                let shifted = sum.offset(&1.into());
                let mirrored = sum.scale(&(-1).into()).offset(&40.into());
                for index in [sum, shifted, mirrored] {
                    let (rest, first) = a.div_mod(&index, &low.into());
                    let (third, second) = a.div_mod(&rest, &high.into());
                    for x in 0..count * size {
                        let eval = |i: &Index| a.eval(i, &|_| Some(x), &Bindings::new());
                        let n = eval(&index).unwrap();
                        let got = [&first, &second, &third].map(eval);
                        let want = [n % low, n / low % high, n / low / high].map(Some);
                        assert_eq!(got, want, "{count} {size} {stride} {dilation}: {n} by {low}, {high}");
                        assert!(a.max(&index).is_none_or(|m| m.as_const().unwrap() >= n));
                    }
                }
            }
        }
    }

    #[test]
    fn digits_are_found_through_definitions() {
        let mut a = Atoms::default();
        let (row, k) = (a.fresh(&60.into(), AtomDef::Free), a.fresh(&3.into(), AtomDef::Free));
        let linear = a.index(row);
        let at = a.unflatten(&linear, &Shape::from([3, 4, 5]));
        let moved = a.add(&at[2], &a.index(k));
        let padded = a.window(&moved, &1.into(), &5.into());
        let read = a.add(&padded, &at[0].scale(&5.into()));
        let of = |atom| -> Vec<(i64, i64)> {
            let value = |d: &Dim| d.as_const().unwrap();
            let digits = a.digits(&read, atom);
            digits.iter().map(|d| (value(&d.div), value(&a.digit_extent(d)))).collect()
        };
        assert_eq!((of(row), of(k)), (vec![(1, 5), (20, 3)], vec![(1, 3)]));
    }

    #[test]
    fn windows_guard() {
        let mut a = Atoms::default();
        let v = a.fresh(&10.into(), AtomDef::Free);
        let base = a.index(v);
        let w = a.window(&base, &3.into(), &4.into());
        let at = |x| a.eval(&w, &|_| Some(x), &Bindings::new());
        assert_eq!([at(2), at(3), at(6), at(7)], [Some(0), Some(0), Some(3), Some(0)]);
        assert_eq!(a.window(&base, &0.into(), &10.into()), base);
    }
}
