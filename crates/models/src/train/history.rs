//! The losses of a training so far.

/// Losses by step, in nats a token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The loss of each step, the first step's first.
    pub losses: Vec<f32>,
    /// Numbers of steps done, and the loss on the validation text then.
    pub validation: Vec<(usize, f32)>,
}
