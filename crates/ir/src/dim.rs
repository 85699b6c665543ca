//! Symbolic extents: a [`Dim`] is a polynomial with integer coefficients over [`Symbol`]s.
//!
//! Symbols stand for values known only when a graph runs (`seq`, `pos`); each states its minimum and its maximum, from
//! which buffers are sized. Division is exact or an error, so that a shape never rounds in silence.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Add, Mul, Sub};
use std::sync::Arc;

/// A named non-negative integer that is bound when a graph runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol {
    name: Arc<str>,
    min: u32,
    max: u32,
}

impl Symbol {
    /// A symbol `name` whose value lies in `0..=max`.
    pub fn new(name: &str, max: u32) -> Self {
        Symbol { name: name.into(), min: 0, max }
    }

    /// The same symbol with values in `min..=max`. What holds for them alone is then known of each run: an extent of at
    /// least 3 has windows of 3. A minimum above the maximum counts as the maximum.
    #[must_use]
    pub fn at_least(self, min: u32) -> Self {
        Symbol { min: min.min(self.max), ..self }
    }

    /// The name, unique within a graph.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The smallest value that it may take.
    pub fn least(&self) -> u32 {
        self.min
    }

    /// The largest value that it may take.
    pub fn limit(&self) -> u32 {
        self.max
    }

    /// Whether it may take a value.
    pub fn contains(&self, value: u64) -> bool {
        (u64::from(self.min)..=u64::from(self.max)).contains(&value)
    }
}

/// Values of symbols for one run, by name.
pub type Bindings = BTreeMap<String, u64>;

/// An extent or offset: a sum of `coefficient * product of symbols`.
///
/// The terms are sorted by monomial and hold no zero coefficient, so equal polynomials are equal values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Dim {
    /// Those with symbols. Most extents have none, and so take no memory of their own.
    terms: Box<[(Vec<Symbol>, i64)]>,
    constant: i64,
}

impl Dim {
    /// The constant `value`.
    pub fn constant(value: i64) -> Self {
        Dim { terms: Box::default(), constant: value }
    }

    /// The constant 1.
    pub fn one() -> Self {
        Dim::constant(1)
    }

    /// The constant 0.
    pub fn zero() -> Self {
        Dim::default()
    }

    /// The value, if no symbol occurs.
    pub fn as_const(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// True if it is the constant `value`.
    pub fn is(&self, value: i64) -> bool {
        self.as_const() == Some(value)
    }

    /// The symbols that occur, each once, sorted.
    pub fn symbols(&self) -> Vec<Symbol> {
        let mut all: Vec<Symbol> = self.terms.iter().flat_map(|(m, _)| m.iter().cloned()).collect();
        all.sort();
        all.dedup();
        all
    }

    /// The names of the symbols that occur, term by term.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().flat_map(|(monomial, _)| monomial.iter().map(Symbol::name))
    }

    fn from_map(map: BTreeMap<Vec<Symbol>, i64>, constant: i64) -> Self {
        Dim { terms: map.into_iter().filter(|(_, c)| *c != 0).collect(), constant }
    }

    /// The greatest term by degree, then by symbols: an order that products preserve, as division needs.
    fn leading(&self) -> Option<(&[Symbol], i64)> {
        let greatest = self.terms.iter().max_by(|(a, _), (b, _)| (a.len(), a).cmp(&(b.len(), b)));
        match greatest {
            Some((monomial, coef)) => Some((monomial, *coef)),
            None => (self.constant != 0).then_some((&[], self.constant)),
        }
    }

    /// `self / divisor` if that is a polynomial again, else `None`.
    pub fn div_exact(&self, divisor: &Dim) -> Option<Dim> {
        // Long division by the leading monomial: each step cancels it in the rest.
        let (lead, lead_coef) = divisor.leading()?;
        if let (Some(a), Some(b)) = (self.as_const(), divisor.as_const()) {
            return (a.checked_rem(b)? == 0).then(|| Dim::constant(a / b));
        }
        let mut rest = self.clone();
        let mut quotient = Dim::zero();
        while let Some((monomial, coef)) = rest.leading() {
            if coef % lead_coef != 0 {
                return None;
            }
            let mut left = monomial.to_vec();
            for symbol in lead {
                let at = left.iter().position(|s| s == symbol)?;
                left.remove(at);
            }
            let step = match left.is_empty() {
                true => Dim::constant(coef / lead_coef),
                false => Dim { terms: [(left, coef / lead_coef)].into(), constant: 0 },
            };
            rest = &rest - &(&step * divisor);
            quotient = &quotient + &step;
        }
        Some(quotient)
    }

    /// The greatest number that is known to divide all values; 0 if all are 0.
    pub fn divisor(&self) -> u64 {
        self.terms.iter().fold(self.constant.unsigned_abs(), |all, (_, coef)| gcd(all, coef.unsigned_abs()))
    }

    /// True if no value is negative (sufficient, not necessary).
    pub fn is_nonnegative(&self) -> bool {
        self.min_value() >= 0
    }

    /// True if `self <= other` for all values of the symbols (sufficient, not necessary).
    pub fn le(&self, other: &Dim) -> bool {
        match (self.as_const(), other.as_const()) {
            (Some(a), Some(b)) => a <= b,
            _ => (other - self).min_value() >= 0,
        }
    }

    /// The largest value over all bindings, saturating (an upper bound when several terms share a symbol).
    pub fn max_value(&self) -> i64 {
        self.extreme(|coefficient| coefficient > 0)
    }

    /// The smallest value over all bindings (a lower bound when several terms share a symbol).
    pub fn min_value(&self) -> i64 {
        self.extreme(|coefficient| coefficient < 0)
    }

    /// The sum of all terms with their symbols at the maximum where `takes_max` says so of the coefficient, else at the
    /// minimum.
    fn extreme(&self, takes_max: impl Fn(i64) -> bool) -> i64 {
        let mut sum = self.constant;
        for (monomial, coef) in &self.terms {
            let end = |s: &Symbol| if takes_max(*coef) { s.max } else { s.min };
            let product = monomial.iter().fold(1i64, |p, s| p.saturating_mul(i64::from(end(s))));
            sum = sum.saturating_add(coef.saturating_mul(product));
        }
        sum
    }

    /// The value under `bindings`; `None` if a symbol is unbound.
    pub fn eval(&self, bindings: &Bindings) -> Option<i64> {
        self.eval_with(|symbol| bindings.get(symbol.name()).copied())
    }

    /// The value where `value_of` gives those of symbols; `None` if it gives none, or the value overflows.
    pub fn eval_with(&self, value_of: impl Fn(&Symbol) -> Option<u64>) -> Option<i64> {
        let mut sum = self.constant;
        for (monomial, coef) in &self.terms {
            let mut product = *coef;
            for symbol in monomial {
                let value = value_of(symbol)?;
                product = product.checked_mul(i64::try_from(value).ok()?)?;
            }
            sum = sum.checked_add(product)?;
        }
        Some(sum)
    }

    /// The same polynomial of what `other` gives in place of each symbol.
    #[must_use]
    pub fn replaced(&self, other: impl Fn(&Symbol) -> Dim) -> Dim {
        let term = |(monomial, coefficient): &(Vec<Symbol>, i64)| {
            monomial.iter().fold(Dim::constant(*coefficient), |product, symbol| &product * &other(symbol))
        };
        self.terms.iter().map(term).fold(Dim::constant(self.constant), |sum, term| &sum + &term)
    }

    /// Parses what `Display` prints, looking symbols up by name.
    pub fn parse(text: &str, lookup: &dyn Fn(&str) -> Option<Symbol>) -> Result<Dim, String> {
        let bad = || format!("'{text}' is not an extent");
        let mut sum = Dim::zero();
        let spaced = text.replace('-', "+-");
        for (i, term) in spaced.split('+').enumerate() {
            let (sign, term) = match term.strip_prefix('-') {
                Some(rest) => (-1, rest),
                None => (1, term),
            };
            if term.is_empty() {
                if i == 0 && spaced.len() > 1 {
                    continue;
                }
                return Err(bad());
            }
            let mut product = Dim::constant(sign);
            for factor in term.split('*') {
                let value = match factor.parse::<i64>() {
                    Ok(v) => Dim::constant(v),
                    Err(_) => lookup(factor).map(Dim::from).ok_or_else(|| {
                        format!("extent '{text}' names '{factor}', which is neither a number nor a declared symbol")
                    })?,
                };
                product = product.checked_mul(&value).ok_or_else(bad)?;
            }
            sum = &sum + &product;
        }
        Ok(sum)
    }

    /// `self * other`, or `None` where a coefficient overflows.
    pub fn checked_mul(&self, other: &Dim) -> Option<Dim> {
        let constant = self.constant.checked_mul(other.constant)?;
        let mut map = BTreeMap::new();
        if self.terms.is_empty() && other.terms.is_empty() {
            return Some(Dim::constant(constant));
        }
        let mut add = |monomial: Vec<Symbol>, a: i64, b: i64| {
            let slot = map.entry(monomial).or_insert(0i64);
            *slot = slot.checked_add(a.checked_mul(b)?)?;
            Some(())
        };
        for (ma, ca) in &self.terms {
            add(ma.clone(), *ca, other.constant)?;
            for (mb, cb) in &other.terms {
                let mut monomial = [ma.as_slice(), mb.as_slice()].concat();
                monomial.sort();
                add(monomial, *ca, *cb)?;
            }
        }
        for (mb, cb) in &other.terms {
            add(mb.clone(), self.constant, *cb)?;
        }
        Some(Dim::from_map(map, constant))
    }
}

impl From<Symbol> for Dim {
    fn from(symbol: Symbol) -> Self {
        Dim { terms: [(vec![symbol], 1)].into(), constant: 0 }
    }
}

impl From<&Symbol> for Dim {
    fn from(symbol: &Symbol) -> Self {
        symbol.clone().into()
    }
}

impl From<&Dim> for Dim {
    fn from(dim: &Dim) -> Self {
        dim.clone()
    }
}

macro_rules! dim_from_int {
    ($($int:ty),*) => {$(
        impl From<$int> for Dim {
            fn from(value: $int) -> Self {
                Dim::constant(i64::try_from(value).unwrap_or(i64::MAX))
            }
        }
    )*};
}
dim_from_int!(i32, u32, i64, u64, usize);

impl Add for &Dim {
    type Output = Dim;
    fn add(self, other: &Dim) -> Dim {
        let constant = self.constant.saturating_add(other.constant);
        if other.terms.is_empty() {
            return Dim { terms: self.terms.clone(), constant };
        }
        let mut map: BTreeMap<Vec<Symbol>, i64> = self.terms.iter().cloned().collect();
        for (monomial, coef) in &other.terms {
            let slot = map.entry(monomial.clone()).or_insert(0);
            *slot = slot.saturating_add(*coef);
        }
        Dim::from_map(map, constant)
    }
}

impl Sub for &Dim {
    type Output = Dim;
    fn sub(self, other: &Dim) -> Dim {
        self + &(other * &Dim::constant(-1))
    }
}

impl Mul for &Dim {
    type Output = Dim;
    /// Saturates: verified shapes are far below the limit, and a saturated extent fails every check.
    fn mul(self, other: &Dim) -> Dim {
        self.checked_mul(other).unwrap_or_else(|| Dim::constant(i64::MAX))
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Greatest monomial first, the constant last: `4*seq+1`.
        let constant =
            (self.constant != 0 || self.terms.is_empty()).then_some((&[] as &[Symbol], self.constant));
        let terms = self.terms.iter().rev().map(|(monomial, coef)| (monomial.as_slice(), *coef));
        for (i, (monomial, coef)) in terms.chain(constant).enumerate() {
            if coef < 0 {
                f.write_str("-")?;
            } else if i > 0 {
                f.write_str("+")?;
            }
            let magnitude = coef.unsigned_abs();
            let names: Vec<&str> = monomial.iter().map(Symbol::name).collect();
            match (magnitude, names.is_empty()) {
                (_, true) => write!(f, "{magnitude}")?,
                (1, false) => f.write_str(&names.join("*"))?,
                (_, false) => write!(f, "{magnitude}*{}", names.join("*"))?,
            }
        }
        Ok(())
    }
}

/// The greatest number that divides both; the other one if one is 0.
fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s() -> Dim {
        Symbol::new("seq", 512).into()
    }

    #[test]
    fn arithmetic_and_division() {
        let p: Dim = Symbol::new("pos", 1024).into();
        let d = &(&s() * &Dim::constant(8)) + &(&p * &Dim::constant(4));
        assert_eq!(d.to_string(), "8*seq+4*pos");
        assert_eq!(d.div_exact(&4.into()).map(|d| d.to_string()), Some("2*seq+pos".into()));
        assert_eq!(d.div_exact(&8.into()), None);
        let square = &(&s() + &Dim::one()) * &(&s() + &Dim::one());
        assert_eq!(square.div_exact(&(&s() + &Dim::one())), Some(&s() + &Dim::one()));
        assert_eq!(square.div_exact(&Dim::zero()), None);
        let area = &(&p + &Dim::one()) * &s();
        assert_eq!(area.div_exact(&(&p + &Dim::one())), Some(s()));
        assert!(s().le(&(&s() + &p)));
        assert!(!p.le(&s()));
        assert_eq!(d.max_value(), 8 * 512 + 4 * 1024);
    }

    #[test]
    fn divisors_of_all_values() {
        let (n, p) = (s(), Dim::from(Symbol::new("pos", 1024)));
        let area = &(&(&n * &12.into()) * &p) + &(&p * &8.into());
        for (dim, divisor) in
            [(area.clone(), 4), (&area + &6.into(), 2), (n, 1), (24.into(), 24), (0.into(), 0)]
        {
            assert_eq!(dim.divisor(), divisor, "{dim}");
        }
        assert_eq!(Dim::constant(-8).divisor(), 8);
    }

    #[test]
    fn bounds_of_values() {
        let n: Dim = Symbol::new("n", 256).at_least(2).into();
        let less = &n - &Dim::one();
        assert_eq!((less.min_value(), less.max_value()), (1, 255));
        assert!(less.is_nonnegative() && !(&s() - &Dim::one()).is_nonnegative());
        let rest = &Dim::constant(256) - &n;
        assert_eq!((rest.min_value(), rest.max_value()), (0, 254));
        assert!(Dim::constant(2).le(&n) && !Dim::constant(3).le(&n));
        assert_eq!((&(&n * &n) - &n).min_value(), 4 - 256);
        assert_eq!(Symbol::new("n", 1).at_least(2).least(), 1);
    }

    #[test]
    fn text_round_trip() {
        let lookup = |name: &str| (name == "seq").then(|| Symbol::new("seq", 512));
        for text in ["0", "7", "seq", "4*seq+1", "seq*seq-3", "-seq+2"] {
            assert_eq!(Dim::parse(text, &lookup).map(|d| d.to_string()), Ok(text.to_string()));
        }
        for bad in ["", "+", "seq+", "len", "4**seq", "*"] {
            assert!(Dim::parse(bad, &lookup).is_err(), "{bad}");
        }
    }
}
