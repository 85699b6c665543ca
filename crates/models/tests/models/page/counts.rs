//! Dispatches and levels of a layer: the planner's, and those that were counted by hand.

use serde::Deserialize;
use tallow_gguf::{Format, GgufFile};
use tallow_ir::caps::profile;
use tallow_models::LoadOptions;
use tallow_models::graphs::graphs;
use tallow_models::model_graph::ModelGraph;

use super::sizes::Published;
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
    /// Whether the layer has the sizes of a published model.
    #[serde(default)]
    pub published: bool,
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
    /// The published model whose sizes the layer has, instead of the fixture's.
    pub published: Option<String>,
    /// Dispatches and levels of the plan.
    pub planned: [usize; 2],
    /// Dispatches and levels by hand.
    pub expected: [usize; 2],
    pub derivation: String,
}

impl Count {
    /// What gaps call it: the published model, or else the fixture.
    pub fn name(&self) -> &String {
        self.published.as_ref().unwrap_or(&self.fixture)
    }

    /// Whether plan and hand differ by no more than the tolerance.
    pub fn is_close(&self) -> bool {
        self.planned.iter().zip(self.expected).all(|(a, b)| a.abs_diff(b) <= TOLERANCE)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    layer: Vec<ByHand>,
    published: Vec<Published>,
}

fn by_hand() -> Table {
    table("layer_counts.toml")
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

/// The counts of all fixtures, in the order of those by hand. Each is counted once, and perhaps once more in the sizes of a
/// published model.
pub fn counted() -> Vec<Count> {
    let fixtures = Fixture::all();
    let Table { layer, published } = by_hand();
    let times = |name: &String, of_published: bool| {
        let groups = layer.iter().filter(|group| group.published == of_published);
        groups.flat_map(|group| &group.fixtures).filter(|other| *other == name).count()
    };
    for fixture in &fixtures {
        assert_eq!(times(&fixture.name, false), 1, "{} in layer_counts.toml", fixture.name);
        let sizes = published.iter().filter(|sizes| sizes.fixture == fixture.name).count();
        assert_eq!(times(&fixture.name, true), sizes, "{} in layer_counts.toml", fixture.name);
    }
    let of = |group: &ByHand, name: &String| {
        let fixture = fixtures.iter().find(|fixture| fixture.name == *name);
        let fixture = fixture.unwrap_or_else(|| panic!("there is no fixture {name}"));
        let sizes = published.iter().find(|sizes| group.published && sizes.fixture == *name);
        Count {
            fixture: name.clone(),
            published: sizes.map(|sizes| sizes.model.clone()),
            planned: planned(fixture, sizes),
            expected: [group.dispatches, group.levels],
            derivation: group.derivation.clone(),
        }
    };
    layer.iter().flat_map(|group| group.fixtures.iter().map(move |name| of(group, name))).collect()
}

/// Dispatches and levels of a layer: what a model has more whose last layer is there twice. What layers share, such as the
/// rotations of rope, is in both.
fn planned(fixture: &Fixture, sizes: Option<&Published>) -> [usize; 2] {
    let file = GgufFile::parse(fixture.file(Format::Q8_0)).unwrap();
    let mut model = ModelGraph::from_file(&file).unwrap();
    if let Some(sizes) = sizes {
        sizes.apply(&mut model, fixture);
    }
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
