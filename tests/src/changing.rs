//! Programs whose extents change, and how many plans they need.

use tallow::{DType, Device, Result, Tensor, nn};

/// A program of lazy tensors.
pub struct Changing {
    /// What it is like.
    pub name: &'static str,
    /// How many programs it compiles where extents become symbols.
    pub compilations: u64,
    /// How many on lavapipe, where kernels are chosen: ranges of symbols end where others are faster.
    pub with_kernels: u64,
    /// Runs it; a number of each of its steps.
    pub run: fn(&Device) -> Result<Vec<f32>>,
}

/// All of them.
pub const ALL: [Changing; 13] = [
    Changing { name: "a growing cache", compilations: 4, with_kernels: 4, run: a_growing_cache },
    Changing { name: "batches of all sizes", compilations: 3, with_kernels: 3, run: batches_of_all_sizes },
    Changing {
        name: "padded batches of texts",
        compilations: 2,
        with_kernels: 2,
        run: padded_batches_of_texts,
    },
    Changing {
        name: "growing masks and positions",
        compilations: 3,
        with_kernels: 3,
        run: growing_masks_and_positions,
    },
    Changing { name: "few and many rows", compilations: 3, with_kernels: 4, run: few_and_many_rows },
    Changing {
        name: "images of several sizes",
        compilations: 4,
        with_kernels: 4,
        run: images_of_several_sizes,
    },
    Changing {
        name: "widths of whole vectors",
        compilations: 4,
        with_kernels: 5,
        run: widths_of_whole_vectors,
    },
    Changing { name: "top k of several k", compilations: 6, with_kernels: 6, run: top_k_of_several_k },
    Changing { name: "a last partial batch", compilations: 2, with_kernels: 2, run: a_last_partial_batch },
    Changing { name: "beam search", compilations: 5, with_kernels: 5, run: beam_search },
    Changing { name: "a cache of slices", compilations: 5, with_kernels: 5, run: a_cache_of_slices },
    Changing { name: "a carried average", compilations: 5, with_kernels: 5, run: a_carried_average },
    Changing { name: "nested loops", compilations: 3, with_kernels: 3, run: nested_loops },
];

/// The number at a position of [`numbers`].
fn number(at: usize, seed: usize) -> f32 {
    ((at * 37 + seed * 101) % 64) as f32 / 32.0 - 1.0
}

/// Numbers from -1 to 1 that others than the seed's do not have in this order.
fn numbers(device: &Device, shape: &[usize], seed: usize) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let data: Vec<f32> = (0..count).map(|at| number(at, seed)).collect();
    Tensor::new(data.as_slice(), device)?.reshape(shape)
}

/// Pseudo-random batch sizes from 1 to 64.
fn sizes() -> impl Iterator<Item = usize> {
    (0..64).map(|i| (i * 29 + 47) % 64 + 1)
}

/// Attention over a cache to which each step appends a position with `cat`; a number of each step.
///
/// # Errors
/// When the device fails.
pub fn growing_cache(device: &Device, steps: usize) -> Result<Vec<f32>> {
    let (heads, size) = (2, 4);
    let mut keys = numbers(device, &[heads, 1, size], 0)?;
    let mut values = numbers(device, &[heads, 1, size], 1)?;
    let mut sums = vec![];
    for step in 0..steps {
        let (k, v) =
            (numbers(device, &[heads, 1, size], 2 + step)?, numbers(device, &[heads, 1, size], 3 * step)?);
        keys = Tensor::cat(&[&keys, &k], 1)?;
        values = Tensor::cat(&[&values, &v], 1)?;
        let q = numbers(device, &[heads, 1, size], 5 * step)?;
        let scores = (q.matmul(&keys.t()?)? * 0.5)?;
        let out = nn::ops::softmax(&scores, 2)?.matmul(&values)?;
        sums.push(out.sum_all()?.to_scalar::<f32>()?);
    }
    Ok(sums)
}

/// The numbers of [`growing_cache`], in f64 and without tensors.
pub fn growing_cache_by_hand(steps: usize) -> Vec<f64> {
    let (heads, size) = (2, 4);
    let row = |head: usize, seed: usize| (0..size).map(move |at| f64::from(number(head * size + at, seed)));
    let mut cache = vec![(0, 1)];
    let step = |step: usize| {
        cache.push((2 + step, 3 * step));
        let head = |head: usize| {
            let score =
                |key: usize| row(head, 5 * step).zip(row(head, key)).map(|(q, k)| q * k).sum::<f64>() * 0.5;
            let weights: Vec<f64> = cache.iter().map(|(key, _)| score(*key).exp()).collect();
            let of_value =
                |((_, value), weight): (&(usize, usize), &f64)| row(head, *value).sum::<f64>() * weight;
            cache.iter().zip(&weights).map(of_value).sum::<f64>() / weights.iter().sum::<f64>()
        };
        (0..heads).map(head).sum()
    };
    (0..steps).map(step).collect()
}

fn a_growing_cache(device: &Device) -> Result<Vec<f32>> {
    growing_cache(device, 40)
}

fn batches_of_all_sizes(device: &Device) -> Result<Vec<f32>> {
    let (w, b) = (numbers(device, &[16, 8], 1)?, numbers(device, &[8], 2)?);
    let mut sums = vec![];
    for n in sizes() {
        let x = numbers(device, &[n, 16], n)?;
        let y = x.matmul(&w)?.broadcast_add(&b)?.gelu()?;
        sums.push(nn::ops::softmax(&y, 1)?.max(1)?.sum_all()?.to_scalar()?);
    }
    Ok(sums)
}

/// Batches that are padded to their longest text, with positions and a mask.
fn padded_batches_of_texts(device: &Device) -> Result<Vec<f32>> {
    let table = numbers(device, &[32, 8], 1)?;
    let mut sums = vec![];
    for (batch, len) in [(4, 7), (3, 12), (4, 9), (2, 30), (7, 5), (4, 31), (6, 6), (5, 17)] {
        let ids = Tensor::arange(0u32, (batch * len) as u32, device)?.affine(1.0, 0.0)?;
        let ids = (ids.to_dtype(DType::F32)? / 40.0)?.to_dtype(DType::U32)?.reshape((batch, len))?;
        let positions = Tensor::arange(0f32, len as f32, device)?.reshape((1, len, 1))?;
        let x = table.index_select(&ids.flatten_all()?, 0)?.reshape((batch, len, 8))?;
        let x = x.broadcast_add(&positions.affine(0.125, 0.0)?)?;
        let rows = Tensor::arange(0u32, len as u32, device)?;
        let mask = rows.reshape((1, len))?.broadcast_le(&rows.reshape((len, 1))?)?;
        let hidden = Tensor::full(-1e9f32, (len, len), device)?;
        let bias = mask.where_cond(&Tensor::zeros((len, len), DType::F32, device)?, &hidden)?;
        let scores = x.matmul(&x.transpose(1, 2)?)?.broadcast_add(&bias)?;
        let y = nn::ops::softmax(&scores, 2)?.matmul(&x)?;
        sums.push(y.mean_all()?.to_scalar()?);
    }
    Ok(sums)
}

/// A text grows by a word each step; its mask and its positions are made anew.
fn growing_masks_and_positions(device: &Device) -> Result<Vec<f32>> {
    let table = numbers(device, &[32, 8], 1)?;
    let mut ids: Vec<u32> = vec![3, 1];
    let mut sums = vec![];
    for step in 0..30 {
        let len = ids.len();
        let positions = Tensor::arange(0f32, len as f32, device)?.reshape((len, 1))?;
        let x = table.index_select(&Tensor::new(ids.as_slice(), device)?, 0)?;
        let x = x.broadcast_add(&(positions * 0.03)?.sin()?)?;
        let rows = Tensor::arange(0u32, len as u32, device)?;
        let seen = rows.reshape((1, len))?.broadcast_le(&rows.reshape((len, 1))?)?;
        let hidden = Tensor::full(f32::NEG_INFINITY, (len, len), device)?;
        let bias = seen.where_cond(&hidden.zeros_like()?, &hidden)?;
        let scores = (x.matmul(&x.t()?)? + bias)?;
        let y = nn::ops::softmax(&scores, 1)?.matmul(&x)?.narrow(0, len - 1, 1)?;
        sums.push(y.sum_all()?.to_scalar()?);
        ids.push((step * 7) % 32);
    }
    Ok(sums)
}

/// Products of few rows have kernels of their own.
fn few_and_many_rows(device: &Device) -> Result<Vec<f32>> {
    let w = numbers(device, &[512, 2048], 1)?.to_dtype(DType::F16)?;
    tallow::eval(&[&w])?;
    let mut sums = vec![];
    for n in [40, 90, 3, 100, 2, 8, 64, 5, 17, 200] {
        let x = (numbers(device, &[n, 512], n)? * 0.01)?.to_dtype(DType::F16)?;
        sums.push(x.matmul(&w)?.to_dtype(DType::F32)?.mean_all()?.to_scalar()?);
    }
    Ok(sums)
}

fn images_of_several_sizes(device: &Device) -> Result<Vec<f32>> {
    let kernel = numbers(device, &[4, 3, 3, 3], 1)?;
    let mut sums = vec![];
    for (h, w) in [(8, 8), (16, 12), (12, 16), (20, 24), (9, 9), (31, 15), (10, 24)] {
        let x = numbers(device, &[1, 3, h, w], h)?;
        let y = x.conv2d(&kernel, 1, 1, 1, 1)?.relu()?;
        sums.push(y.mean_all()?.to_scalar()?);
    }
    Ok(sums)
}

/// Images whose rows are whole vectors, and others. Two plans copy the images; kernels add one for whole vectors.
fn widths_of_whole_vectors(device: &Device) -> Result<Vec<f32>> {
    let kernel = numbers(device, &[32, 32, 3, 3], 1)?;
    let mut sums = vec![];
    for (h, w) in [(23, 41), (20, 37), (24, 48), (31, 27), (30, 32), (17, 44), (26, 35)] {
        let x = numbers(device, &[1, 32, h, w], h)?.contiguous()?;
        tallow::eval(&[&x])?;
        let y = x.conv2d(&kernel, 1, 1, 1, 1)?;
        // By itself: reductions have other kernels, whose times count, too.
        let all: Vec<Vec<Vec<f32>>> = y.squeeze(0)?.to_vec3()?;
        sums.push(all.iter().flatten().flatten().map(|x| x * x).sum());
    }
    Ok(sums)
}

/// The number that a sort keeps is part of the structure: each is compiled.
fn top_k_of_several_k(device: &Device) -> Result<Vec<f32>> {
    let mut sums = vec![];
    for (n, k) in [(40, 2), (50, 3), (60, 2), (70, 3), (80, 2), (90, 3)] {
        let x = numbers(device, &[n], k)?;
        let (values, _) = x.sort_last_dim(false)?;
        sums.push(values.narrow(0, 0, k)?.sum_all()?.to_scalar()?);
    }
    Ok(sums)
}

/// An epoch ends with fewer examples; two plans serve all epochs.
fn a_last_partial_batch(device: &Device) -> Result<Vec<f32>> {
    let w = numbers(device, &[8, 4], 1)?;
    let mut sums = vec![];
    for n in [16, 16, 16, 5, 16, 16, 16, 5] {
        let x = numbers(device, &[n, 8], n)?;
        sums.push(x.matmul(&w)?.sqr()?.mean_all()?.to_scalar()?);
    }
    Ok(sums)
}

/// The texts of a beam grow; they are chosen again by index each step.
fn beam_search(device: &Device) -> Result<Vec<f32>> {
    let table = numbers(device, &[16, 8], 1)?;
    let mut texts = Tensor::new([[1u32], [2], [3]], device)?;
    let mut sums = vec![];
    for step in 0..20 {
        let len = texts.dim(1)?;
        let x = table.index_select(&texts.flatten_all()?, 0)?.reshape((3, len, 8))?;
        let scores = x.sum(1)?.matmul(&table.t()?)?;
        let best = scores.argmax(1)?;
        let chosen = Tensor::new([0u32, step % 3, 2], device)?;
        texts = Tensor::cat(&[&texts, &best.unsqueeze(1)?], 1)?.index_select(&chosen, 0)?;
        sums.push(scores.max_all()?.to_scalar()?);
    }
    Ok(sums)
}

/// Keys are written into a buffer of fixed size, of which a growing slice is read.
fn a_cache_of_slices(device: &Device) -> Result<Vec<f32>> {
    let mut keys = Tensor::zeros((2, 64, 4), DType::F32, device)?;
    let mut sums = vec![];
    for step in 0..40 {
        let k = numbers(device, &[2, 1, 4], step)?;
        keys = keys.slice_scatter(&k, 1, step)?;
        let seen = keys.narrow(1, 0, step + 1)?;
        let q = numbers(device, &[2, 1, 4], 7 * step)?;
        sums.push(nn::ops::softmax(&q.matmul(&seen.t()?)?, 2)?.max_all()?.to_scalar()?);
    }
    Ok(sums)
}

/// What is carried along is never read itself: it is stored all the same, so that steps are alike.
fn a_carried_average(device: &Device) -> Result<Vec<f32>> {
    let mut average = Tensor::zeros(8, DType::F32, device)?;
    let mut sums = vec![];
    for step in 0..30 {
        average = ((average * 0.5)? + numbers(device, &[8], step)?)?;
        sums.push(average.sqr()?.sum_all()?.to_scalar()?);
    }
    Ok(sums)
}

/// Two lengths that change at different rates.
fn nested_loops(device: &Device) -> Result<Vec<f32>> {
    let mut sums = vec![];
    for outer in 2..8 {
        for inner in 3..9 {
            let (a, b) = (numbers(device, &[outer, 8], inner)?, numbers(device, &[8, inner], outer)?);
            sums.push(a.matmul(&b)?.exp()?.sum_all()?.to_scalar()?);
        }
    }
    Ok(sums)
}
