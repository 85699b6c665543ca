//! Attention against a composition of products, masks and a softmax, in f64.
#![allow(clippy::unwrap_used)]

use tallow::nn::{self, AttentionOptions};
use tallow::{D, DType, Device, Result, Symbol, Tensor};

const CPU: Device = Device::Cpu;

/// Batch, heads, key heads, queries, keys, depth, width.
type Extents = [usize; 7];

const SHAPES: [Extents; 8] = [
    [1, 1, 1, 1, 1, 1, 1],
    [2, 4, 2, 5, 5, 8, 8],
    [3, 6, 1, 1, 67, 4, 3],
    [1, 3, 3, 7, 3, 5, 2],
    [2, 2, 2, 3, 130, 16, 16],
    [1, 2, 1, 4, 0, 3, 2],
    [1, 2, 1, 0, 4, 3, 2],
    [0, 2, 1, 2, 4, 3, 2],
];

/// Numbers from -2 to 2 that look random.
fn wave(shape: impl Into<Vec<usize>>, seed: f64, dtype: DType) -> Result<Tensor> {
    let shape = shape.into();
    let n: usize = shape.iter().product();
    let values = (0..n).map(|i| 2.0 * (i as f64 * 12.9898 + seed).sin()).collect::<Vec<_>>();
    Tensor::from_vec(values, shape, &CPU)?.to_dtype(dtype)
}

fn qkv([b, h, g, s, t, d, e]: Extents, dtype: DType) -> Result<[Tensor; 3]> {
    let shapes = [vec![b, h, s, d], vec![b, g, t, d], vec![b, g, t, e]];
    let [q, k, v] = shapes.map(|shape| wave(shape, 0.3, dtype));
    Ok([q?, k?, v?])
}

/// What the options mean, written out in f64; the mask is of the whole shape.
struct Naive {
    scale: f64,
    causal: bool,
    window: Option<usize>,
    softcap: Option<f64>,
    mask: Option<Tensor>,
    slopes: Option<Vec<f64>>,
}

impl Naive {
    fn attention(&self, [q, k, v]: &[Tensor; 3]) -> Result<Vec<f64>> {
        let [b, h, s, _] = q.dims() else { panic!("a batch") };
        let (b, h, s) = (*b, *h, *s);
        let (g, t, e) = (k.dim(1)?, k.dim(2)?, v.dim(3)?);
        let wide = |x: &Tensor| x.to_dtype(DType::F64);
        let mut out = vec![];
        for batch in 0..b {
            for head in 0..h {
                let row = |x: &Tensor, at: usize| -> Result<Vec<Vec<f64>>> {
                    wide(x)?.get(batch)?.get(at)?.to_vec2()
                };
                let (q, k, v) = (row(q, head)?, row(k, head / (h / g))?, row(v, head / (h / g))?);
                let mask = self.mask.as_ref().map(|m| row(m, head)).transpose()?;
                for i in 0..s {
                    let position = i as i64 + t as i64 - s as i64;
                    let score = |j: usize| {
                        let mut x: f64 = self.scale * q[i].iter().zip(&k[j]).map(|(a, b)| a * b).sum::<f64>();
                        if let Some(cap) = self.softcap {
                            x = cap * (x / cap).tanh();
                        }
                        let distance = (j as i64 - position).abs() as f64;
                        x -= self.slopes.as_ref().map_or(0.0, |m| m[head] * distance);
                        x + mask.as_ref().map_or(0.0, |m| m[i][j])
                    };
                    let seen = |j: &usize| {
                        let j = *j as i64;
                        (!self.causal || j <= position) && self.window.is_none_or(|w| j > position - w as i64)
                    };
                    let scores: Vec<(usize, f64)> = (0..t)
                        .filter(seen)
                        .map(|j| (j, score(j)))
                        .filter(|s| s.1 > f64::NEG_INFINITY)
                        .collect();
                    let top = scores.iter().map(|s| s.1).fold(f64::NEG_INFINITY, f64::max);
                    let sum: f64 = scores.iter().map(|s| (s.1 - top).exp()).sum();
                    let mixed =
                        |c: usize| scores.iter().map(|s| (s.1 - top).exp() * v[s.0][c]).sum::<f64>() / sum;
                    out.extend((0..e).map(|c| if scores.is_empty() { 0.0 } else { mixed(c) }));
                }
            }
        }
        Ok(out)
    }
}

/// The interpreter rounds once, so the result is within a unit of its last place at the size of the values (2), and
/// what the scores lose where the mask is computed in f32: 10 terms of at most 100 in units of 2^-24, times 2 more.
fn close(what: &str, got: &Tensor, want: &[f64]) -> Result<()> {
    let unit = match got.dtype() {
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        _ => 2f64.powi(-23),
    };
    let got = got.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    assert_eq!(got.len(), want.len(), "{what}");
    let bound = 2.0 * unit + 4000.0 * 2f64.powi(-24);
    for (i, (a, b)) in got.iter().zip(want).enumerate() {
        assert!((a - b).abs() <= bound, "{what}, element {i}: {a}, not {b}");
    }
    Ok(())
}

#[test]
fn every_option_over_awkward_shapes() -> Result<()> {
    for (number, extents) in SHAPES.into_iter().enumerate() {
        let [b, h, _, s, t, d, _] = extents;
        for variant in 0..24 {
            let dtype = [DType::F32, DType::F16, DType::BF16][(number + variant) % 3];
            let all = qkv(extents, dtype)?;
            let mask = (variant % 3 == 1).then(|| -> Result<[Tensor; 2]> {
                // Every third key is hidden; of the second query all are.
                let hide = |i: usize| i.is_multiple_of(3) || (i / t.max(1)) % s.max(1) == 1;
                let value = |i: usize| if hide(i) { f32::NEG_INFINITY } else { (i % 7) as f32 };
                let part = [1, h, s, t];
                let mask = Tensor::from_vec((0..h * s * t).map(value).collect(), part.to_vec(), &CPU)?;
                Ok([mask.clone(), mask.broadcast_as((b, h, s, t))?])
            });
            let mask = mask.transpose()?;
            let slopes = (variant % 4 == 3).then(|| nn::alibi_slopes(h, &CPU)).transpose()?;
            let naive = Naive {
                scale: 1.0 / (d as f64).sqrt(),
                causal: variant % 2 == 0,
                window: [None, Some(3), Some(1000)][variant / 2 % 3],
                softcap: (variant % 5 == 2).then_some(1.5),
                mask: mask.as_ref().map(|m| m[1].clone()),
                slopes: slopes
                    .as_ref()
                    .map(|m| m.to_vec1::<f32>().unwrap().into_iter().map(f64::from).collect()),
            };
            let mut options = AttentionOptions::default().causal(naive.causal);
            options = naive.window.into_iter().fold(options, |o, w| o.window(w));
            options = naive.softcap.into_iter().fold(options, |o, c| o.softcap(c));
            options = mask.iter().fold(options, |o, m| o.mask(&m[0]));
            options = slopes.iter().fold(options, |o, m| o.alibi(m));
            let y = nn::attention(&all[0], &all[1], &all[2], &options)?;
            let what = format!("{extents:?}, variant {variant}, {dtype}");
            assert_eq!((y.dtype(), y.dims()), (dtype, [b, h, s, extents[6]].as_slice()), "{what}");
            close(&what, &y, &naive.attention(&all)?)?;
        }
    }
    Ok(())
}

/// As Candle defines it.
#[test]
fn sdpa_is_a_softmax_of_products() -> Result<()> {
    let [q, k, v] = qkv([2, 4, 4, 3, 6, 8, 8], DType::F32)?;
    let mask = wave([2, 4, 3, 6], 0.7, DType::F32)?;
    let scores = q.matmul(&k.t()?)?.affine(0.3, 0.0)?;
    let plain = nn::softmax(&scores, D::Minus1)?.matmul(&v)?;
    let masked = nn::softmax(&scores.add(&mask)?, D::Minus1)?.matmul(&v)?;
    let capped = scores.affine(0.5, 0.0)?.tanh()?.affine(2.0, 0.0)?;
    let capped = nn::softmax(&capped, D::Minus1)?.matmul(&v)?;
    let ours = [
        (nn::sdpa(&q, &k, &v, None, false, 0.3, 1.0)?, plain),
        (nn::sdpa(&q, &k, &v, Some(&mask), false, 0.3, 1.0)?, masked),
        (nn::ops::sdpa(&q, &k, &v, None, false, 0.3, 2.0)?, capped),
    ];
    for (got, want) in &ours {
        close("sdpa", got, &want.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?)?;
    }
    Ok(())
}

#[test]
fn slopes_of_the_paper() -> Result<()> {
    assert_eq!(
        nn::alibi_slopes(8, &CPU)?.to_vec1::<f32>()?,
        (1..=8).map(|i| 0.5f32.powi(i)).collect::<Vec<_>>()
    );
    // Those of 4 heads, then the first and third of 8.
    let twelve = nn::alibi_slopes(6, &CPU)?.to_vec1::<f32>()?;
    assert_eq!(twelve, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]);
    assert_eq!(nn::alibi_slopes(1, &CPU)?.to_vec1::<f32>()?, [0.00390625]);
    assert_eq!(nn::alibi_slopes(0, &CPU)?.dims(), [0]);
    Ok(())
}

/// Whatever is added to the scores, they are never in memory: one kernel, and an arena that would not hold them. (Workgroups
/// that share the keys of a query have partial results there.)
#[cfg(feature = "vulkan")]
#[test]
fn scores_are_never_in_memory() -> Result<()> {
    let Ok(device) = Device::best_vulkan() else { return Ok(()) };
    let all = qkv([3, 4, 2, 33, 70, 16, 16], DType::F32)?;
    let [q, k, v] = all.each_ref().map(|t| t.to_device(&device));
    let mask = wave([1, 1, 33, 70], 0.1, DType::F16)?.to_device(&device)?;
    let slopes = nn::alibi_slopes(4, &device)?;
    let options =
        AttentionOptions::default().causal(true).window(20).softcap(30.0).mask(&mask).alibi(&slopes);
    let text = nn::attention(&q?, &k?, &v?, &options)?.explain()?;
    let arena = text.split("arena: ").nth(1).and_then(|rest| rest.split(' ').next());
    let arena: usize =
        arena.and_then(|bytes| bytes.parse().ok()).ok_or_else(|| tallow::Error::msg(text.clone()))?;
    assert!(text.contains("plan: 1 dispatch,") && arena < 4 * (3 * 4 * 33 * 70), "{text}");
    Ok(())
}

#[test]
fn symbols_and_errors() -> Result<()> {
    let seq = Symbol::new("seq", 9);
    let input = |name: &str, heads: usize| tallow::Input::new(name, DType::F32, (2, heads, seq.clone(), 4));
    let slopes = nn::alibi_slopes(2, &CPU)?;
    let options = AttentionOptions::default().causal(true).alibi(&slopes);
    let f = tallow::compile(&CPU, &[input("q", 2), input("k", 1), input("v", 1)], |x| {
        Ok(vec![nn::attention(&x[0], &x[1], &x[2], &options)?])
    })?;
    for s in [1, 5, 9] {
        let all = qkv([2, 2, 1, s, s, 4, 4], DType::F32)?;
        let want = nn::attention(&all[0], &all[1], &all[2], &options)?;
        let got = f.run(&[&all[0], &all[1], &all[2]])?.remove(0);
        assert_eq!(got.flatten_all()?.to_vec1::<f32>()?, want.flatten_all()?.to_vec1::<f32>()?);
    }
    let [q, k, v] = qkv([1, 3, 2, 2, 2, 4, 4], DType::F32)?;
    let plain = AttentionOptions::default();
    let message = |r: Result<Tensor>| r.unwrap_err().to_string();
    assert_eq!(
        message(nn::attention(&q, &k, &v, &plain)),
        "shape mismatch in attention, lhs: [1,3,2,4], rhs: [1,2,2,4]"
    );
    let [q, k, v] = qkv([1, 2, 2, 2, 2, 4, 4], DType::F32)?;
    assert!(
        message(nn::attention(&q, &k.to_dtype(DType::F16)?, &v, &plain))
            .contains("dtype mismatch in attention")
    );
    assert!(message(nn::attention(&q, &k, &v.to_dtype(DType::U8)?, &plain)).contains("unexpected dtype"));
    assert!(message(nn::attention(&q, &k, &v, &plain.clone().window(0))).contains("window of no keys"));
    assert!(
        message(nn::attention(&q, &k, &v, &plain.clone().softcap(0.0))).contains("cannot be capped at 0")
    );
    assert!(message(nn::attention(&q, &k, &v, &plain.clone().mask(&q))).contains("cannot broadcast"));
    assert!(message(nn::attention(&q, &k, &v, &plain.alibi(&slopes.get(0)?))).contains("cannot broadcast"));
    assert!(message(nn::sdpa(&q.get(0)?, &k, &v, None, true, 1.0, 1.0)).contains("unexpected rank in sdpa"));
    Ok(())
}
