//! Random weights of a synthetic language model.

use std::collections::HashMap;
use std::sync::Arc;

use tallow_ir::TensorType;
use tallow_models::host_layers::layer_of;
use tallow_models::model_graph::ModelGraph;
use tallow_quant::Format;
use tallow_runtime::executable::DeviceWeight;
use tallow_runtime::vulkan::{Context, MemoryUse};

use crate::data::random;
use crate::error::Result;
use crate::plan::ModelPlan;
use crate::threads::in_order;

/// Name, type and bytes of the weight of this number, which are always the same.
pub(crate) fn weight(
    model: &ModelGraph,
    planned: &ModelPlan,
    number: usize,
) -> Result<Option<(String, TensorType, Vec<u8>)>> {
    let Some((name, ty)) = model.types.iter().nth(number) else { return Ok(None) };
    let (name, ty) = (name.to_string(), ty.clone());
    if let Some(values) = model.computed(&name) {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        return Ok(Some((name, ty, bytes)));
    }
    let extents: Vec<usize> = ty.shape.dims().iter().map(|dim| dim.max_value() as usize).collect();
    let format = planned.shape.format_of(&name, &extents, planned.format);
    let (elements, seed) = (extents.iter().product(), number as u64 + 1);
    let bytes = if name.ends_with("norm.weight") {
        let varied = random(Format::F32, elements, 0.1, 1 << 32 | seed)?;
        let about_one = |b: &[u8; 4]| (1.0 + f32::from_le_bytes(*b)).to_le_bytes();
        varied.as_chunks::<4>().0.iter().flat_map(about_one).collect()
    } else if name.ends_with(".bias") || extents.len() == 1 {
        random(format, elements, 0.1, seed)?
    } else {
        // Of a size that keeps what passes through about as large as it was.
        let columns = extents.last().copied().unwrap_or(1);
        random(format, elements, 1.0 / (columns as f32).sqrt(), seed)?
    };
    Ok(Some((name, ty, bytes)))
}

/// All weights, made and uploaded tensor by tensor, as many at a time as there are threads.
pub(crate) fn upload(
    context: &Arc<Context>,
    model: &ModelGraph,
    planned: &ModelPlan,
) -> Result<HashMap<String, DeviceWeight>> {
    let first = planned.shape.layers - planned.host_layers;
    let one = |number: usize| {
        let Some((name, ty, bytes)) = weight(model, planned, number)? else { return Ok(None) };
        let memory = match layer_of(&name).is_some_and(|layer| layer >= first) {
            true => MemoryUse::Host,
            false => MemoryUse::Device,
        };
        let weight = DeviceWeight::upload_to(context, memory, &name, &ty, &bytes, &mut |_, _| {})?;
        Ok(Some((name, weight)))
    };
    Ok(in_order(model.types.iter().count(), one)?.into_iter().flatten().collect())
}
