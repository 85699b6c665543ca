//! Learning rates over the steps of a training.

use std::f64::consts::PI;

/// The learning rate as a function of the number of the step, from 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// The same in all steps.
    Constant {
        /// It.
        lr: f64,
    },
    /// In a line from `lr / warmup` to `lr`, then in a line to `floor` at `steps`.
    Linear {
        /// The largest.
        lr: f64,
        /// Steps in which it grows.
        warmup: usize,
        /// Steps of the training.
        steps: usize,
        /// The last.
        floor: f64,
    },
    /// In a line from `lr / warmup` to `lr`, then along a cosine to `floor` at `steps`.
    Cosine {
        /// The largest.
        lr: f64,
        /// Steps in which it grows.
        warmup: usize,
        /// Steps of the training.
        steps: usize,
        /// The last.
        floor: f64,
    },
}

impl Schedule {
    /// The learning rate of step number `step`, from 0.
    pub fn lr(&self, step: usize) -> f64 {
        match *self {
            Schedule::Constant { lr } => lr,
            Schedule::Linear { lr, warmup, .. } | Schedule::Cosine { lr, warmup, .. } if step < warmup => {
                lr * (step + 1) as f64 / warmup as f64
            }
            Schedule::Linear { lr, warmup, steps, floor } => {
                lr + (floor - lr) * progress(step, warmup, steps)
            }
            Schedule::Cosine { lr, warmup, steps, floor } => {
                floor + (lr - floor) * 0.5 * (1.0 + (PI * progress(step, warmup, steps)).cos())
            }
        }
    }
}

/// The part of the steps after the warm-up that is over.
fn progress(step: usize, warmup: usize, steps: usize) -> f64 {
    let (done, all) = (step.saturating_sub(warmup), steps.saturating_sub(warmup).max(1));
    (done as f64 / all as f64).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::Schedule;

    #[test]
    fn rates_grow_then_fall() {
        let (lr, warmup, steps, floor) = (1.0, 4, 12, 0.1);
        let linear = Schedule::Linear { lr, warmup, steps, floor };
        let cosine = Schedule::Cosine { lr, warmup, steps, floor };
        let expected = [0.25, 1.0, 1.0, 0.55, 0.1, 0.1];
        for schedule in [linear, cosine] {
            let rates = [0, 3, 4, 8, 12, 20].map(|step| schedule.lr(step));
            assert!(rates.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{rates:?}");
        }
        assert_eq!(Schedule::Constant { lr }.lr(7), 1.0);
    }
}
