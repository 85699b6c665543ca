//! Attention.

use tallow::DType::{self, BF16, F16, F32};

use super::{by, distinct, draw, size};
use crate::networks::Call;
use crate::sweep::point::{Point, full, sampled};

/// Heads of queries and of keys, their dimension, queries and keys.
type Shape = [usize; 5];

pub(super) fn points() -> Vec<Point> {
    let mut points = vec![];
    for keys in [1, 32, 512, 4096, 32_768, 131_072] {
        points.push(attention(F16, false, [32, 8, 128, 1, keys]));
    }
    for queries in [2, 4, 8, 16, 64, 256] {
        points.push(attention(F16, false, [32, 8, 128, queries, 4096]));
    }
    for length in [64, 256, 512, 1024, 2048, 4096, 8192] {
        points.push(attention(F16, true, [32, 8, 128, length, length]));
    }
    for dim in [32, 64, 80, 96, 256] {
        points.push(attention(F16, false, [16, 16, dim, 1024, 1024]));
        points.push(attention(F16, false, [16, 16, dim, 1, 4096]));
    }
    for dtype in [F32, BF16] {
        points.push(attention(dtype, false, [32, 8, 128, 1, 4096]));
        points.push(attention(dtype, true, [16, 16, 64, 1024, 1024]));
        points.push(attention(dtype, false, [12, 12, 64, 197, 197]));
    }
    points.push(attention(F16, false, [96, 96, 64, 197, 197]));
    points.push(attention(F16, false, [256, 256, 32, 49, 49]));
    points.push(attention(F16, false, [40, 40, 64, 4096, 77]));
    let mut draw = draw(11);
    points.extend(distinct(8, || {
        let (groups, heads) = (draw.pick(&[1, 4]), draw.pick(&[2, 8]));
        let shape = [
            groups * heads,
            heads,
            draw.pick(&[64, 128]),
            size(&mut draw, 1, 2048),
            size(&mut draw, 1, 8192),
        ];
        Some(attention(draw.pick(&[F16, F16, F32]), false, shape))
    }));
    points
}

fn attention(dtype: DType, causal: bool, [heads, groups, dim, queries, keys]: Shape) -> Point {
    let kind = if causal { "causal" } else { "full" };
    let name = format!("attention/{dtype}-{kind}/{}", by(&[heads, groups, dim, queries, keys]));
    let positions = if causal { full(queries) } else { sampled(queries, 8) };
    // The first group of heads alone, where queries are not sampled.
    let all = if causal { sampled(groups, 1) } else { full(groups) };
    let ratio = heads / groups;
    let point = Point::new(name, dtype, vec![all, positions], move |b, sizes| {
        let (groups, queries) = (sizes[0], sizes[1]);
        let q = b.input("q", &[1, groups * ratio, queries, dim]);
        let k = b.input("k", &[1, groups, keys, dim]);
        let v = b.input("v", &[1, groups, keys, dim]);
        vec![b.call(Call::Attention { causal }, &[q, k, v])]
    });
    let flops = 4 * (heads * queries * keys * dim) as u64;
    point.with_flops(if causal { flops / 2 } else { flops })
}
