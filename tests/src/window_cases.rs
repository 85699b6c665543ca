//! Convolutions, pools, unfolding and resizing with what they must give, by naive loops that share nothing
//! with the code under test. Used against the interpreter and against a device.

use tallow::{DType, Device, Result, Tensor};

use crate::rng::Rng;

/// Builds the tensor under test on a device.
type Build = Box<dyn Fn(&Device) -> Result<Tensor>>;

/// One expression and its value.
pub struct Case {
    /// What it does, for messages.
    pub name: String,
    /// The expression on a device.
    pub build: Build,
    /// Shape of the result.
    pub shape: Vec<usize>,
    /// The elements, row-major.
    pub want: Vec<f64>,
    /// How far an element may be off.
    pub tolerance: f64,
}

impl Case {
    /// Computes the expression on `device` and says what is wrong with it.
    pub fn check(&self, device: &Device) -> std::result::Result<(), String> {
        let fail = |e: tallow::Error| format!("{}: {e}", self.name);
        let out = (self.build)(device).map_err(fail)?;
        let shape = out.dims().to_vec();
        if shape != self.shape {
            return Err(format!("{}: shape {shape:?}, not {:?}", self.name, self.shape));
        }
        let flat = out.to_dtype(DType::F32).and_then(|t| t.flatten_all()).map_err(fail)?;
        let got = flat.to_vec1::<f32>().map_err(fail)?;
        for (i, (got, want)) in got.iter().zip(&self.want).enumerate() {
            // Not `>`: a NaN must not pass.
            let error = (f64::from(*got) - want).abs();
            if error.is_nan() || error > self.tolerance * (1.0 + want.abs()) {
                return Err(format!("{}: element {i} of {shape:?} is {got}, not {want}", self.name));
            }
        }
        Ok(())
    }
}

/// A tensor of up to five axes in f64.
#[derive(Clone, Debug)]
struct Data {
    dims: Vec<usize>,
    at: Vec<f64>,
}

impl Data {
    /// Values that every float type holds exactly: multiples of 1/8 within +-2.
    fn random(seed: u64, dims: &[usize]) -> Data {
        let mut rng = Rng::new(seed);
        let count = dims.iter().product();
        Data { dims: dims.to_vec(), at: (0..count).map(|_| rng.between(-16, 16) as f64 / 8.0).collect() }
    }

    fn zeros(dims: &[usize]) -> Data {
        Data { dims: dims.to_vec(), at: vec![0.0; dims.iter().product()] }
    }

    fn offset(&self, index: &[usize]) -> usize {
        index.iter().zip(&self.dims).fold(0, |n, (i, d)| n * d + i)
    }

    fn get(&self, index: &[usize]) -> f64 {
        self.at[self.offset(index)]
    }

    fn tensor(&self, dtype: DType, device: &Device) -> Result<Tensor> {
        let values: Vec<f32> = self.at.iter().map(|x| *x as f32).collect();
        Tensor::from_vec(values, self.dims.clone(), device)?.to_dtype(dtype)
    }
}

/// All indices of a shape, in order.
fn indices(dims: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for d in dims {
        all = all.iter().flat_map(|at| (0..*d).map(move |i| [at.as_slice(), &[i]].concat())).collect();
    }
    all
}

fn build(dims: &[usize], element: impl Fn(&[usize]) -> f64) -> Data {
    Data { dims: dims.to_vec(), at: indices(dims).iter().map(|at| element(at)).collect() }
}

#[derive(Clone, Copy, Debug)]
struct By {
    padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
}

fn convolution(x: &Data, k: &Data, by: By) -> Data {
    let spatial = |d: &Data| d.dims[2..].to_vec();
    let (c_out, c_in) = (k.dims[0], k.dims[1]);
    let extent = |(n, k): (&usize, &usize)| (n + 2 * by.padding - by.dilation * (k - 1) - 1) / by.stride + 1;
    let output_dims: Vec<usize> = spatial(x).iter().zip(&spatial(k)).map(extent).collect();
    let taps = indices(&spatial(k));
    build(&[&[x.dims[0], c_out], output_dims.as_slice()].concat(), |at| {
        let mut sum = 0.0;
        for c in 0..c_in {
            'tap: for tap in &taps {
                let mut from = vec![at[0], at[1] / (c_out / by.groups) * c_in + c];
                for (axis, t) in tap.iter().enumerate() {
                    let coordinate = (at[2 + axis] * by.stride + t * by.dilation) as i64 - by.padding as i64;
                    if coordinate < 0 || coordinate >= x.dims[2 + axis] as i64 {
                        continue 'tap;
                    }
                    from.push(coordinate as usize);
                }
                sum += x.get(&from) * k.get(&[&[at[1], c], tap.as_slice()].concat());
            }
        }
        sum
    })
}

/// Each element of the input is spread over the result.
fn transposed(x: &Data, k: &Data, output_padding: usize, by: By) -> Data {
    let per_group = x.dims[1] / by.groups;
    let extent = |(n, k): (&usize, &usize)| {
        (n - 1) * by.stride + by.dilation * (k - 1) + output_padding + 1 - 2 * by.padding
    };
    let output_dims: Vec<usize> = x.dims[2..].iter().zip(&k.dims[2..]).map(extent).collect();
    let mut out = Data::zeros(&[&[x.dims[0], k.dims[1] * by.groups], output_dims.as_slice()].concat());
    for from in indices(&x.dims) {
        for o in 0..k.dims[1] {
            'tap: for tap in indices(&k.dims[2..]) {
                let mut to = vec![from[0], from[1] / per_group * k.dims[1] + o];
                for (axis, t) in tap.iter().enumerate() {
                    let coordinate =
                        (from[2 + axis] * by.stride + t * by.dilation) as i64 - by.padding as i64;
                    if coordinate < 0 || coordinate >= output_dims[axis] as i64 {
                        continue 'tap;
                    }
                    to.push(coordinate as usize);
                }
                let offset = out.offset(&to);
                out.at[offset] += x.get(&from) * k.get(&[&[from[1], o], tap.as_slice()].concat());
            }
        }
    }
    out
}

/// Reduces boxes of the last axes; `bounds` gives start and end for an axis (from 0) and position.
fn pooled(
    x: &Data,
    output_dims: &[usize],
    bounds: impl Fn(usize, usize) -> (usize, usize),
    max: bool,
) -> Data {
    build(&[&x.dims[..2], output_dims].concat(), |at| {
        let ranges: Vec<(usize, usize)> = at[2..].iter().enumerate().map(|(a, i)| bounds(a, *i)).collect();
        let sizes: Vec<usize> = ranges.iter().map(|(start, end)| end - start).collect();
        let elements = indices(&sizes).into_iter().map(|inside| {
            let coordinates = inside.iter().zip(&ranges).map(|(i, (start, _))| start + i);
            x.get(&at[..2].iter().copied().chain(coordinates).collect::<Vec<_>>())
        });
        if max {
            elements.fold(f64::MIN, f64::max)
        } else {
            elements.sum::<f64>() / sizes.iter().product::<usize>() as f64
        }
    })
}

fn source(at: usize, extent: usize, target: usize, corners: bool, factor: Option<f64>) -> f64 {
    if corners {
        return if target > 1 { (extent - 1) as f64 / (target - 1) as f64 * at as f64 } else { 0.0 };
    }
    factor.map_or(extent as f64 / target as f64, |f| 1.0 / f) * (at as f64 + 0.5) - 0.5
}

fn bilinear(x: &Data, to: [usize; 2], corners: bool, factors: [Option<f64>; 2]) -> Data {
    build(&[x.dims[0], x.dims[1], to[0], to[1]], |at| {
        let mut sum = 0.0;
        let part = |axis: usize| {
            let n = x.dims[2 + axis];
            let s = source(at[2 + axis], n, to[axis], corners, factors[axis]).max(0.0);
            let low = s.floor() as usize;
            [(low, 1.0 - (s - low as f64)), ((low + 1).min(n - 1), s - low as f64)]
        };
        for (h, a) in part(0) {
            for (w, b) in part(1) {
                sum += a * b * x.get(&[at[0], at[1], h, w]);
            }
        }
        sum
    })
}

/// Every element of the source, repeated beyond the border, times Keys' function of its distance.
fn bicubic(x: &Data, to: [usize; 2], corners: bool) -> Data {
    let keys = |x: f64| {
        let (x, a) = (x.abs(), -0.75);
        if x < 1.0 {
            (a + 2.0) * x.powi(3) - (a + 3.0) * x.powi(2) + 1.0
        } else if x < 2.0 {
            a * x.powi(3) - 5.0 * a * x.powi(2) + 8.0 * a * x - 4.0 * a
        } else {
            0.0
        }
    };
    build(&[x.dims[0], x.dims[1], to[0], to[1]], |at| {
        let s = [0, 1].map(|axis| source(at[2 + axis], x.dims[2 + axis], to[axis], corners, None));
        let (h, w) = (x.dims[2] as i64, x.dims[3] as i64);
        let mut sum = 0.0;
        for i in -4..h + 4 {
            for j in -4..w + 4 {
                let weight = keys(s[0] - i as f64) * keys(s[1] - j as f64);
                let coordinates = [at[0], at[1], i.clamp(0, h - 1) as usize, j.clamp(0, w - 1) as usize];
                sum += weight * x.get(&coordinates);
            }
        }
        sum
    })
}

fn case(name: String, want: Data, build: impl Fn(&Device) -> Result<Tensor> + 'static) -> Case {
    Case { name, build: Box::new(build), shape: want.dims, want: want.at, tolerance: 2e-6 }
}

/// Convolutions in f32, and some in the 16-bit floats.
pub fn convolutions() -> Vec<Case> {
    let mut cases = vec![];
    // Shape of the input, out-channels, kernel, padding, stride, dilation, groups.
    type Row = (&'static [usize], usize, &'static [usize], [usize; 4]);
    let rows: &[Row] = &[
        (&[1, 1, 1], 1, &[1], [0, 1, 1, 1]),
        (&[2, 3, 17], 12, &[3], [1, 1, 1, 1]),
        (&[2, 4, 16], 9, &[4], [0, 4, 1, 1]),
        (&[1, 6, 31], 10, &[5], [2, 3, 2, 2]),
        (&[3, 2, 7], 16, &[3], [5, 2, 1, 1]),
        (&[2, 4, 9], 4, &[3], [1, 1, 1, 4]),
        (&[1, 2, 13], 11, &[2], [0, 7, 3, 1]),
        (&[1, 3, 5, 5], 16, &[3, 3], [0, 1, 1, 1]),
        (&[2, 3, 9, 11], 16, &[3, 3], [1, 2, 1, 1]),
        (&[1, 8, 7, 5], 12, &[1, 1], [0, 1, 1, 1]),
        (&[1, 8, 7, 5], 12, &[1, 1], [0, 3, 1, 1]),
        (&[1, 5, 6, 6], 9, &[1, 1], [2, 1, 1, 1]),
        (&[2, 4, 8, 8], 32, &[2, 2], [0, 2, 1, 1]),
        (&[1, 2, 9, 7], 3, &[3, 5], [2, 1, 1, 1]),
        (&[1, 2, 13, 17], 33, &[3, 2], [0, 5, 2, 1]),
        (&[1, 6, 8, 9], 18, &[3, 3], [1, 1, 1, 3]),
        (&[2, 6, 9, 8], 6, &[3, 3], [1, 2, 1, 6]),
        (&[1, 4, 7, 7], 8, &[3, 3], [2, 1, 2, 4]),
        (&[1, 1, 3, 3], 10, &[2, 2], [4, 3, 2, 1]),
        (&[1, 3, 35, 37], 40, &[3, 3], [1, 1, 1, 1]),
        (&[1, 2, 3, 4], 9, &[3, 4], [0, 1, 1, 1]),
        (&[1, 9, 9, 8], 5, &[3, 3], [1, 2, 1, 1]),
        (&[2, 24, 6, 7], 4, &[3, 3], [1, 1, 1, 2]),
        (&[1, 16, 12, 5], 1, &[3, 3], [1, 1, 2, 1]),
        (&[0, 2, 4, 4], 9, &[3, 3], [0, 1, 1, 1]),
        (&[2, 3, 4, 5, 6], 10, &[2, 3, 2], [1, 1, 1, 1]),
        (&[1, 4, 5, 6, 7], 16, &[3, 3, 3], [1, 2, 1, 2]),
        (&[1, 2, 7, 5, 6], 2, &[1, 2, 3], [0, 2, 2, 2]),
    ];
    for (i, (shape, c_out, window, [padding, stride, dilation, groups])) in rows.iter().copied().enumerate() {
        let by = By { padding, stride, dilation, groups };
        let kernel = [&[c_out, shape[1] / groups], window].concat();
        let (x, k) = (Data::random(i as u64, shape), Data::random(100 + i as u64, &kernel));
        let want = convolution(&x, &k, by);
        let dtypes: &[DType] =
            if i % 6 == 1 { &[DType::F32, DType::F16, DType::BF16] } else { &[DType::F32] };
        for dtype in dtypes.iter().copied() {
            let (x, k) = (x.clone(), k.clone());
            let name = format!("convolution {dtype} {shape:?} by {kernel:?}, {by:?}");
            let mut one = case(name, want.clone(), move |device| {
                let (x, k) = (x.tensor(dtype, device)?, k.tensor(dtype, device)?);
                match x.rank() {
                    3 => x.conv1d(&k, padding, stride, dilation, groups),
                    4 => x.conv2d(&k, padding, stride, dilation, groups),
                    _ => x.conv3d(&k, padding, stride, dilation, groups),
                }
            });
            // Operands are exact, so one rounding of the result is all there is.
            one.tolerance = match dtype {
                DType::F16 => 1.0 / 2048.0,
                DType::BF16 => 1.0 / 256.0,
                _ => one.tolerance,
            };
            cases.push(one);
        }
    }
    cases
}

/// Transposed convolutions.
pub fn transposed_convolutions() -> Vec<Case> {
    // Shape of the input, out-channels of a group, kernel, padding, output padding, stride, dilation, groups.
    type Row = (&'static [usize], usize, &'static [usize], [usize; 5]);
    let rows: &[Row] = &[
        (&[1, 1, 1], 1, &[1], [0, 0, 1, 1, 1]),
        (&[2, 3, 7], 9, &[3], [0, 0, 1, 1, 1]),
        (&[2, 3, 7], 9, &[4], [1, 0, 2, 1, 1]),
        (&[1, 4, 6], 10, &[3], [1, 1, 3, 2, 2]),
        (&[1, 4, 6], 1, &[3], [0, 0, 2, 1, 4]),
        (&[1, 2, 9], 12, &[3], [4, 0, 1, 1, 1]),
        (&[1, 2, 5], 12, &[2], [0, 0, 5, 1, 1]),
        (&[1, 2, 5], 12, &[1], [3, 2, 4, 3, 1]),
        (&[1, 3, 4, 5], 10, &[3, 3], [0, 0, 1, 1, 1]),
        (&[2, 4, 4, 5], 9, &[4, 4], [1, 0, 2, 1, 1]),
        (&[1, 3, 5, 4], 16, &[3, 2], [1, 1, 2, 2, 1]),
        (&[1, 2, 6, 6], 3, &[2, 2], [2, 0, 1, 1, 1]),
        (&[1, 2, 3, 3], 9, &[1, 1], [0, 0, 3, 1, 1]),
    ];
    let mut cases = vec![];
    for (i, (shape, c_out, window, [padding, output_padding, stride, dilation, groups])) in
        rows.iter().copied().enumerate()
    {
        let by = By { padding, stride, dilation, groups };
        let kernel = [&[shape[1], c_out], window].concat();
        let (x, k) = (Data::random(200 + i as u64, shape), Data::random(300 + i as u64, &kernel));
        let want = transposed(&x, &k, output_padding, by);
        let name = format!("transposed {shape:?} by {kernel:?}, {by:?}, output padding {output_padding}");
        cases.push(case(name, want, move |device| {
            let (x, k) = (x.tensor(DType::F32, device)?, k.tensor(DType::F32, device)?);
            match x.rank() {
                3 => x.conv_transpose1d(&k, padding, output_padding, stride, dilation, groups),
                _ => x.conv_transpose2d(&k, padding, output_padding, stride, dilation),
            }
        }));
    }
    cases
}

/// Pools by size and stride, adaptive pools, and unfolding.
pub fn pools() -> Vec<Case> {
    [pools_of_planes(), pools_of_rows(), unfolded(), adaptive_pools()].into_iter().flatten().collect()
}

fn pools_of_planes() -> Vec<Case> {
    let mut cases = vec![];
    let rows: &[(&[usize], [usize; 2], [usize; 2])] = &[
        (&[1, 1, 1, 1], [1, 1], [1, 1]),
        (&[2, 3, 8, 6], [2, 2], [2, 2]),
        (&[2, 3, 9, 7], [3, 2], [2, 1]),
        (&[1, 2, 11, 13], [2, 3], [4, 5]),
        (&[1, 2, 5, 9], [5, 9], [1, 1]),
        (&[1, 5, 7, 16], [7, 4], [7, 4]),
        (&[1, 2, 33, 40], [6, 7], [3, 3]),
    ];
    for (i, (shape, size, stride)) in rows.iter().copied().enumerate() {
        let x = Data::random(400 + i as u64, shape);
        let output_dims = [0, 1].map(|a| (shape[2 + a] - size[a]) / stride[a] + 1);
        for max in [false, true] {
            let want = pooled(&x, &output_dims, |a, i| (i * stride[a], i * stride[a] + size[a]), max);
            let (x, name) = (x.clone(), format!("pool max={max} {shape:?} by {size:?}, {stride:?}"));
            cases.push(case(name, want, move |device| {
                let (x, size, stride) = (x.tensor(DType::F32, device)?, size.into(), stride.into());
                if max {
                    x.max_pool2d_with_stride::<(usize, usize)>(size, stride)
                } else {
                    x.avg_pool2d_with_stride::<(usize, usize)>(size, stride)
                }
            }));
        }
    }
    cases
}

/// Length, size and stride of windows along one axis.
const WINDOWS: [[usize; 3]; 3] = [[12, 3, 3], [13, 4, 2], [5, 5, 9]];

fn pools_of_rows() -> Vec<Case> {
    let mut cases = vec![];
    for [length, size, stride] in WINDOWS {
        let x = Data::random(450, &[2, 3, length]);
        for max in [false, true] {
            let output_dims = [(length - size) / stride + 1];
            let want = pooled(&x, &output_dims, |_, i| (i * stride, i * stride + size), max);
            let (x, name) = (x.clone(), format!("pool max={max} of {length} by {size}, {stride}"));
            cases.push(case(name, want, move |device| {
                let x = x.tensor(DType::F32, device)?;
                if max {
                    x.max_pool1d_with_stride(size, stride)
                } else {
                    x.avg_pool1d_with_stride(size, stride)
                }
            }));
        }
    }
    cases
}

fn unfolded() -> Vec<Case> {
    let mut cases = vec![];
    for [length, size, stride] in WINDOWS {
        let x = Data::random(450, &[2, 3, length]);
        let want = build(&[2, 3, (length - size) / stride + 1, size], |at| {
            x.get(&[at[0], at[1], at[2] * stride + at[3]])
        });
        let other = x.clone();
        cases.push(case(format!("unfold {length} by {size}, {stride}"), want, move |device| {
            other.tensor(DType::F32, device)?.unfold(2, size, stride)
        }));
        // An axis before others, whose windows then come last.
        let want = build(&[1, 3, length, 2], |at| x.get(&[at[0] + at[3], at[1], at[2]]));
        cases.push(case(format!("unfold batches of {length}"), want, move |device| {
            x.tensor(DType::F32, device)?.unfold(0, 2, 1)
        }));
    }
    cases
}

fn adaptive_pools() -> Vec<Case> {
    let mut cases = vec![];
    for (shape, to) in [
        ([2usize, 3, 8, 6], [4usize, 3]),
        ([1, 2, 7, 9], [3, 1]),
        ([1, 2, 10, 7], [4, 5]),
        ([1, 2, 3, 5], [7, 5]),
        ([2, 1, 13, 11], [5, 3]),
    ] {
        let x = Data::random(470, &shape);
        let bounds = |a: usize, i: usize| {
            let (n, count) = (shape[2 + a], to[a]);
            (
                (i as f64 * n as f64 / count as f64).floor() as usize,
                ((i + 1) as f64 * n as f64 / count as f64).ceil() as usize,
            )
        };
        for max in [false, true] {
            let want = pooled(&x, &to, bounds, max);
            let (x, name) = (x.clone(), format!("adaptive max={max} {shape:?} to {to:?}"));
            cases.push(case(name, want, move |device| {
                let (x, to) = (x.tensor(DType::F32, device)?, to.into());
                if max {
                    x.adaptive_max_pool2d::<(usize, usize)>(to)
                } else {
                    x.adaptive_avg_pool2d::<(usize, usize)>(to)
                }
            }));
        }
    }
    cases
}

/// Nearest, bilinear and bicubic resizing.
pub fn resizings() -> Vec<Case> {
    let mut cases = vec![];
    for (i, (shape, to)) in [
        ([1usize, 1, 1, 1], [3usize, 2]),
        ([2, 3, 4, 5], [8, 15]),
        ([1, 2, 9, 8], [3, 4]),
        ([1, 2, 5, 7], [7, 3]),
        ([2, 2, 3, 3], [49, 1]),
        ([1, 3, 4, 6], [4, 6]),
        ([1, 1, 2, 2], [4, 4]),
        ([1, 2, 16, 11], [5, 11]),
    ]
    .into_iter()
    .enumerate()
    {
        let x = Data::random(500 + i as u64, &shape);
        let nearest = |at: usize, axis: usize| {
            ((at as f64 * (shape[2 + axis] as f64 / to[axis] as f64)) as usize).min(shape[2 + axis] - 1)
        };
        let want = build(&[shape[0], shape[1], to[0], to[1]], |at| {
            x.get(&[at[0], at[1], nearest(at[2], 0), nearest(at[3], 1)])
        });
        let y = x.clone();
        cases.push(case(format!("nearest {shape:?} to {to:?}"), want, move |device| {
            y.tensor(DType::F32, device)?.upsample_nearest2d(to[0], to[1])
        }));
        for corners in [false, true] {
            let (y, z) = (x.clone(), x.clone());
            let want = bilinear(&x, to, corners, [None, None]);
            cases.push(case(format!("bilinear {shape:?} to {to:?}, {corners}"), want, move |device| {
                y.tensor(DType::F32, device)?.upsample_bilinear2d(to[0], to[1], corners)
            }));
            let want = bicubic(&x, to, corners);
            cases.push(case(format!("bicubic {shape:?} to {to:?}, {corners}"), want, move |device| {
                z.tensor(DType::F32, device)?.upsample_bicubic2d(to[0], to[1], corners)
            }));
        }
    }
    for (factors, corners) in
        [([2.0, 3.0], false), ([1.7, 0.6], false), ([1.7, 0.6], true), ([1.1, 1.9], false)]
    {
        let x = Data::random(550, &[1, 2, 5, 7]);
        let to = [(5.0 * factors[0]) as usize, (7.0 * factors[1]) as usize];
        let want = bilinear(&x, to, corners, factors.map(Some));
        cases.push(case(format!("bilinear by {factors:?}, {corners}"), want, move |device| {
            let x = x.tensor(DType::F32, device)?;
            x.upsample_bilinear2d_with_scale(factors[0], factors[1], corners)
        }));
    }
    let x = Data::random(560, &[2, 2, 7]);
    let want = build(&[2, 2, 10], |at| x.get(&[at[0], at[1], (at[2] as f64 * 0.7) as usize]));
    cases.push(case("nearest 7 to 10".into(), want, move |device| {
        x.tensor(DType::F32, device)?.interpolate1d(10)
    }));
    cases
}
