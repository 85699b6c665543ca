//! What a run of the benchmark will do: everything that can be wrong about its options is said here, before a device
//! is opened.

use tallow_models::model_graph::ModelGraph;
use tallow_models::{CacheType, CacheTypes};
use tallow_quant::Format;

use crate::case::Case;
use crate::error::{BenchError, Result};
use crate::report::{Row, read};
use crate::shapes::{SHAPES, Shape};
use crate::{LLM, Options, cases, select};

/// Most positions of a cache: one of an 8B model then takes 128 GiB.
const MOST_POSITIONS: usize = 1 << 20;

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
#[derive(Clone, Debug, PartialEq)]
pub struct ModelPlan {
    /// Its shape.
    pub shape: &'static Shape,
    /// The format of its matrices.
    pub format: Format,
    /// The types of its cached keys and values.
    pub cache: CacheTypes,
    /// How many of its last layers have their weights in the host's memory.
    pub host_layers: usize,
    /// Whether decode is measured.
    pub decode: bool,
    /// Whether prefill is measured.
    pub prefill: bool,
    /// Whether decode is measured whose tokens the device chooses.
    pub greedy: bool,
    /// Whether compiling is measured.
    pub start: bool,
    /// Positions in the cache before decode is measured, ascending.
    pub depths: Vec<usize>,
    /// Tokens of the prompts of prefill, ascending; `None` stands for those of one step.
    pub prompts: Vec<Option<usize>>,
}

impl ModelPlan {
    /// The name of a step's row.
    pub fn name(&self, step: &str) -> String {
        self.name_with(step, "")
    }

    /// As [`ModelPlan::name`], with a part that says how long the text is. The cache has none in the name if it is f16.
    pub fn name_with(&self, step: &str, text: &str) -> String {
        let host = match self.host_layers {
            0 => String::new(),
            layers => format!("/host{layers}"),
        };
        let cache = match (self.cache.keys, self.cache.values) {
            (CacheType::F16, CacheType::F16) => String::new(),
            (keys, values) if keys == values => format!("/cache-{keys}"),
            (keys, values) => format!("/cache-{keys}-{values}"),
        };
        format!("llm/{step}/{}/{}{host}{text}{cache}", self.shape.name, self.format.name())
    }

    /// The model.
    ///
    /// # Errors
    /// When its hyperparameters contradict each other.
    pub fn model(&self) -> Result<ModelGraph> {
        self.shape.model(self.format, self.cache)
    }

    /// Positions of the cache that all measurements need.
    pub fn context(&self) -> usize {
        let decode = self.depths.last().map_or(0, |depth| depth + self.shape.decode);
        let prefill = self.prompts.last().copied().flatten().unwrap_or(0);
        self.shape.context().max(decode).max(prefill)
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
    let host_layers = options.host_layers;
    if host_layers > shape.layers {
        let why = format!("{name} has {} layers", shape.layers);
        return Err(wrong("--host-layers", &host_layers.to_string(), why));
    }
    if let Some(zero) = options.prompts.iter().find(|tokens| **tokens == 0) {
        return Err(wrong("--prompt", &zero.to_string(), "a prompt has at least one token".into()));
    }
    if let Some(much) =
        [&options.depths, &options.prompts].into_iter().flatten().find(|n| **n > MOST_POSITIONS)
    {
        return Err(wrong("--depth or --prompt", &much.to_string(), format!("at most {MOST_POSITIONS}")));
    }
    let cache = options.cache;
    cache.check(&shape.config()?).map_err(|error| {
        let types = format!("{}, {}", cache.keys, cache.values);
        wrong("--cache-type-k, --cache-type-v", &types, error.to_string())
    })?;
    let one = |name: &String| {
        let format = Format::from_name(name)
            .filter(|f| cases::weight_formats().any(|w| w == *f))
            .ok_or_else(|| wrong("--type", name, "no format of weights is called so".into()))?;
        let sorted = |all: &[usize]| -> Vec<usize> {
            all.iter().copied().collect::<std::collections::BTreeSet<_>>().into_iter().collect()
        };
        let depths = if options.depths.is_empty() { vec![0] } else { sorted(&options.depths) };
        let prompts = match sorted(&options.prompts) {
            none if none.is_empty() => vec![None],
            all => all.into_iter().map(Some).collect(),
        };
        Ok(ModelPlan { shape, format, cache, host_layers, decode, prefill, greedy, start, depths, prompts })
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
            (Options { prompts: vec![8, 0], ..llm() }, "--prompt \"0\""),
            (Options { depths: vec![usize::MAX], ..llm() }, "--depth"),
            (Options { host_layers: 33, ..llm() }, "--host-layers \"33\": llama3-8b has 32 layers"),
        ] {
            let error = Plan::new(&options).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let plan = Plan::new(&Options { types: vec!["Q4_0".into(), "f16".into()], ..llm() }).unwrap();
        assert_eq!((plan.models.len(), plan.cases.len()), (2, 0));
        assert_eq!(plan.models[1].name("decode"), "llm/decode/llama3-8b/f16");
        assert_eq!(plan.models[0].context(), 512);
        let host = Plan::new(&Options { host_layers: 4, ..llm() }).unwrap();
        assert_eq!(host.models[0].name("decode"), "llm/decode/llama3-8b/q4_0/host4");
        let cached = |keys, values| {
            let plan = Plan::new(&Options { cache: CacheTypes { keys, values }, ..llm() }).unwrap();
            plan.models[0].name_with("prefill", "/prompt-512")
        };
        let same = cached(CacheType::Q8_0, CacheType::Q8_0);
        assert_eq!(same, "llm/prefill/llama3-8b/q4_0/prompt-512/cache-q8_0");
        let mixed = cached(CacheType::F16, CacheType::Q4_0);
        assert_eq!(mixed, "llm/prefill/llama3-8b/q4_0/prompt-512/cache-f16-q4_0");
        let long = Options { depths: vec![4096, 0], prompts: vec![8, 1], ..llm() };
        let long = &Plan::new(&long).unwrap().models[0];
        assert_eq!((&long.depths[..], &long.prompts[..]), (&[0, 4096][..], &[Some(1), Some(8)][..]));
        assert_eq!(long.context(), 4096 + 128);
    }
}
