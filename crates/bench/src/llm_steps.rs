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

/// What a row measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Decode with `depth` positions in the cache, which has those of the row before up to `after`.
    Decode { after: usize, depth: usize },
    /// Prefill of a prompt of so many tokens; of one step if it is `None`.
    Prefill(Option<usize>),
    /// Decode whose tokens the device chooses.
    Greedy,
}

impl Step {
    /// The name of its row. What has been measured before there were depths and prompts has none in its name.
    fn name(self, planned: &ModelPlan) -> String {
        match self {
            Step::Decode { depth: 0, .. } => planned.name("decode"),
            Step::Decode { depth, .. } => planned.name_with("decode", &format!("/depth-{depth}")),
            Step::Prefill(None) => planned.name("prefill"),
            Step::Prefill(Some(count)) => planned.name_with("prefill", &format!("/prompt-{count}")),
            Step::Greedy => planned.name("greedy"),
        }
    }
}

/// The rows of a model, in order: depths ascend, so that each fills the cache from where the one before ends. (Decode
/// writes positions after its depth, which are filled again.)
fn steps(planned: &ModelPlan) -> Vec<Step> {
    let mut steps = vec![];
    if planned.decode {
        let after = [0].iter().chain(&planned.depths);
        let depths = after.zip(&planned.depths);
        steps.extend(depths.map(|(after, depth)| Step::Decode { after: *after, depth: *depth }));
    }
    if planned.prefill {
        steps.extend(planned.prompts.iter().map(|count| Step::Prefill(*count)));
    }
    steps.extend(planned.greedy.then_some(Step::Greedy));
    steps
}

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
    for step in steps(planned) {
        let mut row = Row { name: step.name(planned), ..Row::default() };
        let done = match &checked {
            Ok((error, elements)) => {
                (row.nmse, row.checked) = (Some(*error), *elements);
                match step {
                    Step::Decode { after, depth } => {
                        model.fill(after, depth).and_then(|()| model.decode(options, depth, &mut row))
                    }
                    Step::Prefill(count) => {
                        model.prefill(context, options, count.unwrap_or(planned.shape.prefill), &mut row)
                    }
                    Step::Greedy => llm_host::greedy(context, &model, options, &mut row),
                }
            }
            Err(error) => Err(BenchError::Wrong(error.to_string())),
        };
        match done {
            Ok(dispatches) => {
                let bound = if matches!(step, Step::Prefill(_)) { Bound::Matrix } else { Bound::Read };
                row.share_of(bound.ceilings(), ceilings);
                rows.push((row, dispatches));
            }
            Err(error) => rows.push((Row { failed: Some(error.to_string()), ..row }, vec![])),
        }
    }
    rows
}
