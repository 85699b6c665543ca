//! Hyperparameters of state space models.

use super::Keys;
use crate::error::Result;

/// The largest kernel of the short convolution: each of its columns is a term of the graph.
const MAX_KERNEL: usize = 64;

/// Bytes of the states of a run's tokens, all of which a scan writes.
const MAX_STATES: usize = 256 << 20;

/// Extents of a state space layer (Mamba: arXiv 2312.00752; Mamba 2: arXiv 2405.21060).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpace {
    /// Channels of a layer.
    pub inner: usize,
    /// Elements of the state of a channel.
    pub state: usize,
    /// Tokens that the short convolution sees.
    pub kernel: usize,
    /// Of Mamba, the elements of the row that the time steps of a token are products of; of Mamba 2, the heads, each with
    /// one time step.
    pub steps: usize,
    /// Groups of heads that share what writes and reads their states; 1 in Mamba.
    pub groups: usize,
    /// Whether that and the time steps go through RMS norms without weights.
    pub norms_parts: bool,
}

impl StateSpace {
    /// The keys `ssm.*` of Mamba.
    pub(crate) fn read(keys: &Keys<'_>) -> Result<StateSpace> {
        let kernel = keys.number("ssm.conv_kernel")?;
        if !(2..=MAX_KERNEL).contains(&kernel) {
            return Err(keys.bad("ssm.conv_kernel", &format!("{kernel} is not from 2 to {MAX_KERNEL}")));
        }
        Ok(StateSpace {
            inner: keys.number("ssm.inner_size")?,
            state: keys.number("ssm.state_size")?,
            kernel,
            steps: keys.number("ssm.time_step_rank")?,
            groups: 1,
            norms_parts: keys.flag("ssm.dt_b_c_rms", false)?,
        })
    }

    /// The same of Mamba 2, whose channels are divided into heads, and heads into groups.
    pub(crate) fn read_with_heads(keys: &Keys<'_>) -> Result<StateSpace> {
        let groups = keys.number_or("ssm.group_count", 1)?;
        let all = StateSpace { groups, norms_parts: false, ..StateSpace::read(keys)? };
        if !all.inner.is_multiple_of(all.steps) {
            return Err(keys.bad("ssm.time_step_rank", "does not divide ssm.inner_size"));
        }
        if !all.steps.is_multiple_of(groups) {
            return Err(keys.bad("ssm.group_count", "does not divide ssm.time_step_rank"));
        }
        Ok(all)
    }

    /// Tokens whose states of a layer take at most [`MAX_STATES`], a multiple of 16 if that is not 0; at least 1.
    pub(crate) fn rows_that_fit(&self) -> usize {
        let rows = MAX_STATES / self.inner.saturating_mul(self.state).saturating_mul(size_of::<f32>());
        if rows < 16 { rows.max(1) } else { rows - rows % 16 }
    }

    /// Channels of the short convolution of Mamba 2: those of the layer, and what writes and reads the states of a group.
    pub(crate) fn convolved(&self) -> usize {
        self.inner + 2 * self.groups * self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_as_long_as_states_fit() {
        let rows = |inner, state| {
            StateSpace { inner, state, kernel: 4, steps: 8, groups: 1, norms_parts: false }.rows_that_fit()
        };
        // Mamba and Mamba 2 of 130 million and of 2.8 billion weights.
        assert_eq!((rows(1536, 16), rows(5120, 16)), (2720, 816));
        assert_eq!((rows(1536, 128), rows(5120, 128)), (336, 96));
        assert_eq!((rows(1 << 24, 1 << 24), rows(1 << 20, 8)), (1, 8));
    }
}
