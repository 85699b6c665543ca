//! The points of all families: grids, and random points by a fixed seed.

mod attention;
mod convolution;
mod indexing;
mod map;
mod matmul;
mod matmul_fused;
mod matmul_quantized;
mod normalization;
mod pooling;
mod random;
mod reduction;
mod scan;
mod sort;

use tallow::DType;

use super::point::Point;
use crate::networks::{Draw, Scale};

/// The seed of random points.
pub const SEED: u64 = 30;

/// Every point, family by family.
pub fn points() -> Vec<Point> {
    [
        matmul::points(),
        matmul_quantized::points(),
        matmul_fused::points(),
        convolution::points(),
        reduction::points(),
        map::points(),
        indexing::points(),
        scan::points(),
        sort::points(),
        normalization::points(),
        attention::points(),
        pooling::points(),
        random::points(),
    ]
    .concat()
}

/// Random choices of a family.
fn draw(family: u64) -> Draw {
    Draw::new(SEED << 8 | family, Scale::Full)
}

/// A size between `least` and `most`, drawn evenly from their logarithms: odd ones and primes among them.
fn size(draw: &mut Draw, least: usize, most: usize) -> usize {
    let span = (most as f64 / least as f64).ln();
    ((least as f64) * (span * draw.unit()).exp()).round() as usize
}

/// `count` points by random choices, no two of one name.
fn distinct(count: usize, mut one: impl FnMut() -> Option<Point>) -> Vec<Point> {
    let mut points: Vec<Point> = vec![];
    while points.len() < count {
        points.extend(one().filter(|point| points.iter().all(|other| other.name != point.name)));
    }
    points
}

/// Bytes of an element.
fn bytes(dtype: DType) -> u64 {
    dtype.size().unwrap_or(4) as u64
}

/// Extents as they are written in names: `8x4096`.
fn by(sizes: &[usize]) -> String {
    sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join("x")
}
