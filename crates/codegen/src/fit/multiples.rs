//! Symbols in multiples of vectors.
//!
//! Kernels load vectors along an extent only where all of its values are multiples of one. A symbol that once was 97 is no
//! known multiple, so the plan that serves it is slow for 96. Where that is predicted, the multiples have a plan of their
//! own, whose symbols count vectors, and other plans leave them to it.

use std::cmp::Ordering;

use super::{Candidate, LEAST_GAIN, Search, below, predicted_at};
use crate::error::CodegenError;

/// Elements of vectors that kernels load, the shortest first: four of f32, eight of f16.
const VECTORS: [u64; 2] = [4, 8];

/// So much slower may be what is known to be a multiple of less, since it serves more.
const SAME: f64 = 1.01;

impl Search<'_> {
    /// A candidate in multiples of vectors, and the values of its symbols: where these values are multiples and it is
    /// predicted to be faster. Elsewhere `first`; without multiples, if it is slow for them. Half of the nodes that may be
    /// compiled are left for ranges.
    pub(super) fn with_multiples(
        &mut self,
        first: Candidate,
        values: &[u64],
    ) -> Result<(Candidate, Vec<u64>), CodegenError> {
        let for_ranges = self.nodes / 2;
        self.nodes -= for_ranges;
        let found = self.told_apart(first, values);
        self.nodes += for_ranges;
        found
    }

    fn told_apart(
        &mut self,
        first: Candidate,
        values: &[u64],
    ) -> Result<(Candidate, Vec<u64>), CodegenError> {
        if let Some((of, candidate)) = self.faster_in_multiples(&first, values)? {
            return Ok((candidate, counted(values, &of)));
        }
        // Powers of two, the values that minima are tried with.
        let least = first.general.symbols().map(|symbol| u64::from(symbol.least().max(2)));
        let power = |(value, least): (&u64, u64)| below(*value).filter(|n| *n >= least).unwrap_or(*value);
        let others: Vec<u64> = values.iter().zip(least).map(power).collect();
        match self.faster_in_multiples(&first, &others)? {
            // Some of these values are multiples, but not all that matter, or the above had found it.
            Some((of, _)) if !are_multiples(values, &of) => {
                let Candidate { general, module } = first;
                let first = Candidate { general: general.without_multiples(of), module };
                Ok((first, values.to_vec()))
            }
            _ => Ok((first, values.to_vec())),
        }
    }

    /// The multiples in which a candidate's symbols make it faster at these values, and the faster candidate. As few
    /// symbols as possible are in multiples.
    fn faster_in_multiples(
        &mut self,
        first: &Candidate,
        values: &[u64],
    ) -> Result<Option<(Vec<u32>, Candidate)>, CodegenError> {
        // Nothing is faster than kernels for these numbers.
        // What needs no kernel has no loss, which is no number.
        if self.loss(first, values)?.partial_cmp(&LEAST_GAIN) != Some(Ordering::Greater) {
            return Ok(None);
        }
        let mut time = predicted_at(first, values, self.caps);
        let mut best: Option<(Vec<u32>, Candidate)> = None;
        for vector in VECTORS {
            let missing = |(known, value): (u64, &u64)| {
                let of = vector / common(vector, known);
                if value.is_multiple_of(of) { of as u32 } else { 1 }
            };
            let of: Vec<u32> = first.general.multiples().zip(values).map(missing).collect();
            let Some((candidate, less)) = self.in_multiples(first, values, &of)? else { continue };
            if less * LEAST_GAIN <= time {
                (time, best) = (less, Some((of, candidate)));
            }
        }
        let Some((mut of, mut candidate)) = best else { return Ok(None) };
        for at in 0..of.len() {
            let fewer: Vec<u32> = of.iter().enumerate().map(|(i, n)| if i == at { 1 } else { *n }).collect();
            if fewer == of || fewer.iter().all(|n| *n == 1) {
                continue;
            }
            let Some((simpler, less)) = self.in_multiples(first, values, &fewer)? else { break };
            if less <= time * SAME {
                (of, candidate) = (fewer, simpler);
            }
        }
        Ok(Some((of, candidate)))
    }

    /// The candidate in multiples, and its predicted time; `None` if that needs no other graph, or too many nodes were
    /// compiled.
    fn in_multiples(
        &mut self,
        first: &Candidate,
        values: &[u64],
        of: &[u32],
    ) -> Result<Option<(Candidate, f64)>, CodegenError> {
        if of.iter().all(|n| *n == 1) {
            return Ok(None);
        }
        let candidate = self.candidate(first.general.in_multiples(of)?)?;
        Ok(candidate.map(|candidate| {
            let time = predicted_at(&candidate, &counted(values, of), self.caps);
            (candidate, time)
        }))
    }
}

fn are_multiples(values: &[u64], of: &[u32]) -> bool {
    values.iter().zip(of).all(|(value, of)| value.is_multiple_of((*of).into()))
}

/// The values of symbols that count so many each.
fn counted(values: &[u64], of: &[u32]) -> Vec<u64> {
    values.iter().zip(of).map(|(value, of)| value / u64::from((*of).max(1))).collect()
}

/// The largest power of two up to `vector`, itself one, that divides a number.
fn common(vector: u64, number: u64) -> u64 {
    1 << number.trailing_zeros().min(vector.trailing_zeros())
}
