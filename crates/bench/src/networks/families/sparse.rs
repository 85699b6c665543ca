//! Networks with choices and lookups.

use tallow::DType;

use super::super::builder::{Builder, Var};
use super::super::{Call, Relation, Unary};

/// A mixture of experts: every expert computes every token, weighted by the top-k mask of the router.
pub fn experts(b: &mut Builder) -> Vec<Var> {
    let dtype = b.dtype;
    let (count, k) = b.draw.pick(&[(4, 1), (4, 2), (8, 2)]);
    let width = b.draw.extent(&[256, 512, 1024], 16);
    let hidden = b.draw.extent(&[512, 1024, 2048], 32);
    let tokens = b.draw.extent(&[128, 256, 512, 1024], 16);
    let x = b.input("x", &[tokens, width]);
    // Routers compute in f32, so that rounding does not choose the experts.
    let wide = b.cast(x, dtype, DType::F32);
    b.dtype = DType::F32;
    let logits = b.project(wide, width, count);
    b.dtype = dtype;
    let shares = b.call(Call::Softmax { axis: 1 }, &[logits]);
    let largest = b.call(Call::Topk { k }, &[shares]);
    let least = b.slice(largest, 1, k - 1, 1);
    let chosen = b.call(Call::Compare { relation: Relation::Ge, value: None }, &[shares, least]);
    let none = b.call(Call::FullLike { value: 0.0 }, &[shares]);
    let shares = b.call(Call::Where, &[chosen, shares, none]);
    let total = b.sum_keepdim(shares, &[1]);
    let shares = b.div(shares, total);
    let shares = b.cast(shares, DType::F32, dtype);
    let shares = b.permute(shares, &[1, 0]);
    let shares = b.reshape(shares, &[count, tokens, 1]);
    let x = b.reshape(x, &[1, tokens, width]);
    let x = b.broadcast(x, &[count, tokens, width]);
    let up = b.weight("up", &[count, width, hidden], (width as f64).powf(-0.5));
    let down = b.weight("down", &[count, hidden, width], (hidden as f64).powf(-0.5));
    let y = b.matmul(x, up);
    let y = b.unary(Unary::Silu, y);
    let y = b.matmul(y, down);
    let y = b.mul(y, shares);
    vec![b.sum(y, &[0])]
}

/// Weighted sums of rows of a table, and two layers, as in recommendation models.
pub fn embedding_bag(b: &mut Builder) -> Vec<Var> {
    let entries = b.draw.extent(&[10_000, 100_000, 500_000], 1000);
    let width = b.draw.extent(&[32, 64, 128], 8);
    let bag = b.draw.extent(&[8, 20, 40, 100], 4);
    let batch = b.draw.extent(&[256, 1024, 4096], 64);
    let hidden = b.draw.extent(&[128, 256, 512], 16);
    let table = b.weight("table", &[entries, width], 1.0);
    let indices = b.integers("indices", &[batch, bag], entries);
    let weights = b.input("weights", &[batch, bag]);
    let rows = b.call(Call::Embedding, &[table, indices]);
    let weights = b.reshape(weights, &[batch, bag, 1]);
    let weighted = b.mul(rows, weights);
    let sums = b.sum(weighted, &[1]);
    let y = b.linear(sums, width, hidden);
    let y = b.unary(Unary::Relu, y);
    let y = b.linear(y, hidden, 1);
    vec![b.unary(Unary::Sigmoid, y), sums]
}

/// A graph convolution: features of the edges' sources, summed at their targets, and a layer.
pub fn graph_conv(b: &mut Builder) -> Vec<Var> {
    b.dtype = DType::F32;
    let nodes = b.draw.extent(&[2708, 20_000, 50_000], 200);
    let degree = b.draw.pick(&[4, 8, 16]);
    let width = b.draw.extent(&[32, 64, 128], 8);
    let outer = b.draw.extent(&[16, 64, 128], 8);
    let edges = nodes * degree;
    let x = b.input("x", &[nodes, width]);
    let [sources, targets] = ["sources", "targets"].map(|name| b.integers(name, &[edges], nodes));
    let weights = b.weight("edges", &[edges, 1], (degree as f64).powf(-0.5));
    let messages = b.call(Call::IndexSelect { axis: 0 }, &[x, sources]);
    let messages = b.mul(messages, weights);
    let zeros = b.call(Call::FullLike { value: 0.0 }, &[x]);
    let sums = b.call(Call::IndexAdd { axis: 0 }, &[zeros, targets, messages]);
    let both = b.add(x, sums);
    let y = b.linear(both, width, outer);
    vec![b.unary(Unary::Relu, y)]
}
