//! Many times as a few numbers.

/// The spread of times of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Half of the runs took longer.
    pub median: f64,
    /// The shortest.
    pub min: f64,
    /// One run in ten was shorter.
    pub p10: f64,
    /// One run in ten was longer.
    pub p90: f64,
    /// How many runs.
    pub runs: usize,
}

impl Spread {
    /// Of these times; zeros if there are none.
    pub fn of(mut times: Vec<f64>) -> Spread {
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times.get(((times.len() as f64 - 1.0) * share).round() as usize).copied();
        Spread {
            median: at(0.5).unwrap_or(0.0),
            min: at(0.0).unwrap_or(0.0),
            p10: at(0.1).unwrap_or(0.0),
            p90: at(0.9).unwrap_or(0.0),
            runs: times.len(),
        }
    }

    /// All times multiplied.
    pub fn times(self, by: f64) -> Spread {
        Spread {
            median: self.median * by,
            min: self.min * by,
            p10: self.p10 * by,
            p90: self.p90 * by,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn quantiles_are_runs() {
        let spread = Spread::of((0..11).rev().map(f64::from).collect());
        assert_eq!(spread, Spread { median: 5.0, min: 0.0, p10: 1.0, p90: 9.0, runs: 11 });
        assert_eq!(Spread::of(vec![]), Spread::default());
        assert_eq!(Spread::of(vec![3.0]).times(2.0).p90, 6.0);
    }
}
