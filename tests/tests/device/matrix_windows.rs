//! Convolutions of many channels by cooperative matrices against the interpreter: images and weights are copied with their
//! channels last, and padded to a multiple of eight, if single elements would take longer. On other devices nothing is
//! reordered.

use tallow_ir::passes::channels_last;
use tallow_ir::{DType, Graph, GraphError, Op, Scalar, caps};
use tallow_tests::{Tolerance, assert_close, random_inputs};

use crate::differential::{check, report};
use crate::harness::{device, interpret};

/// A convolution of two axes.
#[derive(Clone)]
struct Convolution {
    images: i64,
    groups: i64,
    /// Input and output channels of a group.
    channels: [i64; 2],
    size: [i64; 2],
    /// Extents of a window.
    window: [usize; 2],
    stride: usize,
    dilation: usize,
    /// Zeros before and after each axis.
    padding: [usize; 2],
}

const SAME: Convolution = Convolution {
    images: 1,
    groups: 1,
    channels: [16, 12],
    size: [61, 130],
    window: [3, 3],
    stride: 1,
    dilation: 1,
    padding: [1, 1],
};

/// The positions of a window along an axis.
fn windows(size: i64, window: usize, c: &Convolution) -> i64 {
    let padded = size + (c.padding[0] + c.padding[1]) as i64;
    (padded - (c.dilation * (window - 1)) as i64 - 1) / c.stride as i64 + 1
}

fn graph(c: &Convolution, dtype: DType) -> Result<Graph, GraphError> {
    let mut g = Graph::new("convolution");
    let ([inner, outer], [height, width]) = (c.channels, c.size);
    let x = g.input("x", dtype, [c.images, c.groups, inner, height, width])?;
    let [before, after] = c.padding;
    let mut image = x;
    for axis in [3, 4] {
        if before + after > 0 {
            let value = Scalar::float(dtype, 0.0);
            let pad = Op::Pad { axis, before: before.into(), after: after.into(), value };
            image = g.add(pad, &[image])?;
        }
    }
    for (axis, size) in [(4, c.window[1]), (3, c.window[0])] {
        let op = Op::Window { axis, size, stride: c.stride, dilation: c.dilation };
        image = g.add(op, &[image])?;
    }
    let columns = g.permute(image, &[0, 1, 2, 4, 6, 3, 5])?;
    let k = inner * (c.window[0] * c.window[1]) as i64;
    let n = windows(height, c.window[0], c) * windows(width, c.window[1], c);
    let columns = g.reshape(columns, [c.images, c.groups, k, n])?;
    let w = g.weight("w", dtype, [c.groups, outer, inner, c.window[0] as i64, c.window[1] as i64])?;
    let w = g.reshape(w, [1, c.groups, outer, k])?;
    let y = g.add(Op::Matmul, &[w, columns])?;
    g.output("y", y)?;
    Ok(g)
}

/// Compares convolutions with the interpreter.
fn checked(dtype: DType, cases: &[Convolution]) {
    if device().is_none() {
        return;
    }
    let failing = |(i, c): (usize, &Convolution)| {
        let graph = graph(c, dtype).expect("a graph of this test");
        check(&graph, 4900 + i as u64).map(|why| format!("{graph}\n{why}"))
    };
    report(cases.iter().enumerate().filter_map(failing).collect(), cases.len());
}

/// Convolutions whose channels are vectors as they are.
fn even() -> Vec<Convolution> {
    vec![
        SAME,
        Convolution { channels: [40, 9], size: [37, 71], padding: [2, 0], ..SAME },
        Convolution { channels: [8, 17], size: [300, 50], window: [5, 3], stride: 2, ..SAME },
        Convolution { channels: [24, 130], size: [31, 29], dilation: 2, padding: [2, 2], ..SAME },
        Convolution { images: 2, groups: 2, channels: [8, 16], size: [70, 70], padding: [0, 0], ..SAME },
        Convolution {
            images: 3,
            channels: [16, 33],
            size: [1, 3000],
            window: [1, 7],
            padding: [0, 1],
            ..SAME
        },
        // Few channels that are no vectors.
        Convolution { channels: [12, 12], ..SAME },
    ]
}

/// Convolutions of so few channels that padding them costs more than their single elements.
fn few() -> Vec<Convolution> {
    vec![
        Convolution { channels: [5, 9], size: [250, 300], ..SAME },
        Convolution {
            channels: [3, 12],
            size: [400, 411],
            window: [7, 7],
            stride: 2,
            padding: [3, 3],
            ..SAME
        },
    ]
}

/// Convolutions whose channels are padded by the copies: less than a vector, one more and one less than two, in groups and
/// images, with steps and gaps, in one axis, and in few tiles of a long K axis.
fn odd() -> Vec<Convolution> {
    vec![
        Convolution { channels: [12, 6], size: [200, 200], ..SAME },
        Convolution {
            channels: [11, 12],
            size: [200, 211],
            window: [7, 7],
            stride: 2,
            padding: [3, 3],
            ..SAME
        },
        Convolution {
            channels: [7, 8],
            size: [120, 131],
            window: [5, 5],
            dilation: 2,
            padding: [3, 0],
            ..SAME
        },
        Convolution { images: 2, groups: 2, channels: [13, 15], size: [80, 77], padding: [0, 2], ..SAME },
        Convolution {
            images: 3,
            channels: [45, 33],
            size: [1, 3001],
            window: [1, 7],
            padding: [0, 1],
            ..SAME
        },
        Convolution { channels: [205, 58], size: [21, 19], ..SAME },
        Convolution { channels: [133, 6], size: [18, 18], window: [5, 5], padding: [2, 2], ..SAME },
    ]
}

#[test]
fn odd_channels_are_padded() {
    let padded = |c: &Convolution| {
        let before = graph(c, DType::F16).expect("a graph of this test");
        let after = channels_last::run(&before, &caps::h200()).expect("the pass succeeds");
        let matmul = after.nodes().rfind(|(_, node)| node.op == Op::Matmul);
        let (_, node) = matmul.expect("a convolution is a matmul");
        after.ty(node.operands[0]).shape.dims().last().and_then(|k| k.as_const())
    };
    let of = |c: &Convolution, channels: i64| Some(channels * (c.window[0] * c.window[1]) as i64);
    let expected = |c: &Convolution| of(c, (c.channels[0] + 7) / 8 * 8);
    assert_eq!(odd().iter().map(padded).collect::<Vec<_>>(), odd().iter().map(expected).collect::<Vec<_>>());
    let stays = |c: &Convolution| of(c, c.channels[0]);
    assert_eq!(few().iter().map(padded).collect::<Vec<_>>(), few().iter().map(stays).collect::<Vec<_>>());
}

/// The rewritten convolution computes the same, also where an element is infinite.
#[test]
fn padding_changes_no_result() {
    for (i, c) in odd().iter().enumerate() {
        let before = graph(c, DType::F16).expect("a graph of this test");
        let after = channels_last::run(&before, &caps::h200()).expect("the pass succeeds");
        let mut inputs = random_inputs(&before, 70 + i as u64);
        let x = inputs.inputs.get_mut("x").expect("the image");
        let at = x.bytes.len() / 4 * 2;
        x.bytes[at..at + 2].copy_from_slice(&0x7c00u16.to_le_bytes());
        let [want, got] = [&before, &after].map(|graph| interpret(graph, &inputs).expect("it computes"));
        assert_close(&want[0].1, &got[0].1, Tolerance::Values);
    }
}

#[test]
fn f16_convolutions_match_the_interpreter() {
    checked(DType::F16, &even());
}

#[test]
fn bf16_convolutions_match_the_interpreter() {
    checked(DType::BF16, &even());
}

#[test]
fn f16_convolutions_of_odd_channels_match_the_interpreter() {
    checked(DType::F16, &[odd(), few()].concat());
}

#[test]
fn bf16_convolutions_of_odd_channels_match_the_interpreter() {
    checked(DType::BF16, &odd());
}
