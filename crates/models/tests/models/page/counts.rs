//! Dispatches and levels of a layer: the planner's, and those that were counted by hand.

use serde::Deserialize;
use tallow_gguf::{Format, GgufFile};
use tallow_ir::caps::profile;
use tallow_models::LoadOptions;
use tallow_models::graphs::graphs;
use tallow_models::model_graph::ModelGraph;

use super::{TOLERANCE, table};
use crate::architectures::Fixture;

/// The profile that is planned for.
pub const PROFILE: &str = "h200";
/// The most tokens of an encoder's text.
pub const TEXT: usize = 16;

/// Counts by hand of fixtures with the same layer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByHand {
    pub fixtures: Vec<String>,
    pub dispatches: usize,
    pub levels: usize,
    /// What each level holds.
    pub derivation: String,
}

/// Fixtures whose plans are not within the tolerance.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    pub fixtures: Vec<String>,
    pub reason: String,
}

/// The counts of one fixture.
#[derive(Clone, Debug)]
pub struct Count {
    pub fixture: String,
    /// Dispatches and levels of the plan.
    pub planned: [usize; 2],
    /// Dispatches and levels by hand.
    pub expected: [usize; 2],
    pub derivation: String,
}

impl Count {
    /// Whether plan and hand differ by no more than the tolerance.
    pub fn is_close(&self) -> bool {
        self.planned.iter().zip(self.expected).all(|(a, b)| a.abs_diff(b) <= TOLERANCE)
    }
}

/// The counts by hand.
pub fn by_hand() -> Vec<ByHand> {
    #[derive(Deserialize)]
    struct Table {
        layer: Vec<ByHand>,
    }
    table::<Table>("layer_counts.toml").layer
}

/// The gaps that are known.
pub fn gaps() -> Vec<Gap> {
    #[derive(Deserialize)]
    struct Table {
        #[serde(default)]
        gap: Vec<Gap>,
    }
    table::<Table>("layer_gaps.toml").gap
}

/// The counts of all fixtures, in the order of those by hand.
pub fn counted() -> Vec<Count> {
    let fixtures = Fixture::all();
    let by_hand = by_hand();
    let listed: Vec<&String> = by_hand.iter().flat_map(|group| &group.fixtures).collect();
    for fixture in &fixtures {
        let times = listed.iter().filter(|name| **name == &fixture.name).count();
        assert_eq!(times, 1, "{} in layer_counts.toml", fixture.name);
    }
    let of = |group: &ByHand, name: &String| {
        let fixture = fixtures.iter().find(|fixture| fixture.name == *name);
        Count {
            fixture: name.clone(),
            planned: planned(fixture.unwrap_or_else(|| panic!("there is no fixture {name}"))),
            expected: [group.dispatches, group.levels],
            derivation: group.derivation.clone(),
        }
    };
    by_hand.iter().flat_map(|group| group.fixtures.iter().map(move |name| of(group, name))).collect()
}

/// Dispatches and levels of a layer: what a model has more whose last layer is there twice. What layers share, such as the
/// rotations of rope, is in both.
fn planned(fixture: &Fixture) -> [usize; 2] {
    let file = GgufFile::parse(fixture.file(Format::Q8_0)).unwrap();
    let model = ModelGraph::from_file(&file).unwrap();
    let mut longer = model.clone();
    longer.config.layers += 1;
    let [last, added] = [model.config.layers - 1, model.config.layers].map(|layer| format!("blk.{layer}."));
    for tensor in &fixture.tensors {
        if let (Some(part), Some(ty)) = (tensor.name.strip_prefix(&last), model.types.get(&tensor.name)) {
            longer.types.insert(&format!("{added}{part}"), ty.clone());
        }
    }
    let [all, without] = [&longer, &model].map(whole);
    [all[0] - without[0], all[1] - without[1]]
}

/// Dispatches and levels of a decode step, or of an encoder's graph.
fn whole(model: &ModelGraph) -> [usize; 2] {
    let caps = profile(PROFILE).unwrap();
    let context = model.config.architecture.is_encoder().then_some(TEXT);
    let options = LoadOptions { context, ..LoadOptions::default() };
    let graph = graphs(model, Some(&caps), &options).unwrap().swap_remove(0);
    let module = tallow_codegen::compile(&graph, &caps).unwrap();
    [module.program.dispatches.len(), module.plan.levels.len()]
}
