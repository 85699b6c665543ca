//! The figures of a language model's steps.

use std::sync::Arc;

use tallow_runtime::vulkan::Context;

use crate::Options;
use crate::case::Bound;
use crate::error::BenchError;
use crate::llm::Model;
use crate::llm_host;
use crate::plan::ModelPlan;
use crate::report::Row;
use crate::run::Dispatches;

/// The figures of a model's steps; if something fails, its row says why.
pub fn measure(
    context: &Arc<Context>,
    planned: &ModelPlan,
    options: &Options,
    ceilings: &[Row],
) -> Vec<(Row, Dispatches)> {
    let mut rows = vec![];
    if planned.start {
        rows.push(llm_host::start(context, planned, options));
    }
    if !(planned.decode || planned.prefill || planned.greedy) {
        return rows;
    }
    let model = match Model::load(context, planned, options) {
        Ok(model) => model,
        Err(error) => {
            let row = Row { name: planned.name("load"), failed: Some(error.to_string()), ..Row::default() };
            rows.push((row, vec![]));
            return rows;
        }
    };
    let checked = model.check();
    let steps = [("decode", planned.decode), ("prefill", planned.prefill), ("greedy", planned.greedy)];
    for (step, _) in steps.into_iter().filter(|(_, requested)| *requested) {
        let mut row = Row { name: planned.name(step), ..Row::default() };
        let done = match &checked {
            Ok((error, elements)) => {
                (row.nmse, row.checked) = (Some(*error), *elements);
                match step {
                    "decode" => model.decode(options, &mut row),
                    "prefill" => model.prefill(options, &mut row),
                    _ => llm_host::greedy(context, &model, options, &mut row),
                }
            }
            Err(error) => Err(BenchError::Wrong(error.to_string())),
        };
        match done {
            Ok(dispatches) => {
                let bound = if step == "prefill" { Bound::Matrix } else { Bound::Read };
                row.share_of(bound.ceilings(), ceilings);
                rows.push((row, dispatches));
            }
            Err(error) => rows.push((Row { failed: Some(error.to_string()), ..row }, vec![])),
        }
    }
    rows
}
