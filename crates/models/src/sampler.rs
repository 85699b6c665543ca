//! Choosing the next token from logits.
//!
//! The steps, in this order (llama.cpp's): the repetition penalty changes the logits of recent tokens;
//! temperature 0 then takes the best token; otherwise *top-k* keeps the k best, *top-p* the fewest whose
//! probabilities reach p, *min-p* those of at least p times the best one's probability; the temperature
//! sharpens or flattens what is left, and one token is drawn. Equal logits rank by token number, so that a
//! seed gives the same text on every machine that computes the same logits.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::error::{Error, Result};

/// How tokens are chosen; the default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingOptions {
    /// Divides the logits before drawing; 0 takes the best token.
    pub temperature: f32,
    /// Draw from the so many best tokens only; 0 for all.
    pub top_k: usize,
    /// Draw from the fewest tokens whose probabilities sum to this (Holtzman et al., arXiv 1904.09751);
    /// 1 for all.
    pub top_p: f32,
    /// Draw from tokens with at least this share of the best one's probability (Nguyen et al., arXiv
    /// 2407.01082); 0 for all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens (Keskar et al., arXiv 1909.05858);
    /// 1 for none.
    pub repetition_penalty: f32,
    /// How many tokens are recent, prompt included.
    pub repetition_last_n: usize,
    /// Seed of the draws. One seed gives one text for one version of this program.
    pub seed: u64,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        SamplingOptions {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            repetition_last_n: 64,
            seed: 0,
        }
    }
}

impl SamplingOptions {
    /// Whether the token with the largest logit is taken, whatever came before: what a device can choose by itself.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 && (self.repetition_penalty == 1.0 || self.repetition_last_n == 0)
    }

    /// Checks that every option is in its range.
    ///
    /// # Errors
    /// [`Error::SamplingOption`], naming the first that is not.
    pub fn check(&self) -> Result<()> {
        let positive = self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite();
        for (option, value, fits, why) in [
            (
                "temperature",
                self.temperature,
                self.temperature >= 0.0 && self.temperature.is_finite(),
                "it must be 0 or more",
            ),
            ("top-p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "it must be above 0 and at most 1"),
            ("min-p", self.min_p, (0.0..=1.0).contains(&self.min_p), "it must be from 0 to 1"),
            ("repetition-penalty", self.repetition_penalty, positive, "it must be above 0"),
        ] {
            if !fits {
                return Err(Error::SamplingOption { option, value: value.to_string(), why });
            }
        }
        Ok(())
    }
}

/// Draws tokens; holds the random state of one text.
#[derive(Debug)]
pub struct Sampler {
    options: SamplingOptions,
    rng: StdRng,
}

/// A token that is still in the running.
#[derive(Clone, Copy)]
struct Candidate {
    token: u32,
    logit: f32,
}

impl Sampler {
    /// A sampler at the start of its seed's sequence.
    ///
    /// # Errors
    /// When an option is out of its range.
    pub fn new(options: SamplingOptions) -> Result<Sampler> {
        options.check()?;
        let rng = StdRng::seed_from_u64(options.seed);
        Ok(Sampler { options, rng })
    }

    /// The next token, given the logits of the whole vocabulary and all tokens so far.
    ///
    /// # Errors
    /// [`Error::NanLogit`] if a logit is NaN, [`Error::NoLogits`] if there are none.
    pub fn sample(&mut self, logits: &[f32], so_far: &[u32]) -> Result<u32> {
        if let Some(token) = logits.iter().position(|l| l.is_nan()) {
            return Err(Error::NanLogit { token });
        }
        let mut all: Vec<Candidate> =
            (0..).zip(logits).map(|(token, &logit)| Candidate { token, logit }).collect();
        self.penalize(&mut all, so_far);
        if self.options.temperature == 0.0 {
            let best = all.iter().copied().reduce(|a, b| if b.logit > a.logit { b } else { a });
            return best.map(|c| c.token).ok_or(Error::NoLogits);
        }
        self.retain_likely(&mut all);
        let weights = softmax(&all, self.options.temperature);
        let total: f64 = weights.iter().sum();
        let mut left = self.rng.random::<f64>() * total;
        for (candidate, weight) in all.iter().zip(&weights) {
            left -= weight;
            if left < 0.0 {
                return Ok(candidate.token);
            }
        }
        // Rounding may leave a little beyond the last one.
        all.last().map(|c| c.token).ok_or(Error::NoLogits)
    }

    fn penalize(&self, all: &mut [Candidate], so_far: &[u32]) {
        let penalty = self.options.repetition_penalty;
        if penalty == 1.0 {
            return;
        }
        let recent = so_far.len().saturating_sub(self.options.repetition_last_n);
        let mut tokens = so_far[recent..].to_vec();
        tokens.sort_unstable();
        tokens.dedup();
        for token in tokens {
            if let Some(c) = all.get_mut(token as usize) {
                c.logit = if c.logit > 0.0 { c.logit / penalty } else { c.logit * penalty };
            }
        }
    }

    /// Top-k, top-p, min-p; leaves the survivors sorted, the best first.
    fn retain_likely(&self, all: &mut Vec<Candidate>) {
        let o = &self.options;
        all.sort_by(|a, b| b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token)));
        if o.top_k > 0 {
            all.truncate(o.top_k);
        }
        if o.top_p < 1.0 {
            let weights = softmax(all, 1.0);
            let enough = weights.iter().sum::<f64>() * f64::from(o.top_p);
            let mut sum = 0.0;
            let reached = weights.iter().position(|w| {
                sum += w;
                sum >= enough
            });
            all.truncate(reached.map_or(all.len(), |last| last + 1));
        }
        if o.min_p > 0.0 {
            let weights = softmax(all, 1.0);
            let least = weights.first().map_or(0.0, |best| best * f64::from(o.min_p));
            all.truncate(weights.iter().take_while(|w| **w >= least).count());
        }
    }
}

/// `exp((logit - best) / temperature)` of each: probabilities but for a common factor.
fn softmax(all: &[Candidate], temperature: f32) -> Vec<f64> {
    let best = all.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
    // Where the best is infinite, the difference is NaN for equals of it, which weigh 1.
    let weigh = |c: &Candidate| {
        if c.logit == best { 1.0 } else { (f64::from(c.logit - best) / f64::from(temperature)).exp() }
    };
    all.iter().map(weigh).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(options: SamplingOptions, logits: &[f32], n: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(options).unwrap();
        (0..n).map(|_| sampler.sample(logits, &[]).unwrap()).collect()
    }

    fn warm() -> SamplingOptions {
        SamplingOptions { temperature: 1.0, ..SamplingOptions::default() }
    }

    #[test]
    fn greedy_takes_the_first_of_the_best() {
        assert_eq!(draws(SamplingOptions::default(), &[1.0, 3.0, 3.0, -1.0], 1), [1]);
        assert_eq!(draws(SamplingOptions::default(), &[f32::NEG_INFINITY, -5.0], 1), [1]);
    }

    #[test]
    fn frequencies_are_the_probabilities() {
        let logits: Vec<f32> = [0.5f32, 0.3, 0.2].iter().map(|p| p.ln()).collect();
        for (temperature, expected) in [(1.0, [0.5, 0.3, 0.2]), (0.5, [25.0 / 38.0, 9.0 / 38.0, 4.0 / 38.0])]
        {
            let tokens = draws(SamplingOptions { temperature, ..warm() }, &logits, 20000);
            for (token, p) in expected.iter().enumerate() {
                let share = tokens.iter().filter(|t| **t as usize == token).count() as f64 / 20000.0;
                // Four standard deviations of 20000 draws are below 0.0142.
                assert!((share - p).abs() < 0.0142, "token {token} at {temperature}: {share} for {p}");
            }
        }
    }

    #[test]
    fn one_seed_one_text() {
        let logits = vec![0.0; 1000];
        let text = |seed| draws(SamplingOptions { seed, ..warm() }, &logits, 20);
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
    }

    #[test]
    fn filters_select_the_likely_tokens() {
        // Probabilities 0.4, 0.3, 0.2, 0.1, in another order.
        let logits: Vec<f32> = [0.1f32, 0.4, 0.2, 0.3].iter().map(|p| p.ln()).collect();
        let candidates_of = |options| {
            let mut tokens = draws(options, &logits, 2000);
            tokens.sort_unstable();
            tokens.dedup();
            tokens
        };
        assert_eq!(candidates_of(warm()), [0, 1, 2, 3]);
        assert_eq!(candidates_of(SamplingOptions { top_k: 2, ..warm() }), [1, 3]);
        assert_eq!(candidates_of(SamplingOptions { top_p: 0.65, ..warm() }), [1, 3]);
        assert_eq!(candidates_of(SamplingOptions { top_p: 0.75, ..warm() }), [1, 2, 3]);
        assert_eq!(candidates_of(SamplingOptions { top_p: 0.01, ..warm() }), [1]);
        assert_eq!(candidates_of(SamplingOptions { min_p: 0.4, ..warm() }), [1, 2, 3]);
        assert_eq!(candidates_of(SamplingOptions { min_p: 1.0, ..warm() }), [1]);
        // Temperature comes last: it does not change what top-p keeps.
        assert_eq!(candidates_of(SamplingOptions { top_p: 0.65, temperature: 100.0, ..warm() }), [1, 3]);
    }

    #[test]
    fn repetition_penalty_reaches_recent_tokens_of_either_sign() {
        let options =
            SamplingOptions { repetition_penalty: 2.0, repetition_last_n: 2, ..SamplingOptions::default() };
        let mut sampler = Sampler::new(options).unwrap();
        assert_eq!(sampler.sample(&[3.0, 2.0], &[]).unwrap(), 0);
        assert_eq!(sampler.sample(&[3.0, 2.0], &[0]).unwrap(), 1);
        assert_eq!(sampler.sample(&[-1.0, -1.5], &[0]).unwrap(), 1);
        // Token 0 is too long ago, and a token beyond the vocabulary is nobody's.
        assert_eq!(sampler.sample(&[3.0, 2.0], &[0, 1, 99]).unwrap(), 0);
    }

    #[test]
    fn nan_and_options_out_of_range_are_errors() {
        let mut sampler = Sampler::new(SamplingOptions::default()).unwrap();
        let error = sampler.sample(&[0.0, f32::NAN], &[]).unwrap_err();
        assert!(matches!(error, Error::NanLogit { token: 1 }));
        for options in [
            SamplingOptions { temperature: -1.0, ..warm() },
            SamplingOptions { temperature: f32::NAN, ..warm() },
            SamplingOptions { top_p: 0.0, ..warm() },
            SamplingOptions { min_p: 1.5, ..warm() },
            SamplingOptions { repetition_penalty: 0.0, ..warm() },
        ] {
            assert!(Sampler::new(options).is_err());
        }
    }
}
