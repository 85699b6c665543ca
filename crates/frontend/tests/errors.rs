//! Every wrong request is an error at once, in words that name the operation, the shapes and the types.

use std::collections::HashMap;

use tallow::{D, DType, Device, Graph, Result, Tensor, nn};

const CPU: Device = Device::Cpu;

#[test]
fn messages_name_operation_shapes_and_types() -> Result<()> {
    let a = Tensor::zeros((2, 3), DType::F32, &CPU)?;
    let b = Tensor::zeros((3, 2), DType::F32, &CPU)?;
    let h = Tensor::zeros((2, 3), DType::F16, &CPU)?;
    let u = Tensor::zeros((2, 3), DType::U32, &CPU)?;
    for (result, says) in [
        (a.add(&b), "shape mismatch in add, lhs: [2,3], rhs: [3,2]"),
        (a.add(&h), "dtype mismatch in add, lhs: f32, rhs: f16"),
        (a.broadcast_mul(&b), "shape mismatch in broadcast_mul, lhs: [2,3], rhs: [3,2]"),
        (a.matmul(&a), "shape mismatch in matmul, lhs: [2,3], rhs: [2,3]"),
        (a.matmul(&h.t()?), "dtype mismatch in matmul, lhs: f32, rhs: f16"),
        (a.broadcast_as((3, 3)), "cannot broadcast [2,3] to [3,3] in broadcast_as"),
        (a.reshape((4, 2)), "shape mismatch in reshape, 6 elements do not fill shape [4,2]"),
        (a.reshape((4, ())), "invalid arguments for reshape: 6 elements are no multiple of 4"),
        (a.reshape(((), ())), "invalid arguments for reshape: 2 extents are open, at most one can be"),
        (a.sum(2), "dim 2 out of range in sum for shape [2,3]"),
        (a.max(D::Minus(3)), "dim -3 out of range in max for shape [2,3]"),
        (a.sum((0, 0)), "duplicate dim in sum, shape: [2,3], dims: [0, 0]"),
        (a.permute([0usize]), "invalid arguments for permute: [0] does not name every axis of [2,3]"),
        (a.narrow(1, 2, 2), "narrow invalid args start + len > dim_len: [2,3], dim: 1, start: 2, len: 2"),
        (u.exp(), "exp(u32[2,3]): exp needs floats of one dtype, got u32"),
        (u.mean(0), "unexpected dtype in mean, expected: a float type, got: u32"),
        (a.where_cond(&a, &a), "unexpected dtype in where_cond, expected: an integer type, got: f32"),
        (a.index_select(&u, 0), "shape mismatch in index_select, lhs: [2,3], rhs: [2,3]"),
        (a.embedding(&a), "unexpected dtype in embedding, expected: an integer type, got: f32"),
        (
            Tensor::cat(&[&a, &b], 0),
            "shape mismatch in cat for dim 1, shape for arg 1: [2,3], shape for arg 2: [3,2]",
        ),
        (Tensor::cat::<Tensor>(&[], 0), "cat expects at least one tensor"),
        (Tensor::stack(&[&a, &b], 0), "shape mismatch in stack, lhs: [2,3], rhs: [3,2]"),
        (Tensor::new(vec![vec![1f32], vec![]], &CPU), "invalid arguments for new: the data is ragged"),
        (Tensor::from_vec(vec![1f32; 5], (2, 3), &CPU), "5 elements do not fill shape [2,3]"),
        (Tensor::arange_step(0f32, 1.0, 0.0, &CPU), "from 0 to 1 by 0 is no range"),
        (Tensor::zeros(1usize << 50, DType::F32, &CPU), "more than 2^40 elements"),
        (Tensor::new(1f32, &CPU)?.t(), "unexpected rank in t, expected: 2, got: 0 ([])"),
        (nn::softmax(&a, 2), "dim 2 out of range in softmax"),
    ] {
        let error = result.map(|t| format!("{t:?}")).unwrap_err().to_string();
        assert!(error.contains(says), "{error:?} does not say {says:?}");
    }
    assert!(a.to_vec1::<f32>().unwrap_err().to_string().contains("expected: 1, got: 2"));
    assert!(a.dims3().unwrap_err().to_string().contains("expected: 3, got: 2"));
    assert!(a.chunk(0, 0).is_err());
    Ok(())
}

/// Extents, paddings, counts and offsets so large that sums and products of them overflow are errors that name the
/// operation or the shape; nothing panics, and nothing is allocated.
#[test]
fn sizes_that_overflow_are_errors() -> Result<()> {
    const MAX: usize = usize::MAX;
    let x = Tensor::zeros((2, 3), DType::F32, &CPU)?;
    let line = Tensor::zeros((1, 1, 5), DType::F32, &CPU)?;
    let image = Tensor::zeros((1, 1, 5, 5), DType::F32, &CPU)?;
    let (k1, k2) =
        (Tensor::zeros((1, 1, 3), DType::F32, &CPU)?, Tensor::zeros((1, 1, 3, 3), DType::F32, &CPU)?);
    let huge = 1usize << 40;
    let mut wrong = vec![];
    for (i, (result, says)) in [
        (Tensor::zeros((huge, huge), DType::U8, &CPU), "elements"),
        (Tensor::zeros(MAX, DType::U8, &CPU), "elements"),
        (
            Tensor::zeros((MAX, 0), DType::U8, &CPU).and_then(|t| t.broadcast_as((MAX, 2))),
            "[9223372036854775807,2]",
        ),
        (Tensor::full(1f32, (1usize << 20, 1usize << 21), &CPU), "2^40"),
        (Tensor::eye(1usize << 31, DType::U8, &CPU), "2^40"),
        (x.broadcast_as((huge, 2, 3)), "2^40"),
        (x.broadcast_left((huge, huge)), "elements"),
        (x.repeat((huge, huge)), "elements"),
        (x.repeat((MAX, MAX)), "2^40"),
        (x.reshape((MAX, MAX)), "reshape"),
        (x.reshape((huge, huge)), "reshape"),
        (x.reshape((MAX, ())), "reshape"),
        (x.narrow(0, MAX, MAX), "narrow"),
        (x.narrow(1, 1, MAX), "narrow"),
        (x.pad_with_zeros(0, MAX, MAX), "[2,3]"),
        (x.pad_with_zeros(1, 0, huge), "2^40"),
        (x.pad_with_same(0, MAX, MAX), "2^40"),
        (x.unfold(0, MAX, 1), "[2,3]"),
        (x.unfold(1, 1, MAX), "[2,3]"),
        (x.get(MAX), "narrow"),
        (x.unsqueeze(MAX), "unsqueeze"),
        (x.slice_scatter(&x, 0, MAX), "slice_scatter"),
        (x.repeat_interleave(MAX, 0), "2^40"),
        (line.conv1d(&k1, MAX, 1, 1, 1), "conv1d"),
        (line.conv1d(&k1, 1, 1, MAX, 1), "conv1d"),
        (line.conv_transpose1d(&k1, 0, MAX, MAX, 1, 1), "conv_transpose1d"),
        (image.conv2d(&k2, MAX / 2, 1, 1, 1), "conv2d"),
        (image.conv_transpose2d(&k2, MAX, 0, 1, 1), "conv_transpose2d"),
        (image.avg_pool2d(MAX), "avg_pool2d"),
        (image.max_pool2d_with_stride(MAX, MAX), "max_pool2d"),
        (image.upsample_nearest2d(MAX, MAX), "interpolate2d"),
        (image.upsample_bilinear2d(huge, huge, true), "upsample_bilinear2d"),
        (Tensor::arange(0f64, 1e18, &CPU), "arange"),
        (Tensor::arange_step(0f32, 1e30, 1e-30, &CPU), "arange"),
        (Tensor::rand(0f32, 1.0, (huge, huge), &CPU), "rand"),
        (nn::encoding::one_hot(Tensor::new([0u32], &CPU)?, huge * 2, 1f32, 0.0), "2^40"),
    ]
    .into_iter()
    .enumerate()
    {
        let says = says.to_string();
        match result {
            Err(error) if error.to_string().contains(&says) => {}
            other => {
                wrong.push(format!("{i}: {:?} does not say {says:?}", other.map(|t| t.shape().to_string())))
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// The graph API below the tensors: leaves, symbols and inputs that do not fit.
#[test]
fn executables_check_what_they_are_given() -> Result<()> {
    use tallow::Symbol;
    let seq = Symbol::new("seq", 4);
    let mut g = Graph::new("g");
    let x = g.input("x", DType::F32, [&seq])?;
    let w = g.weight("w", DType::F32, [3])?;
    let w = g.add(tallow_ir::Op::Slice { axis: 0, start: tallow::Dim::zero(), len: (&seq).into() }, &[w])?;
    let y = g.elementwise(tallow_ir::ElementwiseOp::Add, &[x, w])?;
    g.output("y", y)?;
    let none = HashMap::new();
    let bytes = |n: usize| vec![0u8; 4 * n];
    let says = |result: Result<_>, part: &str| {
        let error = result.map(|_: ()| ()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    says(CPU.compile(&g, &none, &HashMap::new()).map(|_| ()), "needs weight \"w\", which was not given");
    let short = HashMap::from([("w".to_string(), CPU.weight(DType::F32, &[2], &bytes(2))?)]);
    says(
        CPU.compile(&g, &short, &HashMap::new()).map(|_| ()),
        "weight \"w\" is f32[2], the graph wants f32[3]",
    );
    let weights = HashMap::from([("w".to_string(), CPU.weight(DType::F32, &[3], &bytes(3))?)]);
    let exe = CPU.compile(&g, &weights, &HashMap::new())?;
    let run = |symbols: &[(&str, u64)], inputs: &[(&str, &[u8])]| exe.run(symbols, inputs).map(|_| ());
    run(&[("seq", 3)], &[("x", &bytes(3))])?;
    says(run(&[], &[("x", &bytes(3))]), "needs symbol \"seq\"");
    says(run(&[("seq", 5)], &[("x", &bytes(5))]), "symbol \"seq\" is 5, its range is 0..=4");
    says(run(&[("seq", 4)], &[("x", &bytes(4))]), "seq = 4 exceeds 3 = 3");
    says(run(&[("seq", 1), ("pos", 0)], &[("x", &bytes(1))]), "no symbol \"pos\"");
    says(run(&[("seq", 2)], &[]), "needs input \"x\"");
    says(run(&[("seq", 2)], &[("x", &bytes(3))]), "takes 8 bytes, got 12");
    says(run(&[("seq", 1)], &[("x", &bytes(1)), ("z", &[])]), "no input \"z\"");
    says(CPU.weight(DType::F32, &[2], &bytes(3)).map(|_| ()), "takes 8 bytes, got 12");
    Ok(())
}

/// Extents may come from a file that lies.
#[test]
fn a_state_that_no_memory_holds_is_an_error() {
    for shape in [&[usize::MAX, 2][..], &[1 << 40, 1 << 20], &[1 << 62]] {
        let error = Device::Cpu.state(DType::F16, shape).unwrap_err().to_string();
        assert!(error.contains("no memory for f16["), "{error}");
    }
}
