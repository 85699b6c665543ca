//! The families of networks, and what a seed draws of them.

use super::Network;
use super::builder::{Builder, Var};
use super::draw::Scale;
use super::families::{classic, convolution, images, losses, recurrent, sparse, state_space, transformer};

/// Networks of one structure, whose sizes and variants a seed draws.
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Writes the network; gives its results.
    write: fn(&mut Builder) -> Vec<Var>,
}

const fn family(name: &'static str, write: fn(&mut Builder) -> Vec<Var>) -> Family {
    Family { name, write }
}

/// Every family. Seed `s` draws from family `s` modulo their number.
pub const FAMILIES: &[Family] = &[
    family("encoder", transformer::encoder),
    family("prefill", transformer::prefill),
    family("decode", transformer::decode),
    family("cross-attention", transformer::cross_attention),
    family("vit", transformer::vit),
    family("mixer", transformer::mixer),
    family("resnet", convolution::resnet),
    family("mobilenet", convolution::mobilenet),
    family("convnext", convolution::convnext),
    family("unet", convolution::unet),
    family("gated-conv", convolution::gated_conv),
    family("sobel", images::sobel),
    family("lstm", recurrent::lstm),
    family("gru", recurrent::gru),
    family("ssm", state_space::ssm),
    family("experts", sparse::experts),
    family("embedding-bag", sparse::embedding_bag),
    family("graph-conv", sparse::graph_conv),
    family("contrastive", losses::contrastive),
    family("cross-entropy", losses::cross_entropy),
    family("softmax-regression", losses::softmax_regression),
    family("kmeans", classic::kmeans),
    family("pagerank", classic::pagerank),
    family("power-iteration", classic::power_iteration),
];

/// The network of a seed.
pub fn generate(seed: u64, scale: Scale) -> Network {
    generate_family(&FAMILIES[(seed % FAMILIES.len() as u64) as usize], seed, scale)
}

/// The network that a seed draws of a family.
pub fn generate_family(family: &Family, seed: u64, scale: Scale) -> Network {
    let mut builder = Builder::new(seed, scale);
    let outputs = (family.write)(&mut builder);
    builder.finish(format!("network/{}/{seed}", family.name), seed, &outputs)
}
