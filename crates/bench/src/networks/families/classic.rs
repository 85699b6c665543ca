//! Iterations of numerical programs, all f32.

use tallow::DType;

use super::super::builder::{Builder, Var};
use super::super::{Binary, Call, Unary};

/// Steps of k-means: distances to all centers, the nearest one, the mean of each cluster.
pub fn kmeans(b: &mut Builder) -> Vec<Var> {
    b.dtype = DType::F32;
    let points = b.draw.extent(&[10_000, 50_000, 100_000], 200);
    let width = b.draw.extent(&[8, 32, 64, 128], 4);
    let clusters = b.draw.extent(&[16, 64, 256], 4);
    let steps = b.draw.pick(&[1, 2]);
    let x = b.input("points", &[points, width]);
    let mut centers = b.input("centers", &[clusters, width]);
    let column = b.slice(x, 1, 0, 1);
    let column = b.reshape(column, &[points]);
    let ones = b.call(Call::FullLike { value: 1.0 }, &[column]);
    for _ in 0..steps {
        let squares = b.unary(Unary::Square, centers);
        let lengths = b.sum(squares, &[1]);
        let products = b.matmul_t(x, centers);
        let products = b.affine(products, -2.0, 0.0);
        // The squared length of a point does not choose its center.
        let distances = b.add(products, lengths);
        let nearest = b.call(Call::Argmin { axis: 1 }, &[distances]);
        let zeros = b.call(Call::FullLike { value: 0.0 }, &[centers]);
        let sums = b.call(Call::IndexAdd { axis: 0 }, &[zeros, nearest, x]);
        let zeros = b.call(Call::FullLike { value: 0.0 }, &[lengths]);
        let counts = b.call(Call::IndexAdd { axis: 0 }, &[zeros, nearest, ones]);
        let one = b.call(Call::FullLike { value: 1.0 }, &[counts]);
        let counts = b.binary(Binary::Maximum, counts, one);
        let counts = b.reshape(counts, &[clusters, 1]);
        centers = b.div(sums, counts);
    }
    vec![centers]
}

/// Steps of PageRank: over a dense matrix, or over a list of edges.
pub fn pagerank(b: &mut Builder) -> Vec<Var> {
    b.dtype = DType::F32;
    let steps = b.draw.pick(&[4, 8]);
    let damping = 0.85;
    if b.draw.coin() {
        let nodes = b.draw.extent(&[1024, 2048, 4096], 64);
        let raw = b.input("links", &[nodes, nodes]);
        let links = b.unary(Unary::Abs, raw);
        let totals = b.sum_keepdim(links, &[0]);
        let links = b.div(links, totals);
        let mut ranks = b.input("ranks", &[nodes, 1]);
        for _ in 0..steps {
            ranks = b.matmul(links, ranks);
            ranks = b.affine(ranks, damping, (1.0 - damping) / nodes as f64);
        }
        return vec![ranks];
    }
    let nodes = b.draw.extent(&[10_000, 100_000], 200);
    let edges = nodes * b.draw.pick(&[4, 8, 16]);
    let [sources, targets] = ["sources", "targets"].map(|name| b.integers(name, &[edges], nodes));
    let shares = b.weight("shares", &[edges], 0.2);
    let mut ranks = b.input("ranks", &[nodes]);
    for _ in 0..steps {
        let sent = b.call(Call::IndexSelect { axis: 0 }, &[ranks, sources]);
        let sent = b.mul(sent, shares);
        let zeros = b.call(Call::FullLike { value: 0.0 }, &[ranks]);
        ranks = b.call(Call::IndexAdd { axis: 0 }, &[zeros, targets, sent]);
        ranks = b.affine(ranks, damping, (1.0 - damping) / nodes as f64);
    }
    vec![ranks]
}

/// Steps of the power iteration for the largest eigenvalue of `A^T A`, and its Rayleigh quotient.
pub fn power_iteration(b: &mut Builder) -> Vec<Var> {
    b.dtype = DType::F32;
    let rows = b.draw.extent(&[1024, 2048, 4096], 64);
    let columns = b.draw.extent(&[512, 1024, 2048], 64);
    let steps = b.draw.pick(&[2, 4, 6]);
    let a = b.weight("a", &[rows, columns], (columns as f64).powf(-0.5));
    let mut v = b.input("v", &[columns, 1]);
    let mut quotient = v;
    for _ in 0..steps {
        let product = b.matmul(a, v);
        let next = b.call(Call::Matmul { transpose_a: true, transpose_b: false }, &[a, product]);
        let squares = b.unary(Unary::Square, next);
        let sum = b.sum_keepdim(squares, &[0]);
        let length = b.unary(Unary::Sqrt, sum);
        v = b.div(next, length);
        quotient = length;
    }
    vec![quotient, v]
}
