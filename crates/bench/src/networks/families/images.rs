//! Filters of images.

use tallow::DType;

use super::super::builder::{Builder, Var};
use super::super::{Call, Conv, Relation, Unary};

/// A filter of each channel by itself, with zeros around the image.
fn filter(b: &mut Builder, x: Var, channels: usize, [height, width]: [usize; 2]) -> Var {
    let kernel = b.weight("kernel", &[channels, 1, height, width], ((height * width) as f64).powf(-0.5));
    let mut padded = x;
    for (axis, size) in [(2, height), (3, width)] {
        if size > 1 {
            padded = b.call(Call::Pad { axis, before: size / 2, after: size / 2 }, &[padded]);
        }
    }
    let conv = Conv { stride: 1, padding: 0, groups: channels, dilation: 1 };
    b.call(Call::Conv2d(conv), &[padded, kernel])
}

/// A separable blur, the gradient's magnitude, and a threshold.
pub fn sobel(b: &mut Builder) -> Vec<Var> {
    b.dtype = DType::F32;
    let channels = b.draw.pick(&[1, 1, 3]);
    let side = b.draw.extent(&[512, 1024, 2048], 64);
    let batch = b.draw.extent(&[1, 2, 4], 2);
    let size = b.draw.pick(&[3, 5, 7]);
    let shape = [batch, channels, side, side];
    let x = b.input("image", &shape);
    let blurred = filter(b, x, channels, [1, size]);
    let blurred = filter(b, blurred, channels, [size, 1]);
    let [dx, dy] = [(); 2].map(|()| {
        let gradient = filter(b, blurred, channels, [3, 3]);
        b.unary(Unary::Square, gradient)
    });
    let sum = b.add(dx, dy);
    let magnitude = b.unary(Unary::Sqrt, sum);
    let edges = b.call(Call::Compare { relation: Relation::Gt, value: Some(1.5) }, &[magnitude]);
    let none = b.call(Call::FullLike { value: 0.0 }, &[magnitude]);
    vec![b.call(Call::Where, &[edges, magnitude, none])]
}
