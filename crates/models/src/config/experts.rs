//! Hyperparameters of mixtures of experts.

use super::Keys;
use crate::error::Result;

/// Feed-forward layers of which each token uses a few.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many a token uses.
    pub used: usize,
    /// Width of each one's hidden layer.
    pub feed_forward: usize,
    /// Width of the hidden layer of the experts that every token uses; 0 without such.
    pub shared_feed_forward: usize,
    /// How scores become weights.
    pub router: Router,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub normalizes: bool,
    /// Factor on the weights.
    pub scale: f32,
}

/// How the scores of a router become weights of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Router {
    /// The softmax of all scores.
    Softmax,
    /// The sigmoid of each score.
    Sigmoid,
    /// The softmax of the scores of the chosen experts.
    SoftmaxOfChosen,
}

impl Experts {
    /// The keys `expert_*`; `None` in a file of a model without experts.
    pub(crate) fn read(
        keys: &Keys<'_>,
        router: Router,
        normalizes: bool,
        hidden: usize,
    ) -> Result<Option<Experts>> {
        let Some(count) = keys.count("expert_count")? else { return Ok(None) };
        let used = keys.number("expert_used_count")?;
        if used > count {
            return Err(keys.bad("expert_used_count", "is more than expert_count"));
        }
        Ok(Some(Experts {
            count,
            used,
            feed_forward: keys.number_or("expert_feed_forward_length", hidden)?,
            shared_feed_forward: keys.count("expert_shared_feed_forward_length")?.unwrap_or(0),
            router,
            normalizes: keys.flag("expert_weights_norm", normalizes)?,
            scale: keys.positive_if_any("expert_weights_scale")?.unwrap_or(1.0),
        }))
    }
}
