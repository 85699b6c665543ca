//! Whether a model fits a device's memory, and what would, before anything is loaded.

use tallow::caps::DeviceCaps;
use tallow::{DType, Device, Format, device_bytes};
use tallow_ir::{Op, TensorType};

use crate::decoder::{context, decode_step, with_cache};
use crate::embedder::{EmbedOptions, embed_step};
use crate::error::{Advice, Error, Excess, Result};
use crate::memory::{Memory, weight_types};
use crate::model::{Model, ModelFile};
use crate::model_graph::ModelGraph;
use crate::options::{LoadOptions, Progress};

/// Contexts that are suggested are multiples of this, and the least one is this.
const STEP: usize = 64;
/// The most contexts that are planned to find one that fits.
const MOST_PLANS: usize = 12;
/// Formats that are suggested, the largest first.
const FORMATS: [Format; 6] =
    [Format::Q8_0, Format::Q6_K, Format::Q5_K, Format::Q4_K, Format::Q3_K, Format::Q2_K];

/// The memory that a model takes, beside what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// What it takes.
    pub memory: Memory,
    /// The bytes that it may take, where they are known.
    pub free: Option<u64>,
    /// How the model does not fit, where it does not.
    pub excess: Option<Excess>,
}

impl Fit {
    /// Compares the memory that loading a model with these options takes with `options.memory`, or else with `free` bytes.
    ///
    /// A model that does not fit is planned again for a few other contexts, which takes as many times as long.
    ///
    /// # Errors
    /// As [`Memory::of`].
    pub fn of(
        model: &ModelGraph,
        caps: Option<&DeviceCaps>,
        options: &LoadOptions,
        free: Option<u64>,
    ) -> Result<Fit> {
        let (memory, free) = (Memory::of(model, caps, options)?, options.memory.or(free));
        let needed = memory.total();
        let excess = match free {
            Some(free) if needed > free => {
                let advice = advice(model, caps, options, (memory, free))?;
                Some(Excess { needed, free, context: memory.context, advice })
            }
            Some(_) | None => None,
        };
        Ok(Fit { memory, free, excess })
    }

    /// Checks before a model is loaded that it fits the device.
    ///
    /// # Errors
    /// When it does not, or the options do not fit the model.
    fn check(model: &ModelGraph, device: &Device, options: &LoadOptions) -> Result<()> {
        let Some(free) = options.memory.or_else(|| device.free_memory()) else { return Ok(()) };
        // Planning takes time, which a model much smaller than the memory is spared: intermediate values take less than
        // the weights.
        let caps = device.caps();
        if options.memory.is_none() && resident_bytes(model, caps, options)? <= free / 2 {
            return Ok(());
        }
        match Fit::of(model, caps, options, Some(free))?.excess {
            Some(excess) => Err(Error::DoesNotFit(excess)),
            None => Ok(()),
        }
    }
}

impl ModelFile {
    /// The memory that the model takes with these options on a device with `caps`, or else on the interpreter, beside the
    /// `free` bytes that there are.
    ///
    /// # Errors
    /// When the options do not fit the model.
    pub fn fit(&self, caps: Option<&DeviceCaps>, options: &LoadOptions, free: Option<u64>) -> Result<Fit> {
        Fit::of(&self.model, caps, options, free)
    }

    /// Copies the weights to the device and compiles the graphs.
    ///
    /// # Errors
    /// When the options do not fit the model, it does not fit the memory ([`Error::DoesNotFit`]), or compiling fails.
    pub fn load(
        self,
        device: &Device,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model> {
        Fit::check(&self.model, device, options)?;
        self.load_unchecked(device, options, progress)
    }
}

/// Bytes of weights and key-value cache.
fn resident_bytes(model: &ModelGraph, caps: Option<&DeviceCaps>, options: &LoadOptions) -> Result<u64> {
    let (model, context) = (with_cache(model, options)?, context(model, options)?);
    let step = decode_step(&model, caps, options.activations, context, options.decode)?;
    let of = |op: &Op| match op {
        Op::Weight { ty, .. } | Op::State { ty, .. } => device_bytes(ty),
        _ => 0,
    };
    Ok(step.nodes().map(|(_, node)| of(&node.op)).fold(0, u64::saturating_add))
}

/// What would fit in `free` bytes of a model that takes more.
fn advice(
    model: &ModelGraph,
    caps: Option<&DeviceCaps>,
    options: &LoadOptions,
    (memory, free): (Memory, u64),
) -> Result<Advice> {
    let least = STEP.min(memory.context);
    let total = &mut |context: usize| {
        let options = LoadOptions { context: Some(context), ..*options };
        Ok(Memory::of(model, caps, &options)?.total())
    };
    let smallest = total(least)?;
    if smallest <= free {
        let found = largest_context(total, (least, smallest), (memory.context, memory.total()), free)?;
        return Ok(Advice::Context(found));
    }
    // The interpreter has the values of blocks in f32 too, whatever the format.
    let found = if caps.is_some() { matrices(model, caps, options)? } else { None };
    let Some((matrices, elements)) = found else { return Ok(Advice::Nothing) };
    let others = smallest.saturating_sub(matrices);
    let fits = |format: &Format| {
        let bytes = elements / format.block_elements() as u64 * format.block_bytes() as u64;
        bytes < matrices && others.saturating_add(bytes) <= free
    };
    Ok(FORMATS.into_iter().find(fits).map_or(Advice::Nothing, |format| Advice::Format(format.name())))
}

/// The largest context that fits, given one that does and one that does not, each with its bytes. Memory grows almost
/// linearly with the context, so that few are tried: interpolation finds it, and halving helps where it does not.
fn largest_context(
    total: &mut dyn FnMut(usize) -> Result<u64>,
    (mut low, mut low_bytes): (usize, u64),
    (mut high, mut high_bytes): (usize, u64),
    free: u64,
) -> Result<usize> {
    for plan in 0..MOST_PLANS {
        // The multiples between them.
        let (first, last) = ((low / STEP + 1) * STEP, (high - 1) / STEP * STEP);
        if first > last {
            break;
        }
        let share = match plan % 2 {
            0 => (free - low_bytes) as f64 / (high_bytes - low_bytes).max(1) as f64,
            _ => 0.5,
        };
        let guess = low + ((high - low) as f64 * share) as usize;
        let guess = (guess / STEP * STEP).clamp(first, last);
        let bytes = total(guess)?;
        match bytes <= free {
            true => (low, low_bytes) = (guess, bytes),
            false => (high, high_bytes) = (guess, bytes),
        }
    }
    Ok(low)
}

/// Bytes and elements of the weights that other formats could hold; `None` where there are none.
fn matrices(
    model: &ModelGraph,
    caps: Option<&DeviceCaps>,
    options: &LoadOptions,
) -> Result<Option<(u64, u64)>> {
    let step = match model.config.architecture.is_encoder() {
        true => embed_step(model, caps, &EmbedOptions::default(), 1)?,
        false => decode_step(&with_cache(model, options)?, caps, options.activations, 1, options.decode)?,
    };
    let is_matrix = |ty: &&TensorType| {
        ty.shape.rank() > 1 && matches!(ty.dtype, DType::Block(_) | DType::F16 | DType::BF16 | DType::F32)
    };
    let sum = |(bytes, elements): (u64, u64), ty: &TensorType| {
        (bytes.saturating_add(device_bytes(ty)), elements.saturating_add(ty.shape.max_numel()))
    };
    let found = weight_types(&step).filter(is_matrix).fold((0, 0), sum);
    Ok(Some(found).filter(|(bytes, _)| *bytes > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_context_is_found_in_few_plans() {
        for (free, per_token, quadratic) in [(1_000_000, 100, 0), (5_000_000, 777, 0), (900_000, 10, 3)] {
            let bytes = |context: usize| {
                1000 + per_token * context as u64 + quadratic * (context as u64).pow(2) / 100
            };
            let mut plans = 0;
            let mut total = |context| {
                plans += 1;
                Ok(bytes(context))
            };
            let high = 1 << 20;
            let found = largest_context(&mut total, (STEP, bytes(STEP)), (high, bytes(high)), free).unwrap();
            assert!(found.is_multiple_of(STEP) && bytes(found) <= free, "{found}");
            assert!(plans <= MOST_PLANS);
            if quadratic == 0 {
                assert!(bytes(found + STEP) > free && plans <= 4, "{found} after {plans}");
            }
        }
    }
}
