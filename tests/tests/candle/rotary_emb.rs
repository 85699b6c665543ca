//! `tallow::nn::rotary_emb` against `candle_nn::rotary_emb`.

use candle_nn::rotary_emb as theirs;
use tallow::nn::rotary_emb as ours;
use tallow::{DType, Device, Dim, Input, Symbol, Tensor, compile};
use tallow_ir::caps::profile;
use tallow_tests::rng::Rng;

use crate::inputs::{Pair, numbers, pair};
use crate::suite::{Apart, Bound, Suite, candles, same};

type Ours = fn(&Tensor, &Tensor, &Tensor) -> tallow::Result<Tensor>;
type Theirs = fn(
    &candle_core::Tensor,
    &candle_core::Tensor,
    &candle_core::Tensor,
) -> candle_core::Result<candle_core::Tensor>;

/// Name, both sides, the axis of positions, and whether angles may be of three axes.
const FUNCTIONS: [(&str, Ours, Theirs, usize, bool); 5] = [
    ("rope", ours::rope, theirs::rope, 2, true),
    ("rope_i", ours::rope_i, theirs::rope_i, 2, true),
    ("rope_thd", ours::rope_thd, theirs::rope_thd, 1, true),
    ("rope_slow", ours::rope_slow, theirs::rope_slow, 2, false),
    ("rope_i_slow", ours::rope_i_slow, theirs::rope_i_slow, 2, false),
];

/// Batch, two axes that are heads and positions in either order, and elements of a head.
const SHAPES: [[usize; 4]; 7] =
    [[1, 1, 1, 2], [2, 3, 5, 6], [1, 2, 7, 10], [3, 1, 1, 8], [2, 5, 1, 4], [2, 3, 33, 64], [1, 7, 3, 2]];

/// Three products and sums, each rounded by half a step of the largest.
const BOUND: Bound = Bound::Steps(2.0);

fn drawn(rng: &mut Rng, dims: &[usize], dtype: DType, device: &Device) -> Pair {
    let count = dims.iter().product();
    pair(&numbers(rng, count, dtype), dims, dtype, device)
}

/// Both sides, and what is compared later.
fn check(
    s: &mut Suite,
    (name, ours, theirs): (String, Ours, Theirs),
    apart: Apart,
    [x, cos, sin]: [&Pair; 3],
) {
    let got = ours(&x.0, &cos.0, &sin.0).map(|y| vec![y]);
    let expected = candles(|| Ok(vec![theirs(&x.1, &cos.1, &sin.1)?]));
    s.add(name, BOUND, apart, got, expected);
}

fn values(s: &mut Suite, dtypes: &[DType]) {
    let (device, rng) = (s.device.clone(), &mut Rng::new(77));
    let mut of = |dims: &[usize], dtype: DType| drawn(rng, dims, dtype, &device);
    for (name, ours, theirs, seq_axis, batched) in FUNCTIONS {
        for (dtype, dims) in dtypes.iter().flat_map(|dtype| SHAPES.map(|dims| (*dtype, dims))) {
            let (seq, pairs) = (dims[seq_axis], dims[3] / 2);
            let x = of(&dims, dtype);
            // As many rows as positions, more, and those of each sequence.
            let angles = [vec![seq, pairs], vec![seq + 3, pairs], vec![dims[0], seq, pairs]];
            for shape in &angles[..2 + usize::from(batched)] {
                let (cos, sin) = (of(shape, dtype), of(shape, dtype));
                let case = (format!("{name} of {dims:?} {dtype} with {shape:?}"), ours, theirs);
                check(s, case, Apart::Never, [&x, &cos, &sin]);
            }
        }
        // Any layout, where Candle wants one.
        let views = [[2, 6, 4, 3].as_slice(), &[3, 6], &[3, 6]].map(|dims| {
            let (ours, theirs) = of(dims, DType::F32);
            let (first, last) = (usize::from(dims.len() == 4), dims.len() - 1);
            (ours.transpose(first, last).unwrap(), theirs.transpose(first, last).unwrap())
        });
        check(s, (format!("{name} of views"), ours, theirs), Apart::More, views.each_ref());
        let whole = views.map(|(ours, theirs)| (ours, theirs.contiguous().unwrap()));
        check(s, (format!("{name} of these views"), ours, theirs), Apart::Never, whole.each_ref());
    }
}

/// What fails on both sides.
fn refusals(s: &mut Suite) {
    let (device, rng) = (s.device.clone(), &mut Rng::new(78));
    let typed = |dims: &[usize], dtype| drawn(&mut Rng::new(79), dims, dtype, &device);
    let mut of = |dims: &[usize]| drawn(rng, dims, DType::F32, &device);
    let (x, good) = (of(&[2, 5, 5, 6]), of(&[5, 3]));
    let wrong = [
        ("more pairs", of(&[5, 4])),
        ("fewer pairs", of(&[5, 2])),
        ("fewer rows", of(&[4, 3])),
        ("another batch", of(&[3, 5, 3])),
        ("four axes", of(&[1, 1, 5, 3])),
        ("one axis", of(&[15])),
        ("another type", typed(&[5, 3], DType::F16)),
    ];
    let (three, odd) = (of(&[5, 5, 6]), of(&[2, 5, 5, 7]));
    let (whole, angles) = (typed(&[2, 5, 5, 6], DType::U32), typed(&[5, 3], DType::U32));
    for (name, ours, theirs, _, fast) in FUNCTIONS {
        let mut refuse = |why: &str, apart, operands| {
            check(s, (format!("{name} of {why}"), ours, theirs), apart, operands);
        };
        for (why, angles) in &wrong {
            // The slow formulas broadcast.
            let apart = if fast { Apart::Never } else { Apart::More };
            refuse(why, apart, [&x, angles, &good]);
            refuse(why, apart, [&x, &good, angles]);
        }
        refuse("three axes", Apart::Never, [&three, &good, &good]);
        refuse("an odd head", Apart::Never, [&odd, &good, &good]);
        if fast {
            refuse("integers", Apart::Never, [&whole, &angles, &angles]);
        }
    }
}

#[test]
fn values_and_refusals_on_the_cpu() {
    let mut suite = Suite::new(&Device::Cpu);
    values(&mut suite, &[DType::F16, DType::BF16, DType::F32, DType::F64]);
    refusals(&mut suite);
    suite.finish();
}

#[cfg(feature = "vulkan")]
#[test]
fn values_and_refusals_on_a_vulkan_device() {
    let Some(device) = tallow_tests::device::device() else { return };
    let mut suite = Suite::new(&device);
    values(&mut suite, &[DType::F32, DType::F16, DType::BF16]);
    refusals(&mut suite);
    suite.finish();
}

/// Each sequence has its own angles, also where only one of the two does, or there are more rows than positions.
#[test]
fn sequences_have_angles_of_their_own() {
    let rng = &mut Rng::new(80);
    let (batch, seq, pairs) = (3, 4, 2);
    let mut of = |dims: &[usize]| drawn(rng, dims, DType::F32, &Device::Cpu).0;
    let (cos, sin) = (of(&[batch, seq + 3, pairs]), of(&[seq, pairs]));
    for (name, ours, _, seq_axis, batched) in FUNCTIONS {
        if !batched {
            continue;
        }
        let x = if seq_axis == 1 { of(&[batch, seq, 5, 4]) } else { of(&[batch, 5, seq, 4]) };
        let got = ours(&x, &cos, &sin).unwrap();
        for at in 0..batch {
            let alone = ours(&x.narrow(0, at, 1).unwrap(), &cos.get(at).unwrap(), &sin).unwrap();
            let [got, want] = [got.get(at).unwrap(), alone].map(|t| t.to_flat_vec::<f32>().unwrap());
            assert_eq!(got, want, "{name}, sequence {at}");
        }
    }
}

/// Compiled once for every length and position: angles are those of positions `pos` to `pos + seq`.
fn replayed(device: &Device) {
    let (heads, dim, most) = (3, 10, 40usize);
    let (seq, pos) = (Symbol::new("seq", 16), Symbol::new("pos", 24));
    let rng = &mut Rng::new(79);
    let [cos, sin] = [(); 2].map(|()| drawn(rng, &[most, dim / 2], DType::F32, device));
    for (name, ours, theirs, seq_axis, _) in FUNCTIONS {
        let shape: [Dim; 4] = match seq_axis {
            1 => [1.into(), seq.clone().into(), heads.into(), dim.into()],
            _ => [1.into(), heads.into(), seq.clone().into(), dim.into()],
        };
        // As a cache of keys would have it, whose extent tells the position.
        let inputs = [Input::new("x", DType::F32, shape), Input::new("past", DType::F32, pos.clone())];
        let function = compile(device, &inputs, |x| {
            let at = |angles: &Tensor| angles.narrow(0, &pos, &x[0].sym_dims()[seq_axis]);
            Ok(vec![ours(&x[0], &at(&cos.0)?, &at(&sin.0)?)?])
        })
        .unwrap();
        for (seq, pos) in [(16usize, 1usize), (1, 24), (7, 5), (1, 1)] {
            let dims = if seq_axis == 1 { [1, seq, heads, dim] } else { [1, heads, seq, dim] };
            let x = drawn(rng, &dims, DType::F32, device);
            let past = Tensor::zeros(pos, DType::F32, device).unwrap();
            let got = function.run(&[&x.0, &past]).unwrap();
            let part = |angles: &Pair| angles.1.narrow(0, pos, seq).unwrap();
            let expected = theirs(&x.1, &part(&cos), &part(&sin)).unwrap();
            same(&got[0], &expected, BOUND).unwrap_or_else(|why| panic!("{name}, {seq} at {pos}: {why}"));
        }
    }
}

#[test]
fn one_function_serves_every_length() {
    replayed(&Device::Cpu);
    #[cfg(feature = "vulkan")]
    if let Some(device) = tallow_tests::device::device() {
        replayed(&device);
    }
}

/// Whatever the pairs are, all is one map kernel.
#[test]
fn each_function_is_one_dispatch() {
    let seq = Symbol::new("seq", 512);
    for (name, ours, _, seq_axis, _) in FUNCTIONS {
        for length in [Dim::from(&seq), 1.into(), 512.into()] {
            let shape: [Dim; 4] = match seq_axis {
                1 => [2.into(), length.clone(), 8.into(), 64.into()],
                _ => [2.into(), 8.into(), length.clone(), 64.into()],
            };
            let angles: [Dim; 2] = [512.into(), 32.into()];
            let inputs = [
                Input::new("x", DType::F16, shape),
                Input::new("cos", DType::F16, angles.clone()),
                Input::new("sin", DType::F16, angles),
            ];
            let function = compile(&Device::Cpu, &inputs, |x| Ok(vec![ours(&x[0], &x[1], &x[2])?])).unwrap();
            // The minimum binds 4 buffers: no room for the table of extents beside operands and result.
            let profiles = if length.as_const().is_some() { 3 } else { 2 };
            for caps in &["h200", "lavapipe", "minimum"][..profiles] {
                let module = tallow_codegen::compile(function.graph(), &profile(caps).unwrap()).unwrap();
                assert_eq!(module.program.dispatches.len(), 1, "{name} on {caps}:\n{}", function.graph());
            }
        }
    }
}
