//! A part of the product in which every pair occurs.

use std::collections::BTreeSet;

use tallow_ir::DType;
use tallow_tests::rng::Rng;

use crate::class::Class;

/// A cell: row, element type, class.
pub type Cell = (usize, DType, Class);

/// Of the cells that there are, so many that each pair of row and element type, row and class, element type and class
/// occurs that occurs at all; other ones for another seed.
pub fn pairs(all: &[Cell], seed: u64) -> Vec<Cell> {
    let mut rng = Rng::new(seed);
    let mut order: Vec<Cell> = rng.permutation(all.len()).into_iter().map(|i| all[i]).collect();
    let mut seen = Seen::default();
    let mut chosen = vec![];
    // Those that show most first: three new pairs, then two, then one.
    for least in [3, 2, 1] {
        order.retain(|cell| {
            let takes = seen.new_pairs(cell) >= least;
            if takes {
                seen.add(cell);
                chosen.push(*cell);
            }
            !takes
        });
    }
    chosen.sort();
    chosen
}

/// The pairs that occurred.
#[derive(Default)]
struct Seen {
    types: BTreeSet<(usize, DType)>,
    classes: BTreeSet<(usize, Class)>,
    both: BTreeSet<(DType, Class)>,
}

impl Seen {
    fn new_pairs(&self, (row, dtype, class): &Cell) -> usize {
        usize::from(!self.types.contains(&(*row, *dtype)))
            + usize::from(!self.classes.contains(&(*row, *class)))
            + usize::from(!self.both.contains(&(*dtype, *class)))
    }

    fn add(&mut self, (row, dtype, class): &Cell) {
        self.types.insert((*row, *dtype));
        self.classes.insert((*row, *class));
        self.both.insert((*dtype, *class));
    }
}

#[test]
fn every_pair_is_covered_by_a_fraction() {
    let cells = |row| DType::SCALARS.into_iter().flat_map(move |d| Class::ALL.map(|c| (row, d, c)));
    // Some rows refuse some.
    let all: Vec<Cell> = (0..20)
        .flat_map(cells)
        .filter(|(r, d, c)| !(*r % 3 == 0 && d.is_int() && *c == Class::Many))
        .collect();
    for seed in 0..5 {
        let chosen = pairs(&all, seed);
        let mut seen = Seen::default();
        chosen.iter().for_each(|cell| seen.add(cell));
        assert!(all.iter().all(|cell| seen.new_pairs(cell) == 0));
        assert!(chosen.len() * 5 < all.len(), "{} of {}", chosen.len(), all.len());
        assert_eq!(chosen, pairs(&all, seed));
    }
    assert_ne!(pairs(&all, 1), pairs(&all, 2));
}
