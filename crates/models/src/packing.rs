//! Which texts run together, and the inputs of such a run.

use crate::config::Pooling;
use crate::model_graph::{FIRST_ROWS, LAST_ROWS, TEXT_OF_ROW, TOKENS};
use crate::tokens::to_bytes;

/// Texts by run, given their lengths: together up to `rows` tokens, or one alone. Texts of like length run together, so
/// that few rows of a run are left over, and the order of equals is theirs.
pub(crate) fn runs(lengths: &[usize], rows: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|text| std::cmp::Reverse(lengths[*text]));
    let (mut runs, mut left) = (Vec::<Vec<usize>>::new(), 0);
    for text in order {
        match runs.last_mut() {
            Some(run) if lengths[text] <= left => run.push(text),
            Some(_) | None => {
                runs.push(vec![text]);
                left = rows.max(lengths[text]);
            }
        }
        left -= lengths[text];
    }
    runs
}

/// The inputs of a run of these texts.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    tokens: Vec<u32>,
    text_of_row: Vec<u32>,
    first_rows: Vec<u32>,
    last_rows: Vec<u32>,
}

impl Inputs {
    pub(crate) fn new(texts: &[&[u32]]) -> Inputs {
        let mut inputs = Inputs::default();
        for (number, text) in texts.iter().enumerate() {
            inputs.first_rows.push(inputs.tokens.len() as u32);
            inputs.tokens.extend(*text);
            inputs.text_of_row.resize(inputs.tokens.len(), number as u32);
            inputs.last_rows.push(inputs.tokens.len().saturating_sub(1) as u32);
        }
        inputs
    }

    /// Tokens of all texts.
    pub(crate) fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// The inputs of the graph with this pooling, by name.
    pub(crate) fn bytes(&self, pooling: Pooling) -> Vec<(&'static str, Vec<u8>)> {
        let mut found = vec![
            (TOKENS, to_bytes(&self.tokens)),
            (TEXT_OF_ROW, to_bytes(&self.text_of_row)),
            (FIRST_ROWS, to_bytes(&self.first_rows)),
        ];
        match pooling {
            Pooling::None | Pooling::Cls => (),
            Pooling::Mean | Pooling::Last => found.push((LAST_ROWS, to_bytes(&self.last_rows))),
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_take_all_texts_once_and_few_are_needed() {
        for (lengths, rows, expected) in [
            (vec![], 8, 0),
            (vec![3; 10], 1, 10),
            (vec![3; 10], 8, 5),
            (vec![9, 2, 4, 2, 9], 8, 3),
            (vec![10; 100], 512, 2),
            // 4950 tokens, for which 10 runs are the least.
            ((1..100).collect(), 512, 11),
        ] {
            let runs = runs(&lengths, rows);
            assert_eq!(runs.len(), expected, "{lengths:?}");
            let mut all: Vec<usize> = runs.concat();
            all.sort_unstable();
            assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
            for run in runs {
                let sum: usize = run.iter().map(|text| lengths[*text]).sum();
                assert!(sum <= rows || run.len() == 1, "{lengths:?}: {run:?}");
            }
        }
    }

    #[test]
    fn inputs_name_the_rows_of_each_text() {
        let inputs = Inputs::new(&[&[5, 6, 7], &[8], &[9, 9]]);
        assert_eq!((inputs.tokens.len(), inputs.rows()), (6, 6));
        assert_eq!(inputs.text_of_row, [0, 0, 0, 1, 2, 2]);
        assert_eq!((inputs.first_rows, inputs.last_rows), (vec![0, 3, 4], vec![2, 3, 5]));
    }
}
