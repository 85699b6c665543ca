//! Whether a model fits a device's memory, and what would, before anything is loaded.

use tallow::caps::DeviceCaps;
use tallow::{DType, Device, Format, Graph, device_bytes};
use tallow_ir::{Op, TensorType};

use crate::error::{Advice, Error, Excess, HostAdvice, Result};
use crate::host_layers::{Speed, is_last};
use crate::memory::{Memory, Purpose, asked_layers, plan, steps, value_bytes};
use crate::model_graph::ModelGraph;
use crate::options::{EmbedOptions, LoadOptions};
use crate::step_graphs::{Texts, context_of, decode_step, embed_step, with_cache};

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
    /// The bytes that it may take of the device's memory, where they are known.
    pub free: Option<u64>,
    /// The bytes that its layers in the host's memory may take, where they are known.
    pub host_free: Option<u64>,
    /// How the model does not fit the device's memory, where it does not.
    pub excess: Option<Excess>,
    /// How fast it decodes; `None` on the CPU, where bytes do not decide that.
    pub speed: Option<Speed>,
}

impl Fit {
    /// Compares the memory that loading a model with these options takes with `options.memory`, or else with `free` bytes,
    /// and what layers take in the host's memory with `options.host_memory`.
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
        Fit::of_purpose(model, caps, options, free, Purpose::Generate)
    }

    fn of_purpose(
        model: &ModelGraph,
        caps: Option<&DeviceCaps>,
        options: &LoadOptions,
        free: Option<u64>,
        purpose: Purpose,
    ) -> Result<Fit> {
        let (free, host_free) = (options.memory.or(free), options.host_memory);
        let planned = plan(model, caps, options, purpose)?;
        let fewest = free.and_then(|free| planned.fewest_host_layers(free, host_free));
        let layers = asked_layers(options, &model.config)?.or(fewest).unwrap_or(0);
        let speed = |layers| match purpose {
            Purpose::Generate if !model.config.architecture.is_encoder() => planned.speed(layers),
            Purpose::Generate | Purpose::Score | Purpose::Embed(_) => None,
        };
        let memory = planned.with_host_layers(layers);
        let excess = match free {
            Some(free) if memory.device() > free => {
                let advice = advice(model, caps, options, (memory, free, purpose))?;
                let host = fewest.map(|layers| HostAdvice { layers, speed: speed(layers) });
                let needed = memory.device();
                let context = match purpose {
                    Purpose::Embed(embed) => context_of(model, embed.context)?,
                    Purpose::Generate | Purpose::Score => memory.context,
                };
                Some(Excess { needed, free, context, at_least: memory.context < context, advice, host })
            }
            Some(_) | None => None,
        };
        Ok(Fit { memory, free, host_free, excess, speed: speed(layers) })
    }

    /// The error of loading the model, if it does not fit.
    pub fn error(&self) -> Option<Error> {
        let Memory { host: needed, host_layers: layers, .. } = self.memory;
        match (self.excess, self.host_free) {
            (Some(excess), _) => Some(Error::DoesNotFit(Box::new(excess))),
            (None, Some(free)) if needed > free => Some(Error::HostMemory { layers, needed, free }),
            (None, _) => None,
        }
    }

    /// Checks before a model is loaded that it fits, and says how many layers go to the host's memory.
    ///
    /// # Errors
    /// When it does not, or the options do not fit the model.
    pub(crate) fn check(
        model: &ModelGraph,
        device: &Device,
        options: &LoadOptions,
        purpose: Purpose,
    ) -> Result<usize> {
        let asked = asked_layers(options, &model.config)?;
        let Some(free) = options.memory.or_else(|| device.free_memory()) else {
            return Ok(asked.unwrap_or(0));
        };
        // Planning takes time, which a model much smaller than the memory is spared.
        let caps = device.caps();
        let is_small = || most_bytes(model, caps, options, purpose).map(|bytes| bytes <= free / 2);
        if options.memory.is_none() && matches!(asked, None | Some(0)) && is_small()? {
            return Ok(0);
        }
        let fit = Fit::of_purpose(model, caps, options, Some(free), purpose)?;
        match fit.error() {
            Some(error) => Err(error),
            None => Ok(fit.memory.host_layers),
        }
    }
}

/// Bytes of weights, states and all intermediate values. Kernels may need memory for parts of sums, too, and weights are
/// copied to other orders; neither takes as much again.
fn most_bytes(
    model: &ModelGraph,
    caps: Option<&DeviceCaps>,
    options: &LoadOptions,
    purpose: Purpose,
) -> Result<u64> {
    let graphs = match purpose {
        Purpose::Embed(embed) => {
            let texts = Texts::One(context_of(model, options.context)?);
            vec![embed_step(model, caps, &embed, texts)?]
        }
        Purpose::Generate | Purpose::Score => steps(model, caps, options, purpose)?.into(),
    };
    let resident = |op: &Op| match op {
        Op::Weight { ty, .. } | Op::State { ty, .. } => device_bytes(ty),
        _ => 0,
    };
    // All graphs of a model have the same weights and states.
    let leaves = graphs.last().into_iter().flat_map(Graph::nodes).map(|(_, node)| resident(&node.op));
    Ok(leaves.chain(graphs.iter().map(value_bytes)).fold(0, u64::saturating_add))
}

/// What would fit in `free` bytes of a model that takes more.
fn advice(
    model: &ModelGraph,
    caps: Option<&DeviceCaps>,
    options: &LoadOptions,
    (memory, free, purpose): (Memory, u64, Purpose),
) -> Result<Advice> {
    let least = STEP.min(memory.context);
    let total = &mut |context: usize| {
        let options = LoadOptions { context: Some(context), ..*options };
        Ok(plan(model, caps, &options, purpose)?.with_host_layers(memory.host_layers).device())
    };
    let smallest = total(least)?;
    if smallest <= free {
        let found = largest_context(total, (least, smallest), (memory.context, memory.device()), free)?;
        return Ok(Advice::Context(found));
    }
    // The interpreter has the values of blocks in f32 too, whatever the format.
    let found = if caps.is_some() { matrices(model, caps, options, memory.host_layers)? } else { None };
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

/// Bytes and elements of the weights in the device's memory that other formats could hold; `None` where there are none.
fn matrices(
    model: &ModelGraph,
    caps: Option<&DeviceCaps>,
    options: &LoadOptions,
    host_layers: usize,
) -> Result<Option<(u64, u64)>> {
    let step = match model.config.architecture.is_encoder() {
        true => embed_step(model, caps, &EmbedOptions::default(), Texts::One(1))?,
        false => decode_step(&with_cache(model, options)?, caps, options.activations, 1, options.decode)?,
    };
    let is_there = |name: &str| {
        let has_bus = caps.is_some_and(|caps| !caps.unified_memory);
        !has_bus || !is_last(name, model.config.layers, host_layers)
    };
    let is_matrix = |ty: &TensorType| {
        ty.shape.rank() > 1 && matches!(ty.dtype, DType::Block(_) | DType::F16 | DType::BF16 | DType::F32)
    };
    let sum = |(bytes, elements): (u64, u64), ty: &TensorType| {
        (bytes.saturating_add(device_bytes(ty)), elements.saturating_add(ty.shape.max_numel()))
    };
    let found = step.nodes().filter_map(|(_, node)| match &node.op {
        Op::Weight { name, ty } if is_there(name) && is_matrix(ty) => Some(ty),
        _ => None,
    });
    let found = found.fold((0, 0), sum);
    Ok(Some(found).filter(|(bytes, _)| *bytes > 0))
}

#[cfg(test)]
mod tests {
    use tallow::caps;

    use super::*;

    /// A model that is loaded without being planned takes no more than was thought.
    #[test]
    fn a_plan_takes_no_more_than_its_graphs() {
        for name in ["storyteller-nano-f16", "storyteller-nano-Q4_K_M"] {
            let file = tallow_gguf::GgufFile::open(tallow_testmodels::model(name)).unwrap();
            let model = ModelGraph::from_file(&file).unwrap();
            for profile in ["minimum", "h200"] {
                let caps = caps::profile(profile).unwrap();
                for purpose in [Purpose::Generate, Purpose::Score, Purpose::Embed(EmbedOptions::default())] {
                    for context in [64, 1024] {
                        let options = LoadOptions { context: Some(context), ..LoadOptions::default() };
                        let most = most_bytes(&model, Some(&caps), &options, purpose).unwrap();
                        let planned = plan(&model, Some(&caps), &options, purpose).unwrap().memory.total();
                        assert!(planned <= 2 * most, "{name} {profile} {purpose:?}: {planned}, {most}");
                    }
                }
            }
        }
    }

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
