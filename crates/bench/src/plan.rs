//! What a run of the benchmark will do: everything that can be wrong about its options is said here, before a device
//! is opened.

use tallow_quant::Format;

use crate::case::Case;
use crate::error::{BenchError, Result};
use crate::report::{Row, read};
use crate::shapes::{SHAPES, Shape};
use crate::{LLM, Options, cases, select};

/// Cases, models and files of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Names of everything that was asked for.
    pub selected: Vec<String>,
    /// The cases among them.
    pub cases: Vec<Case>,
    /// The language models among them.
    pub models: Vec<ModelPlan>,
    /// A peer's figures.
    pub peer: Option<Vec<Row>>,
    /// Ceilings that are known.
    pub ceilings: Option<Vec<Row>>,
}

/// A language model that is to be measured, and which of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelPlan {
    /// Its shape.
    pub shape: &'static Shape,
    /// The format of its matrices.
    pub format: Format,
    /// Whether decode is measured.
    pub decode: bool,
    /// Whether prefill is measured.
    pub prefill: bool,
    /// Whether decode is measured whose tokens the device chooses.
    pub greedy: bool,
    /// Whether compiling is measured.
    pub start: bool,
}

impl ModelPlan {
    /// The name of a step's row.
    pub fn name(&self, step: &str) -> String {
        format!("llm/{step}/{}/{}", self.shape.name, self.format.name())
    }
}

impl Plan {
    /// Checks options and reads the files that they name.
    ///
    /// # Errors
    /// When an option makes no sense or a file cannot be read.
    pub fn new(options: &Options) -> Result<Plan> {
        if !options.seconds.is_finite() || options.seconds < 0.0 {
            let (value, why) = (options.seconds.to_string(), "expected a number of 0 or more".to_string());
            return Err(BenchError::Option { option: "--seconds", value, why });
        }
        let selected = select(&options.cases, options.quick)?;
        let mut cases = cases::cases(options.quick);
        cases.retain(|case| selected.contains(&case.name));
        Ok(Plan {
            cases,
            models: models(options, &selected)?,
            peer: options.compare.as_deref().map(read).transpose()?,
            ceilings: options.ceilings.as_deref().map(read).transpose()?,
            selected,
        })
    }
}

fn models(options: &Options, selected: &[String]) -> Result<Vec<ModelPlan>> {
    let is_selected = |case: &str| selected.iter().any(|name| name == case);
    let [decode, prefill, greedy, start] =
        ["decode", "prefill", "greedy", "start"].map(|s| is_selected(&format!("llm/{s}")));
    if !LLM.iter().any(|name| is_selected(name)) {
        return Ok(vec![]);
    }
    let default = if options.quick { "tiny" } else { "llama3-8b" };
    let name = options.shape.as_deref().unwrap_or(default);
    let wrong = |option, value: &str, why: String| BenchError::Option { option, value: value.into(), why };
    let shape = Shape::find(name).ok_or_else(|| {
        let known: Vec<&str> = SHAPES.iter().map(|s| s.name).collect();
        wrong("--shape", name, format!("there are {}", known.join(", ")))
    })?;
    let one = |name: &String| {
        let format = Format::from_name(name)
            .filter(|f| cases::weight_formats().any(|w| w == *f))
            .ok_or_else(|| wrong("--type", name, "no format of weights is called so".into()))?;
        let block = format.block_elements();
        let unfit = shape.matrices().into_iter().find(|(_, [_, columns])| !columns.is_multiple_of(block));
        if let Some((matrix, [_, columns])) = unfit {
            let why = format!("{matrix} has rows of {columns}, which are no whole blocks of {block}");
            return Err(wrong("--type", name, why));
        }
        Ok(ModelPlan { shape, format, decode, prefill, greedy, start })
    };
    options.types.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_make_no_sense_name_themselves() {
        let llm = || Options { cases: vec!["llm".into()], ..Options::default() };
        for (options, says) in [
            (Options { shape: Some("huge".into()), ..llm() }, "--shape \"huge\": there are llama3-8b"),
            (Options { types: vec!["Q9_9".into()], ..llm() }, "--type \"Q9_9\""),
            (Options { types: vec!["Q8_K".into()], ..llm() }, "no format of weights"),
            (Options { seconds: f64::NAN, ..llm() }, "--seconds"),
        ] {
            let error = Plan::new(&options).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let plan = Plan::new(&Options { types: vec!["Q4_0".into(), "f16".into()], ..llm() }).unwrap();
        assert_eq!((plan.models.len(), plan.cases.len()), (2, 0));
        assert_eq!(plan.models[1].name("decode"), "llm/decode/llama3-8b/f16");
    }
}
