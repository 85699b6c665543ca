//! Products with quantized weights.

use tallow::DType::F32;
use tallow_quant::Format;

use super::{by, distinct, draw, size};
use crate::cases::weight_formats;
use crate::networks::Call;
use crate::sweep::point::{Point, Rate, sampled};

/// Formats that most models use.
const COMMON: &[Format] = &[Format::Q4_0, Format::Q4_K, Format::Q6_K, Format::Q8_0];

pub(super) fn points() -> Vec<Point> {
    let mut points = vec![];
    for format in weight_formats().filter(|format| !format.is_plain()) {
        for m in [1, 16] {
            points.push(product(format, [m, 4096, 4096]));
        }
    }
    for &format in COMMON {
        for m in [2, 4, 8, 32, 64, 128, 512, 2048] {
            points.push(product(format, [m, 4096, 4096]));
        }
        points.push(product(format, [1, 14336, 4096]));
        points.push(product(format, [512, 4096, 14336]));
    }
    let mut draw = draw(2);
    points.extend(distinct(16, || {
        let format = draw.pick(COMMON);
        let shape = [size(&mut draw, 1, 2048), 256 * size(&mut draw, 1, 56), size(&mut draw, 16, 16384)];
        Some(product(format, shape))
    }));
    points
}

/// `[m, k] @ [n, k]^T`, the weight in blocks along k.
fn product(format: Format, [m, k, n]: [usize; 3]) -> Point {
    let name = format!("matmul-quantized/{}/{}", format.name(), by(&[m, k, n]));
    let point = Point::new(name, F32, vec![sampled(m, 8), sampled(n, 32)], move |b, sizes| {
        let x = b.input("x", &[sizes[0], k]);
        let weight = b.quantized("weight", format, &[sizes[1], k], (k as f64).powf(-0.5));
        vec![b.call(Call::Linear, &[x, weight])]
    });
    // A device multiplies quantized weights as 16-bit matrices or as integers.
    point.with_flops(2 * (m * k * n) as u64).at_rate(Rate::Matrix)
}
