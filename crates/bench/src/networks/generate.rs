//! The families of networks, what a seed draws of them, and fixed programs.

use super::Network;
use super::builder::{Builder, Var};
use super::draw::Scale;
use super::families::{
    classic, convolution, images, losses, programs, recurrent, sparse, state_space, transformer,
};

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

/// Programs of fixed extents: rows of a table of cases that were once far from the limit.
pub const PROGRAMS: &[Family] = &[
    family("matmul", programs::matmul),
    family("matmul-of-sum", programs::matmul_of_sum),
    family("rows-512-of-sum", programs::rows_512_of_sum),
    family("rows-16", programs::rows_16),
    family("rows-64", programs::rows_64),
    family("vector", programs::vector),
    family("vector-transposed", programs::vector_transposed),
    family("rows-4", programs::rows_4),
    family("rows-4-transposed", programs::rows_4_transposed),
    family("vector-f32", programs::vector_f32),
    family("vector-f32-transposed", programs::vector_f32_transposed),
    family("column", programs::column),
    family("feed-forward", programs::feed_forward),
    family("kmeans", programs::kmeans),
    family("encoder", programs::encoder),
    family("diffusion", programs::diffusion),
    family("cross-entropy", programs::cross_entropy),
    family("gated-conv", programs::gated_conv),
    family("top-8", programs::top_8),
];

/// What names a network.
#[derive(Clone, Copy)]
pub enum Source {
    /// A seed.
    Seed(u64),
    /// One of [`PROGRAMS`].
    Program(&'static Family),
}

impl Source {
    /// The network at a scale.
    pub fn network(self, scale: Scale) -> Network {
        match self {
            Source::Seed(seed) => generate(seed, scale),
            Source::Program(program) => {
                let mut builder = Builder::new(0, scale);
                let outputs = (program.write)(&mut builder);
                builder.finish(format!("program/{}", program.name), 0, &outputs)
            }
        }
    }
}

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
