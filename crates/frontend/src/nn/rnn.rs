//! Recurrent layers.

use tallow_ir::DType;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::nn::init::{DEFAULT_KAIMING_UNIFORM, Init, ZERO};
use crate::nn::ops::sigmoid;
use crate::nn::var_builder::VarBuilder;
use crate::tensor::Tensor;

/// A layer that reads a sequence element by element.
pub trait RNN {
    /// What it remembers.
    type State: Clone;

    /// What it remembers before the first element: zeros.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    fn zero_state(&self, batch_dim: usize) -> Result<Self::State>;

    /// What it remembers after `input`, `[batch, features]`.
    ///
    /// # Errors
    /// When shapes or element types do not fit.
    fn step(&self, input: &Tensor, state: &Self::State) -> Result<Self::State>;

    /// What it remembers after each element of `input`, `[batch, elements, features]`.
    ///
    /// # Errors
    /// As [`RNN::step`].
    fn seq(&self, input: &Tensor) -> Result<Vec<Self::State>> {
        let state = self.zero_state(input.const_dims_of::<3>("seq")?[0])?;
        self.seq_init(input, &state)
    }

    /// [`RNN::seq`] from a state on.
    ///
    /// # Errors
    /// As [`RNN::step`].
    fn seq_init(&self, input: &Tensor, init_state: &Self::State) -> Result<Vec<Self::State>> {
        let [_, elements, _] = input.const_dims_of::<3>("seq")?;
        let mut states: Vec<Self::State> = Vec::with_capacity(elements);
        for i in 0..elements {
            let element = input.narrow(1, i, 1)?.squeeze(1)?;
            let next = self.step(&element, states.last().unwrap_or(init_state))?;
            states.push(next);
        }
        Ok(states)
    }

    /// The outputs of states as one tensor.
    ///
    /// # Errors
    /// When their shapes differ or there is none.
    fn states_to_tensor(&self, states: &[Self::State]) -> Result<Tensor>;
}

/// Weights of a recurrent layer: those of its input and those of what it remembers.
#[derive(Clone, Debug)]
struct Weights {
    input: (Tensor, Option<Tensor>),
    hidden: (Tensor, Option<Tensor>),
    hidden_dim: usize,
    device: Device,
    dtype: DType,
}

/// What the weights of a recurrent layer hold if they are new: of input and state, then the biases, if there are any.
type Inits = [(Init, Option<Init>); 2];

impl Weights {
    /// Weights of `gates` parts, whose names end in `suffix`.
    fn new(
        gates: usize,
        dims: (usize, usize),
        suffix: &str,
        init: Inits,
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let (in_dim, hidden_dim) = dims;
        let rows = gates * hidden_dim;
        let part = |name: &str, columns: usize, (weight, bias): (Init, Option<Init>)| {
            let weight = vb.get_with_hints((rows, columns), &format!("weight_{name}_{suffix}"), weight)?;
            let bias = bias.map(|init| vb.get_with_hints(rows, &format!("bias_{name}_{suffix}"), init));
            Ok::<_, Error>((weight, bias.transpose()?))
        };
        let input = part("ih", in_dim, init[0])?;
        let hidden = part("hh", hidden_dim, init[1])?;
        Ok(Weights { input, hidden, hidden_dim, device: vb.device().clone(), dtype: vb.dtype() })
    }

    /// The products with an input and with what is remembered, `[batch, gates * hidden]`.
    fn products(&self, input: &Tensor, hidden: &Tensor) -> Result<[Tensor; 2]> {
        let product = |x: &Tensor, (weight, bias): &(Tensor, Option<Tensor>)| {
            let product = x.matmul(&weight.t()?)?;
            match bias {
                None => Ok(product),
                Some(bias) => product.broadcast_add(bias),
            }
        };
        Ok([product(input, &self.input)?, product(hidden, &self.hidden)?])
    }

    fn zeros(&self, batch: usize) -> Result<Tensor> {
        Tensor::zeros((batch, self.hidden_dim), self.dtype, &self.device)
    }
}

/// Settings of [`LSTM`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LSTMConfig {
    /// New weights of the input.
    pub w_ih_init: Init,
    /// New weights of the state.
    pub w_hh_init: Init,
    /// The bias beside the input's product, if there is one.
    pub b_ih_init: Option<Init>,
    /// The bias beside the state's product, if there is one.
    pub b_hh_init: Option<Init>,
    /// The number of the layer, in the names of the weights.
    pub layer_idx: usize,
    /// The direction, in the names of the weights. The caller reverses the sequence.
    pub direction: Direction,
}

/// The direction in which a sequence is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From its first element on.
    Forward,
    /// From its last element on.
    Backward,
}

impl Default for LSTMConfig {
    fn default() -> Self {
        LSTMConfig {
            w_ih_init: DEFAULT_KAIMING_UNIFORM,
            w_hh_init: DEFAULT_KAIMING_UNIFORM,
            b_ih_init: Some(ZERO),
            b_hh_init: Some(ZERO),
            layer_idx: 0,
            direction: Direction::Forward,
        }
    }
}

impl LSTMConfig {
    /// Without biases.
    pub fn default_no_bias() -> LSTMConfig {
        LSTMConfig { b_ih_init: None, b_hh_init: None, ..LSTMConfig::default() }
    }
}

/// What an [`LSTM`] remembers.
#[derive(Clone, Debug)]
pub struct LSTMState {
    /// The output, `[batch, hidden]`.
    pub h: Tensor,
    /// The cell, `[batch, hidden]`.
    pub c: Tensor,
}

impl LSTMState {
    /// A state of output and cell.
    pub fn new(h: Tensor, c: Tensor) -> LSTMState {
        LSTMState { h, c }
    }

    /// The output, `[batch, hidden]`.
    pub fn h(&self) -> &Tensor {
        &self.h
    }

    /// The cell, `[batch, hidden]`.
    pub fn c(&self) -> &Tensor {
        &self.c
    }
}

/// Long short-term memory (Hochreiter & Schmidhuber, 1997), with PyTorch's weights: gates for input, forgetting, cell and
/// output.
#[derive(Clone, Debug)]
pub struct LSTM {
    weights: Weights,
    config: LSTMConfig,
}

impl LSTM {
    /// A layer with the weights of `vb` under PyTorch's names.
    ///
    /// # Errors
    /// When one is missing or has another shape.
    pub fn new(in_dim: usize, hidden_dim: usize, config: LSTMConfig, vb: VarBuilder<'_>) -> Result<LSTM> {
        let end = match config.direction {
            Direction::Forward => "",
            Direction::Backward => "_reverse",
        };
        let suffix = format!("l{}{end}", config.layer_idx);
        let inits = [(config.w_ih_init, config.b_ih_init), (config.w_hh_init, config.b_hh_init)];
        Ok(LSTM { weights: Weights::new(4, (in_dim, hidden_dim), &suffix, inits, &vb)?, config })
    }

    /// The settings.
    pub fn config(&self) -> &LSTMConfig {
        &self.config
    }
}

/// As [`LSTM::new`].
///
/// # Errors
/// As there.
pub fn lstm(in_dim: usize, hidden_dim: usize, config: LSTMConfig, vb: VarBuilder<'_>) -> Result<LSTM> {
    LSTM::new(in_dim, hidden_dim, config, vb)
}

impl RNN for LSTM {
    type State = LSTMState;

    fn zero_state(&self, batch_dim: usize) -> Result<LSTMState> {
        let zeros = self.weights.zeros(batch_dim)?;
        Ok(LSTMState::new(zeros.clone(), zeros))
    }

    fn step(&self, input: &Tensor, state: &LSTMState) -> Result<LSTMState> {
        let [of_input, of_state] = self.weights.products(input, &state.h)?;
        let gates = of_input.add(&of_state)?.chunk(4, 1)?;
        let written = sigmoid(&gates[0])?.mul(&gates[2].tanh()?)?;
        let c = sigmoid(&gates[1])?.mul(&state.c)?.add(&written)?;
        let h = sigmoid(&gates[3])?.mul(&c.tanh()?)?;
        Ok(LSTMState { h, c })
    }

    /// `[batch, elements, hidden]`.
    fn states_to_tensor(&self, states: &[LSTMState]) -> Result<Tensor> {
        let outputs: Vec<&Tensor> = states.iter().map(LSTMState::h).collect();
        Tensor::stack(&outputs, 1)
    }
}

/// Settings of [`GRU`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GRUConfig {
    /// New weights of the input.
    pub w_ih_init: Init,
    /// New weights of the state.
    pub w_hh_init: Init,
    /// The bias beside the input's product, if there is one.
    pub b_ih_init: Option<Init>,
    /// The bias beside the state's product, if there is one.
    pub b_hh_init: Option<Init>,
}

impl Default for GRUConfig {
    fn default() -> Self {
        GRUConfig {
            w_ih_init: DEFAULT_KAIMING_UNIFORM,
            w_hh_init: DEFAULT_KAIMING_UNIFORM,
            b_ih_init: Some(ZERO),
            b_hh_init: Some(ZERO),
        }
    }
}

impl GRUConfig {
    /// Without biases.
    pub fn default_no_bias() -> GRUConfig {
        GRUConfig { b_ih_init: None, b_hh_init: None, ..GRUConfig::default() }
    }
}

/// What a [`GRU`] remembers.
#[derive(Clone, Debug)]
pub struct GRUState {
    /// The output, `[batch, hidden]`.
    pub h: Tensor,
}

impl GRUState {
    /// The output, `[batch, hidden]`.
    pub fn h(&self) -> &Tensor {
        &self.h
    }
}

/// A gated recurrent unit (Cho et al., arXiv 1406.1078), with PyTorch's weights: gates for reset, update and new state.
#[derive(Clone, Debug)]
pub struct GRU {
    weights: Weights,
    config: GRUConfig,
}

impl GRU {
    /// A layer with the weights of `vb` under PyTorch's names.
    ///
    /// # Errors
    /// When one is missing or has another shape.
    pub fn new(in_dim: usize, hidden_dim: usize, config: GRUConfig, vb: VarBuilder<'_>) -> Result<GRU> {
        let inits = [(config.w_ih_init, config.b_ih_init), (config.w_hh_init, config.b_hh_init)];
        Ok(GRU { weights: Weights::new(3, (in_dim, hidden_dim), "l0", inits, &vb)?, config })
    }

    /// The settings.
    pub fn config(&self) -> &GRUConfig {
        &self.config
    }
}

/// As [`GRU::new`].
///
/// # Errors
/// As there.
pub fn gru(in_dim: usize, hidden_dim: usize, config: GRUConfig, vb: VarBuilder<'_>) -> Result<GRU> {
    GRU::new(in_dim, hidden_dim, config, vb)
}

impl RNN for GRU {
    type State = GRUState;

    fn zero_state(&self, batch_dim: usize) -> Result<GRUState> {
        Ok(GRUState { h: self.weights.zeros(batch_dim)? })
    }

    fn step(&self, input: &Tensor, state: &GRUState) -> Result<GRUState> {
        let [of_input, of_state] = self.weights.products(input, &state.h)?;
        let (x, h) = (of_input.chunk(3, 1)?, of_state.chunk(3, 1)?);
        let reset = sigmoid(&x[0].add(&h[0])?)?;
        let update = sigmoid(&x[1].add(&h[1])?)?;
        let new = x[2].add(&reset.mul(&h[2])?)?.tanh()?;
        // update * state + (1 - update) * new
        Ok(GRUState { h: new.add(&update.mul(&state.h.sub(&new)?)?)? })
    }

    /// `[batch, elements * hidden]`, as Candle has it.
    fn states_to_tensor(&self, states: &[GRUState]) -> Result<Tensor> {
        let outputs: Vec<&Tensor> = states.iter().map(GRUState::h).collect();
        Tensor::cat(&outputs, 1)
    }
}
