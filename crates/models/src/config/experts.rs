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
    /// How many experts of that width make up the one that every token uses.
    pub shared: usize,
    /// The first layers have a feed-forward layer instead, so many.
    pub leading_dense: usize,
    /// Contiguous groups of experts, and how many of them a token's experts come from.
    pub groups: Option<[usize; 2]>,
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
        let groups = keys.count("expert_group_count")?.filter(|groups| *groups > 1);
        let groups =
            groups.map(|groups| Ok::<_, crate::Error>([groups, keys.number("expert_group_used_count")?]));
        let groups = groups.transpose()?;
        if let Some([groups, chosen]) = groups {
            // A group's score is the sum of its two best, or the best.
            if !count.is_multiple_of(groups) || count / groups < 2 {
                return Err(
                    keys.bad("expert_group_count", "does not divide the experts into groups of 2 or more")
                );
            }
            if chosen > groups || chosen * (count / groups) < used {
                return Err(
                    keys.bad("expert_group_used_count", "has too many groups, or too few for the experts")
                );
            }
        }
        Ok(Some(Experts {
            count,
            used,
            feed_forward: keys.number_or("expert_feed_forward_length", hidden)?,
            shared_feed_forward: 0,
            shared: 0,
            leading_dense: keys.count("leading_dense_block_count")?.unwrap_or(0),
            groups,
            router,
            normalizes: keys.flag("expert_weights_norm", normalizes)?,
            scale: keys.positive_if_any("expert_weights_scale")?.unwrap_or(1.0),
        }))
    }
}
