//! Frozen weights and the adapters that are trained in their place.

use tallow::{DType, Device, State, Tensor, Var};
use tallow_gguf::{Format, GgufFile};

use super::corpus::mixed;
use crate::error::Result;
use crate::lora::LoraPair;
use crate::weights::dtype;

/// A weight that training does not change, on its device as the file holds it.
#[derive(Debug)]
pub(super) enum Frozen {
    /// Blocks or f32: kernels that read it unpack the blocks.
    Constant(Tensor),
    /// Floats of another type. Functions compute once what they can of a constant, and would store it in f32; what a
    /// state holds they read in each run.
    Narrow(State),
}

impl Frozen {
    pub fn of_file(file: &GgufFile, name: &str, device: &Device) -> Result<Frozen> {
        let info = file.require(name)?;
        let (format, data) = (info.format()?, file.tensor_data(info)?);
        let shape = info.shape.as_slice();
        match dtype(format) {
            DType::F32 | DType::Block(_) => {
                Ok(Frozen::Constant(Tensor::resident(data, dtype(format), shape, device)?))
            }
            narrow => Ok(Frozen::Narrow(State::new(&Tensor::from_raw_buffer(data, narrow, shape, device)?)?)),
        }
    }

    /// The values, f32.
    pub fn values(&self) -> tallow::Result<Tensor> {
        match self {
            Frozen::Constant(tensor) => tensor.dequantize(),
            Frozen::Narrow(state) => state.read()?.to_dtype(DType::F32),
        }
    }
}

/// The projections of a layer that can have adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// The output of attention.
    O,
    /// The gate of the feed-forward block.
    Gate,
    /// The way up of the feed-forward block.
    Up,
    /// The way down of the feed-forward block.
    Down,
}

impl Target {
    /// All of them.
    pub const ALL: [Target; 7] =
        [Target::Q, Target::K, Target::V, Target::O, Target::Gate, Target::Up, Target::Down];

    /// The name in options.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Q => "q",
            Target::K => "k",
            Target::V => "v",
            Target::O => "o",
            Target::Gate => "gate",
            Target::Up => "up",
            Target::Down => "down",
        }
    }

    /// The name in model files.
    pub(super) const fn in_file(self) -> &'static str {
        match self {
            Target::Q => "attn_q",
            Target::K => "attn_k",
            Target::V => "attn_v",
            Target::O => "attn_output",
            Target::Gate => "ffn_gate",
            Target::Up => "ffn_up",
            Target::Down => "ffn_down",
        }
    }
}

/// Element type of adapters in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdapterType {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits. Training keeps f32 values for the optimizer, and multiplies by them rounded to what the file will hold.
    BF16,
}

impl AdapterType {
    /// The format in files.
    pub(super) const fn format(self) -> Format {
        match self {
            AdapterType::F32 => Format::F32,
            AdapterType::BF16 => Format::BF16,
        }
    }
}

/// The size and the beginning of adapters.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// Rows of `A`, columns of `B`.
    pub rank: usize,
    /// The products count `alpha / rank` times.
    pub alpha: f64,
    /// Which projections are adapted.
    pub targets: Vec<Target>,
    /// Element type in the file.
    pub adapter_type: AdapterType,
    /// Seed of the initial values of `A`.
    pub seed: u64,
}

impl LoraConfig {
    /// Adapters of this rank on all projections, in f32, with an alpha of twice the rank.
    pub fn new(rank: usize) -> LoraConfig {
        LoraConfig {
            rank,
            alpha: 2.0 * rank as f64,
            targets: Target::ALL.to_vec(),
            adapter_type: AdapterType::F32,
            seed: 1,
        }
    }
}

/// What is trained in the place of a frozen weight `W: [outputs, inputs]`.
#[derive(Debug)]
pub struct Adapter {
    weight: String,
    a: Var,
    b: Var,
    scale: f64,
    adapter_type: AdapterType,
}

impl Adapter {
    /// `A` is uniform within `1 / sqrt(inputs)` (Kaiming's initialization, as PEFT has it), and depends on the seed and
    /// the name of the weight alone. `B` is 0, so that nothing changes at first.
    pub(super) fn new(
        weight: &str,
        shape: [usize; 2],
        config: &LoraConfig,
        device: &Device,
    ) -> tallow::Result<Adapter> {
        let ([outputs, inputs], rank) = (shape, config.rank);
        let bound = 1.0 / (inputs as f32).sqrt();
        let key = weight.bytes().fold(mixed(config.seed), |key, byte| mixed(key ^ u64::from(byte)));
        // The high 24 bits, as numbers from -1 to 1.
        let uniform = |at: u64| (mixed(key ^ at) >> 40) as f32 / (1u32 << 23) as f32 - 1.0;
        let values = (0..(rank * inputs) as u64).map(|at| bound * uniform(at)).collect();
        Ok(Adapter {
            weight: weight.into(),
            a: Var::from_vec(values, (rank, inputs), device)?,
            b: Var::zeros((outputs, rank), DType::F32, device)?,
            scale: config.alpha / rank as f64,
            adapter_type: config.adapter_type,
        })
    }

    /// The name of the weight in the model file.
    pub fn weight(&self) -> &str {
        &self.weight
    }

    /// `A: [rank, inputs]` and `B: [outputs, rank]`, f32.
    pub fn vars(&self) -> [&Var; 2] {
        [&self.a, &self.b]
    }

    /// `scale (x A^T) B^T` for `x` `[rows, inputs]`.
    pub(super) fn apply(&self, x: &Tensor) -> tallow::Result<Tensor> {
        let used = |var: &Var| match self.adapter_type {
            AdapterType::F32 => Ok(var.as_tensor().clone()),
            AdapterType::BF16 => var.to_dtype(DType::BF16)?.to_dtype(DType::F32),
        };
        let narrow = x.matmul(&used(&self.a)?.t()?)?.affine(self.scale, 0.0)?;
        narrow.matmul(&used(&self.b)?.t()?)
    }

    /// The values, to be written.
    ///
    /// # Errors
    /// When they cannot be read from the device.
    pub fn pair(&self) -> tallow::Result<LoraPair> {
        let values = |var: &Var| var.as_detached_tensor().flatten_all()?.to_vec1::<f32>();
        let rank = self.a.dims().first().copied().unwrap_or(0);
        Ok(LoraPair { weight: self.weight.clone(), rank, a: values(&self.a)?, b: values(&self.b)? })
    }
}
