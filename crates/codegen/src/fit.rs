//! The ranges of symbols that one choice of kernels suits.
//!
//! Kernels are chosen for the maxima of symbols: a matrix product of up to 256 rows by tiles that three rows would leave
//! empty. Where that is predicted to be slow, ranges are made narrower, so that a structure has a plan for few rows and
//! one for many. The host chooses by the values of the symbols, which it knows at each run.

mod multiples;

use std::cmp::Ordering;
use std::collections::HashMap;

use tallow_ir::{Bindings, DeviceCaps, General, Graph, Symbol};

use crate::error::CodegenError;
use crate::module::{Module, compile};
use crate::predict::Launches;

/// A plan with symbols may take as many times the predicted time of the plan with numbers.
const MOST_LOSS: f64 = 1.25;

/// A narrower range must be predicted to be so many times as fast, or it would cost a compilation for little.
const LEAST_GAIN: f64 = 1.1;

/// So many nodes at most are compiled to compare kernels: some milliseconds for each ten. Large graphs keep their ranges,
/// as their shaders alone take seconds.
const MOST_NODES: usize = 2048;

/// The graph with ranges of its symbols for which one choice of kernels is predicted to be good, with these values among
/// them.
///
/// # Errors
/// When a graph is invalid or needs what the device lacks.
pub fn fit(general: &General, values: &[u64], caps: &DeviceCaps) -> Result<General, CodegenError> {
    fit_within(general, values, caps, MOST_NODES)
}

/// [`fit`] that compiles at most so many nodes.
fn fit_within(
    general: &General,
    values: &[u64],
    caps: &DeviceCaps,
    nodes: usize,
) -> Result<General, CodegenError> {
    let mut search = Search { caps, nodes, literals: HashMap::new() };
    let Some(first) = search.candidate(general.clone())? else { return Ok(general.clone()) };
    let (first, values) = search.with_multiples(first, values)?;
    let fitted = search.with_maxima(first, &values)?;
    search.with_minima(&fitted, &values)
}

/// A graph with its kernels.
struct Candidate {
    general: General,
    module: Module,
}

struct Search<'a> {
    caps: &'a DeviceCaps,
    /// How many nodes may still be compiled.
    nodes: usize,
    /// Predicted microseconds of kernels for numbers, by the integers that the symbols stand for.
    literals: HashMap<Vec<u64>, f64>,
}

impl Search<'_> {
    /// The kernels of a graph, unless too many nodes were compiled.
    fn compiled(&mut self, graph: &Graph) -> Result<Option<Module>, CodegenError> {
        match self.nodes.checked_sub(graph.len().max(1)) {
            Some(left) => self.nodes = left,
            None => return Ok(None),
        }
        compile(graph, self.caps).map(Some)
    }

    fn candidate(&mut self, general: General) -> Result<Option<Candidate>, CodegenError> {
        let module = self.compiled(general.graph())?;
        Ok(module.map(|module| Candidate { general, module }))
    }

    /// Predicted microseconds at these values of the symbols, over those of kernels for these very numbers. 1 once too many
    /// nodes were compiled, so that the search ends.
    fn loss(&mut self, candidate: &Candidate, values: &[u64]) -> Result<f64, CodegenError> {
        let values = &candidate.general.served(values);
        let integers: Vec<u64> = candidate.general.multiples().zip(values).map(|(of, n)| of * n).collect();
        let literal = match self.literals.get(&integers) {
            Some(known) => *known,
            None => {
                let Some(module) = self.compiled(&candidate.general.at(values)?)? else { return Ok(1.0) };
                let time = predicted(&module, &Bindings::new(), self.caps);
                self.literals.insert(integers, time);
                time
            }
        };
        Ok(predicted_at(candidate, values, self.caps) / literal)
    }

    /// With smaller maxima, where the largest ones make kernels slow for these values.
    fn with_maxima(&mut self, first: Candidate, values: &[u64]) -> Result<Candidate, CodegenError> {
        let mut loss = self.loss(&first, values)?;
        let (mut next, mut fitted) = (first.general.clone(), first);
        while loss > MOST_LOSS {
            let halved = |(symbol, value): (&Symbol, &u64)| {
                let most = u64::from(symbol.limit() / 2).max(value.next_power_of_two());
                (symbol.least(), u32::try_from(most).unwrap_or(u32::MAX).min(symbol.limit()))
            };
            let ranges: Vec<(u32, u32)> = next.symbols().zip(values).map(halved).collect();
            if next.symbols().zip(&ranges).all(|(symbol, (_, most))| symbol.limit() == *most) {
                break;
            }
            next = next.within(&ranges)?;
            let Some(candidate) = self.candidate(next.clone())? else { break };
            let less = self.loss(&candidate, values)?;
            if less * LEAST_GAIN <= loss {
                (loss, fitted) = (less, candidate);
            }
        }
        Ok(fitted)
    }

    /// With larger minima, where the kernels are slow for small values, by powers of two. Minima are values that were looked at
    /// together: what is slow for few rows and for few columns is slowest for few of both.
    fn with_minima(&mut self, fitted: &Candidate, values: &[u64]) -> Result<General, CodegenError> {
        let from: Vec<u64> = fitted.general.symbols().map(|symbol| symbol.least().max(2).into()).collect();
        let mut least = values.to_vec();
        let all: Vec<usize> = (0..least.len()).collect();
        // All together first, so that none takes what the others could.
        let alone = all.iter().map(std::slice::from_ref).filter(|_| all.len() > 1);
        for some in std::iter::once(all.as_slice()).chain(alone) {
            while let Some(smaller) = halved(&least, some, &from) {
                // What needs no kernel has no loss, which is no number.
                if self.loss(fitted, &smaller)?.partial_cmp(&MOST_LOSS) != Some(Ordering::Greater) {
                    least = smaller;
                    continue;
                }
                // Tiles of a power of two suit all that is more than half of it, as a rule.
                for quarters in 0..4 {
                    let between = |at: usize| match some.contains(&at) {
                        true => least[at].min(smaller[at] + 1 + quarters * smaller[at] / 4),
                        false => least[at],
                    };
                    let next: Vec<u64> = (0..least.len()).map(between).collect();
                    if next != least && self.loss(fitted, &next)? <= MOST_LOSS {
                        least = next;
                        break;
                    }
                }
                break;
            }
        }
        let range = |((symbol, least), from): ((&Symbol, &u64), &u64)| match least <= from {
            true => (symbol.least(), symbol.limit()),
            false => (u32::try_from(*least).unwrap_or(u32::MAX), symbol.limit()),
        };
        let ranges: Vec<(u32, u32)> = fitted.general.symbols().zip(&least).zip(&from).map(range).collect();
        Ok(fitted.general.within(&ranges)?)
    }
}

/// These values with the largest power of two below in place of some, as far as that is no less than `from`; none if all
/// stay.
fn halved(values: &[u64], some: &[usize], from: &[u64]) -> Option<Vec<u64>> {
    let mut all = values.to_vec();
    for at in some {
        all[*at] = below(values[*at]).filter(|power| *power >= from[*at]).unwrap_or(values[*at]);
    }
    (all != values).then_some(all)
}

/// The largest power of two below a number.
fn below(number: u64) -> Option<u64> {
    number.checked_sub(1).and_then(u64::checked_ilog2).map(|log| 1 << log)
}

/// Predicted microseconds of all kernels at these values of the symbols.
fn predicted_at(candidate: &Candidate, values: &[u64], caps: &DeviceCaps) -> f64 {
    let names = candidate.general.symbols().map(|symbol| symbol.name().to_string());
    predicted(&candidate.module, &names.zip(values.iter().copied()).collect(), caps)
}

/// Predicted microseconds of all kernels.
fn predicted(module: &Module, bindings: &Bindings, caps: &DeviceCaps) -> f64 {
    let all = 0..module.launches.len();
    all.map(|launch| module.predict_us(launch, caps, bindings, Launches::ONE)).sum()
}

#[cfg(test)]
mod tests {
    use tallow_ir::{caps, generalize, structure, text};

    use super::*;

    /// The ranges of the symbols of a program, of which there are instances with these numbers for `{a}` and `{b}`, for the
    /// last of them.
    fn ranges(body: &str, sizes: [(i64, i64); 2], caps: &DeviceCaps) -> Vec<(u32, u32)> {
        of_last(body, sizes, |general, values| fit(general, values, caps))
    }

    fn of_last(
        body: &str,
        sizes: [(i64, i64); 2],
        fit: impl FnOnce(&General, &[u64]) -> Result<General, CodegenError>,
    ) -> Vec<(u32, u32)> {
        let fitted = fitted(body, sizes, fit);
        fitted.symbols().map(|symbol| (symbol.least(), symbol.limit())).collect()
    }

    fn fitted(
        body: &str,
        sizes: [(i64, i64); 2],
        fit: impl FnOnce(&General, &[u64]) -> Result<General, CodegenError>,
    ) -> General {
        let instance = |(a, b): (i64, i64)| {
            let body = body.replace("{a*b}", &(a * b).to_string());
            let body = body.replace("{a+2}", &(a + 2).to_string()).replace("{b+2}", &(b + 2).to_string());
            let body = body.replace("{a}", &a.to_string()).replace("{b}", &b.to_string());
            text::parse(&format!("graph \"g\" {{\n{body}\n}}")).unwrap()
        };
        let graphs = sizes.map(instance);
        let [first, last] =
            graphs.each_ref().map(|graph: &Graph| structure::integers(graph).collect::<Vec<_>>());
        let general = generalize(&graphs[1], &[&first]).unwrap();
        let mut values = vec![];
        assert!(general.bind(&last, &mut values));
        let fitted = fit(&general, &values).unwrap();
        assert!(fitted.bind(&last, &mut values), "{}", fitted.explain());
        fitted
    }

    const MATMUL: &str = "%0 = input \"x\" : f16[{a},1024]\n %1 = input \"w\" : f16[1024,4096]\n
        %2 = matmul %0 %1 : f16[{a},4096]\n return %2 as \"y\"";
    const BOTH: &str = "%0 = input \"x\" : f32[{a},512]\n %1 = input \"w\" : f32[512,{b}]\n
        %2 = matmul %0 %1 : f32[{a},{b}]\n return %2 as \"y\"";
    const ROWS: &str = "%0 = input \"x\" : f32[512,{a}]\n %1 = exp %0 : f32[512,{a}]\n
        %2 = reduce_sum %1 axes=[1] : f32[512]\n return %2 as \"y\"";

    #[test]
    fn few_rows_have_a_plan_of_their_own() {
        for (rows, range) in [(2, (2, 16)), (11, (2, 16)), (17, (17, 32)), (40, (33, 256)), (200, (33, 256))]
        {
            assert_eq!(ranges(MATMUL, [(9, 0), (rows, 0)], &caps::h200()), [range], "{rows} rows");
        }
        for (rows, range) in [(2, (2, 8)), (11, (9, 256)), (200, (9, 256))] {
            assert_eq!(ranges(MATMUL, [(9, 0), (rows, 0)], &caps::lavapipe()), [range], "{rows} rows");
        }
    }

    const TEXTS: &str = "%0 = input \"x\" : f32[{a},{b},512]\n %1 = input \"w\" : f32[512,1536]\n
        %2 = reshape %0 : f32[{a*b},512]\n %3 = matmul %2 %1 : f32[{a*b},1536]\n return %3 as \"y\"";

    /// The rows are texts times a length, which is four times its symbol. With one range as wide as the other allows alone,
    /// few short texts would have the tiles of many long ones.
    #[test]
    fn the_least_of_both_is_what_decides() {
        assert_eq!(ranges(TEXTS, [(9, 20), (60, 200)], &caps::h200()), [(16, 128), (21, 64)]);
    }

    #[test]
    fn two_symbols_have_ranges_each() {
        assert_eq!(ranges(BOTH, [(9, 11), (40, 50)], &caps::h200()), [(9, 256), (9, 256)]);
        assert_eq!(ranges(BOTH, [(9, 11), (5, 8)], &caps::lavapipe()), [(2, 8), (2, 8)]);
    }

    /// A product has three nodes; each range that is looked at and each number of rows is compiled.
    #[test]
    fn ranges_stay_where_too_many_nodes_would_be_compiled() {
        let within = |nodes| {
            of_last(MATMUL, [(9, 0), (2, 0)], |general, values| {
                fit_within(general, values, &caps::h200(), nodes)
            })
        };
        assert_eq!([within(2), within(5), within(2048)], [[(2, 256)], [(2, 256)], [(2, 16)]]);
    }

    #[test]
    fn what_any_length_suits_has_one_plan() {
        for length in [2, 30, 200] {
            assert_eq!(ranges(ROWS, [(9, 0), (length, 0)], &caps::h200()), [(2, 256)], "{length}");
        }
    }

    const IMAGES: &str = "%0 = input \"x\" : f32[1,64,{a},{b}]\n %1 = input \"k\" : f32[1,64,576]\n
        %2 = pad %0 axis=2 before=1 after=1 value=0 : f32[1,64,{a+2},{b}]\n
        %3 = pad %2 axis=3 before=1 after=1 value=0 : f32[1,64,{a+2},{b+2}]\n
        %4 = window %3 axis=3 size=3 stride=1 dilation=1 : f32[1,64,{a+2},{b},3]\n
        %5 = window %4 axis=2 size=3 stride=1 dilation=1 : f32[1,64,{a},3,{b},3]\n
        %6 = permute %5 [0,1,3,5,2,4] : f32[1,64,3,3,{a},{b}]\n
        %7 = reshape %6 : f32[1,576,{a*b}]\n %8 = matmul %1 %7 : f32[1,64,{a*b}]\n return %8 as \"y\"";

    /// Tiles load windows of rows of whole vectors together. Rows count for nothing.
    #[test]
    fn widths_of_whole_vectors_have_a_plan_of_their_own() {
        let h200 = caps::h200();
        let lines = |sizes| fitted(IMAGES, sizes, |general, values| fit(general, values, &h200)).explain();
        for (sizes, expected) in [
            ([(97, 127), (41, 53)], "not where n1 is a multiple of 4"),
            ([(97, 127), (41, 64)], ": 4*n1 is extent 3 of x"),
            ([(97, 127), (40, 72)], ": 4*n1 is extent 3 of x"),
            ([(97, 120), (41, 72)], ": 8*n1 is extent 3 of x"),
        ] {
            let text = lines(sizes);
            assert!(text.contains(expected), "{sizes:?}\n{text}");
        }
    }
}
