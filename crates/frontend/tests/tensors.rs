//! Values of tensor operations: creation, arithmetic, views, reductions, products, lookups.

use half::{bf16, f16};
use tallow::{D, DType, Device, Error, IndexOp, Result, Tensor};

const CPU: Device = Device::Cpu;

fn matrix() -> Result<Tensor> {
    Tensor::new([[1f32, 2.0, 3.0], [4.0, 5.0, 6.0]], &CPU)
}

#[test]
fn creation() -> Result<()> {
    assert_eq!(Tensor::new(3.5f64, &CPU)?.to_vec0::<f64>()?, 3.5);
    assert_eq!(Tensor::new([1u32, 2], &CPU)?.to_vec1::<u32>()?, [1, 2]);
    assert_eq!(Tensor::new(vec![vec![1i64], vec![2]], &CPU)?.to_vec2::<i64>()?, [[1], [2]]);
    assert_eq!(Tensor::new([[[1u8, 2], [3, 4]]], &CPU)?.dims3()?, (1, 2, 2));
    assert_eq!(Tensor::zeros((2, 2), DType::F16, &CPU)?.to_vec2::<f16>()?, [[f16::ZERO; 2]; 2]);
    assert_eq!(Tensor::ones(3, DType::I32, &CPU)?.to_vec1::<i32>()?, [1, 1, 1]);
    assert_eq!(Tensor::full(bf16::from_f32(1.5), [2], &CPU)?.to_vec1::<bf16>()?, [bf16::from_f32(1.5); 2]);
    // Not representable in an f64.
    assert_eq!(Tensor::full(i64::MAX - 1, 2, &CPU)?.to_vec1::<i64>()?, [i64::MAX - 1; 2]);
    assert_eq!(Tensor::arange(2u32, 5, &CPU)?.to_vec1::<u32>()?, [2, 3, 4]);
    assert_eq!(Tensor::arange_step(0f32, 1.0, 0.25, &CPU)?.to_vec1::<f32>()?, [0.0, 0.25, 0.5, 0.75]);
    assert_eq!(Tensor::arange_step(3i64, 0, -2, &CPU)?.to_vec1::<i64>()?, [3, 1]);
    assert_eq!(Tensor::arange(3u8, 3, &CPU)?.dims1()?, 0);
    assert_eq!(Tensor::from_vec(vec![1f32; 6], (3, 2), &CPU)?.dims2()?, (3, 2));
    assert_eq!(matrix()?.zeros_like()?.to_vec2::<f32>()?, [[0.0; 3]; 2]);
    Ok(())
}

#[test]
fn arithmetic_in_every_spelling() -> Result<()> {
    let (a, b) = (Tensor::new([1f32, 2.0, 3.0], &CPU)?, Tensor::new([4f32, 5.0, 6.0], &CPU)?);
    let values = |t: Result<Tensor>| t.and_then(|t| t.to_vec1::<f32>());
    assert_eq!(values(&a + &b)?, [5.0, 7.0, 9.0]);
    assert_eq!(values(a.clone() - &b)?, [-3.0; 3]);
    assert_eq!(values(&a * b.clone())?, [4.0, 10.0, 18.0]);
    assert_eq!(values(&b / &a)?, [4.0, 2.5, 2.0]);
    assert_eq!(values(&a * &b + &a)?, [5.0, 12.0, 21.0]);
    assert_eq!(values(&a + &b * &a)?, [5.0, 12.0, 21.0]);
    assert_eq!(values(&a * 2.0)?, [2.0, 4.0, 6.0]);
    assert_eq!(values(1.0 - &a)?, [0.0, -1.0, -2.0]);
    assert_eq!(values(6.0 / &a)?, [6.0, 3.0, 2.0]);
    assert_eq!(values(&a / 3.0)?, [1.0 / 3.0, 2.0 / 3.0, 1.0]);
    assert_eq!(values(-&a)?, [-1.0, -2.0, -3.0]);
    assert_eq!(values(a.affine(2.0, 1.0))?, [3.0, 5.0, 7.0]);
    assert_eq!(values(a.sqr())?, [1.0, 4.0, 9.0]);
    assert_eq!(values(a.powf(3.0))?, [1.0, 8.0, 27.0]);
    assert_eq!(values(a.clamp(1.5, 2.5))?, [1.5, 2.0, 2.5]);
    assert_eq!(values(a.maximum(&Tensor::new([0f32, 9.0, 0.0], &CPU)?))?, [1.0, 9.0, 3.0]);
    assert_eq!(a.ge(2.0)?.to_vec1::<u8>()?, [0, 1, 1]);
    assert_eq!(a.eq(&b)?.to_vec1::<u8>()?, [0, 0, 0]);
    let integers = Tensor::new([7u32, 8, 9], &CPU)?;
    assert_eq!((&integers / 2.0)?.to_vec1::<u32>()?, [3, 4, 4]);
    Ok(())
}

#[test]
fn broadcasting() -> Result<()> {
    let column = Tensor::new([[10f32], [20.0]], &CPU)?;
    let sum = column.broadcast_add(&Tensor::new([1f32, 2.0, 3.0], &CPU)?)?;
    assert_eq!(sum.to_vec2::<f32>()?, [[11.0, 12.0, 13.0], [21.0, 22.0, 23.0]]);
    assert_eq!(
        matrix()?.broadcast_lt(&Tensor::new([[2f32], [9.0]], &CPU)?)?.to_vec2::<u8>()?,
        [[1, 0, 0], [1; 3]]
    );
    assert_eq!(column.broadcast_as((3, 2, 2))?.dims3()?, (3, 2, 2));
    assert_eq!(column.broadcast_left((3,))?.to_vec3::<f32>()?, [[[10.0], [20.0]]; 3]);
    assert_eq!(Tensor::new([1u8, 2], &CPU)?.repeat((2, 2))?.to_vec2::<u8>()?, [[1, 2, 1, 2]; 2]);
    Ok(())
}

#[test]
fn activations() -> Result<()> {
    let x = Tensor::new([-20f64, -1.0, 0.0, 0.5, 3.0], &CPU)?;
    let check = |t: Tensor, f: &dyn Fn(f64) -> f64| -> Result<()> {
        for (x, y) in x.to_vec1::<f64>()?.into_iter().zip(t.to_vec1::<f64>()?) {
            assert!((y - f(x)).abs() < 1e-12, "{x}: {y} is not {}", f(x));
        }
        Ok(())
    };
    check(x.relu()?, &|x| x.max(0.0))?;
    check(x.sigmoid()?, &|x| 1.0 / (1.0 + (-x).exp()))?;
    check(x.silu()?, &|x| x / (1.0 + (-x).exp()))?;
    check(x.elu(0.5)?, &|x| if x > 0.0 { x } else { 0.5 * (x.exp() - 1.0) })?;
    let cubic = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    check(x.gelu()?, &|x| 0.5 * x * (1.0 + cubic(x).tanh()))?;
    // erf(1 / sqrt 2) is the probability of a normal variable within one standard deviation.
    let unit = Tensor::new([1f64, -1.0], &CPU)?.gelu_erf()?.to_vec1::<f64>()?;
    assert!((unit[0] - 0.841_344_746_068_543).abs() < 1e-12);
    assert!((unit[1] + 0.158_655_253_931_457).abs() < 1e-12);
    // Neither overflows into a NaN.
    let far = Tensor::new([-1e4f32, 1e4], &CPU)?;
    assert_eq!(far.silu()?.to_vec1::<f32>()?, [-0.0, 1e4]);
    assert_eq!(far.elu(1.0)?.to_vec1::<f32>()?, [-1.0, 1e4]);
    Ok(())
}

#[test]
fn views() -> Result<()> {
    let m = matrix()?;
    assert_eq!(m.t()?.to_vec2::<f32>()?, [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]);
    assert_eq!(m.reshape((3, ()))?.to_vec2::<f32>()?, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
    assert_eq!(m.reshape(((), 1, 2))?.dims3()?, (3, 1, 2));
    assert_eq!(m.flatten_all()?.dims1()?, 6);
    assert_eq!(m.narrow(1, 1, 2)?.to_vec2::<f32>()?, [[2.0, 3.0], [5.0, 6.0]]);
    assert_eq!(m.narrow(D::Minus1, 0, 1)?.squeeze(1)?.to_vec1::<f32>()?, [1.0, 4.0]);
    assert_eq!(m.unsqueeze(D::Minus1)?.dims3()?, (2, 3, 1));
    assert_eq!(m.unsqueeze(0)?.squeeze(0)?.dims2()?, (2, 3));
    assert_eq!(m.squeeze(0)?.dims2()?, (2, 3));
    let cube = Tensor::arange(0u32, 24, &CPU)?.reshape((2, 3, 4))?;
    let turned = cube.permute((2, 0, 1))?;
    assert_eq!(turned.dims3()?, (4, 2, 3));
    assert_eq!(turned.i((3, 1, 2))?.to_scalar::<u32>()?, 23);
    assert_eq!(cube.transpose(0, D::Minus1)?.i((3, 2))?.to_vec1::<u32>()?, [11, 23]);
    assert_eq!(cube.flatten(1, 2)?.dims2()?, (2, 12));
    assert_eq!(cube.flip((0, 2))?.i((0, 0))?.to_vec1::<u32>()?, [15, 14, 13, 12]);
    assert_eq!(cube.i((.., 1..3, 0))?.to_vec2::<u32>()?, [[4, 8], [16, 20]]);
    assert_eq!(cube.i(1)?.i((..=0, 2..))?.to_vec2::<u32>()?, [[14, 15]]);
    assert_eq!(cube.get_on_dim(2, 1)?.to_vec2::<u32>()?, [[1, 5, 9], [13, 17, 21]]);
    let parts = cube.chunk(3, 2)?;
    assert_eq!(parts.iter().map(|p| p.dim(2)).collect::<Result<Vec<_>>>()?, [2, 1, 1]);
    assert_eq!(Tensor::cat(&parts, 2)?.to_vec3::<u32>()?, cube.to_vec3::<u32>()?);
    let row = m.get(0)?;
    assert_eq!(Tensor::stack(&[&row, &row], D::Minus1)?.to_vec2::<f32>()?, [[1.0; 2], [2.0; 2], [3.0; 2]]);
    assert_eq!(row.pad_with_zeros(0, 1, 2)?.to_vec1::<f32>()?, [0.0, 1.0, 2.0, 3.0, 0.0, 0.0]);
    Ok(())
}

#[test]
fn reductions() -> Result<()> {
    let m = matrix()?;
    assert_eq!(m.sum(0)?.to_vec1::<f32>()?, [5.0, 7.0, 9.0]);
    assert_eq!(m.sum_keepdim(1)?.to_vec2::<f32>()?, [[6.0], [15.0]]);
    assert_eq!(m.sum((1, 0))?.to_scalar::<f32>()?, 21.0);
    assert_eq!(m.sum_all()?.to_scalar::<f32>()?, 21.0);
    assert_eq!(m.prod(1)?.to_vec1::<f32>()?, [6.0, 120.0]);
    assert_eq!(m.mean(D::Minus1)?.to_vec1::<f32>()?, [2.0, 5.0]);
    assert_eq!(m.mean_keepdim((0, 1))?.to_vec2::<f32>()?, [[3.5]]);
    assert_eq!(m.max(0)?.to_vec1::<f32>()?, [4.0, 5.0, 6.0]);
    assert_eq!(m.min_all()?.to_scalar::<f32>()?, 1.0);
    let ties = Tensor::new([[3i32, 1, 3], [0, 0, 0]], &CPU)?;
    assert_eq!(ties.argmax(1)?.to_vec1::<u32>()?, [0, 0]);
    assert_eq!(ties.argmin_keepdim(1)?.to_vec2::<u32>()?, [[1], [0]]);
    let large = Tensor::new([[1000f64, 1000.0]], &CPU)?.log_sum_exp_keepdim(1)?;
    assert!((large.to_vec2::<f64>()?[0][0] - 1000.0 - 2f64.ln()).abs() < 1e-9);
    Ok(())
}

#[test]
fn products_and_lookups() -> Result<()> {
    let m = matrix()?;
    assert_eq!(m.matmul(&m.t()?)?.to_vec2::<f32>()?, [[14.0, 32.0], [32.0, 77.0]]);
    let batch = Tensor::stack(&[&m, &(&m * 2.0)?], 0)?;
    let both = batch.broadcast_matmul(&m.t()?)?;
    assert_eq!(both.i((1, 0))?.to_vec1::<f32>()?, [28.0, 64.0]);
    let rows = m.embedding(&Tensor::new([[1u32, 0], [1, 1]], &CPU)?)?;
    assert_eq!(rows.dims3()?, (2, 2, 3));
    assert_eq!(rows.i((0, 0))?.to_vec1::<f32>()?, [4.0, 5.0, 6.0]);
    // Out of range is clamped, also below.
    let picked = m.index_select(&Tensor::new([2i64, -5, 99], &CPU)?, 1)?;
    assert_eq!(picked.to_vec2::<f32>()?, [[3.0, 1.0, 3.0], [6.0, 4.0, 6.0]]);
    let chosen = Tensor::new([[1u8, 0, 7], [0, 0, 1]], &CPU)?.where_cond(&m, &m.zeros_like()?)?;
    assert_eq!(chosen.to_vec2::<f32>()?, [[1.0, 0.0, 3.0], [0.0, 0.0, 6.0]]);
    let mask = Tensor::new([[0i64, 2, 0], [0, 0, 0]], &CPU)?;
    assert_eq!(mask.where_cond(&m, &m.neg()?)?.i(0)?.to_vec1::<f32>()?, [-1.0, 2.0, -3.0]);
    Ok(())
}

#[test]
fn conversions() -> Result<()> {
    let x = Tensor::new([-1.5f32, 2.5, 300.0, f32::NAN], &CPU)?;
    assert_eq!(x.to_dtype(DType::U8)?.to_vec1::<u8>()?, [0, 2, 255, 0]);
    assert_eq!(x.to_dtype(DType::I64)?.to_vec1::<i64>()?, [-1, 2, 300, 0]);
    assert_eq!(x.to_dtype(DType::F16)?.to_vec1::<f16>()?[1], f16::from_f32(2.5));
    assert!(matches!(x.to_vec1::<f64>(), Err(Error::UnexpectedDType { .. })));
    Ok(())
}

#[test]
fn printing() -> Result<()> {
    let m = matrix()?;
    assert_eq!(m.to_string(), "[[1., 2., 3.],\n [4., 5., 6.]]\nTensor[[2, 3], f32]");
    let third = (&m / 3.0)?.i(0)?;
    assert_eq!(third.to_string(), "[0.3333, 0.6667, 1.0000]\nTensor[[3], f32]");
    assert_eq!(Tensor::new([1i64, -20], &CPU)?.to_string(), "[  1, -20]\nTensor[[2], i64]");
    assert_eq!(Tensor::new(2u8, &CPU)?.to_string(), "[2]\nTensor[[], u8]");
    let long = Tensor::arange(0u32, 2000, &CPU)?;
    assert_eq!(long.to_string(), "[   0,    1,    2, ..., 1997, 1998, 1999]\nTensor[[2000], u32]");
    assert_eq!(Tensor::zeros((0, 3), DType::F32, &CPU)?.to_string(), "[]\nTensor[[0, 3], f32]");
    // Debugging computes nothing: a lazy tensor says so.
    assert_eq!(format!("{:?}", m.exp()?), "Tensor[dims 2, 3; f32, lazy]");
    assert_eq!(format!("{m:?}"), "Tensor[dims 2, 3; f32]");
    assert_eq!(format!("{:?}", Tensor::new([0.5f32, 2.0], &CPU)?), "Tensor[0.5, 2; f32]");
    Ok(())
}

/// Every code of the crate that Candle takes its 8-bit floats from, and how it rounds what lies between.
#[test]
fn eight_bit_floats_are_those_of_candle() -> Result<()> {
    use float8::F8E4M3;

    let codes: Vec<F8E4M3> = (0..=255).map(F8E4M3::from_bits).collect();
    let wide = Tensor::from_slice(&codes, 256, &Device::Cpu)?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
    for (code, wide) in codes.iter().zip(&wide) {
        assert!(code.to_f32() == *wide || (code.is_nan() && wide.is_nan()), "{code:?}: {wide}");
    }
    let mut values: Vec<f32> = vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 464.0, 465.0, 1e9, 1e-9];
    values.extend((0..40_000u32).map(|i| f32::from_bits(i.wrapping_mul(0x0001_a36f) ^ 0x3b00_0000)));
    let narrow = Tensor::from_slice(&values, values.len(), &Device::Cpu)?
        .to_dtype(DType::F8E4M3)?
        .to_vec1::<F8E4M3>()?;
    for (x, narrow) in values.iter().zip(narrow) {
        let expected = F8E4M3::from_f32(*x);
        let same = expected.to_bits() == narrow.to_bits() || (expected.is_nan() && narrow.is_nan());
        assert!(same, "{x}: {narrow:?} is not {expected:?}");
    }
    Ok(())
}

/// What Candle has no method for.
#[test]
fn truths_masks_and_repetitions() -> Result<()> {
    let x = Tensor::new([[0f32, 1.0, -2.0], [0.0, 0.0, 0.0], [3.0, f32::NAN, 1.0]], &CPU)?;
    assert_eq!(x.any(1)?.to_vec1::<u8>()?, [1, 0, 1]);
    assert_eq!(x.all(1)?.to_vec1::<u8>()?, [0, 0, 1]);
    assert_eq!(x.any((0, 1))?.to_scalar::<u8>()?, 1);
    let nothing = Tensor::zeros((2, 0), DType::I64, &CPU)?;
    assert_eq!(nothing.all(1)?.to_vec1::<u8>()?, [1, 1]);
    assert_eq!(nothing.any(1)?.to_vec1::<u8>()?, [0, 0]);
    assert_eq!(nothing.max(0)?.dims(), [0]);
    assert!(matches!(nothing.max(1), Err(Error::EmptyTensor { .. })));
    let mask = Tensor::new([1u8, 0, 1], &CPU)?;
    let m = matrix()?;
    assert_eq!(m.masked_fill(&mask, -1.0)?.to_vec2::<f32>()?, [[-1.0, 2.0, -1.0], [-1.0, 5.0, -1.0]]);
    assert_eq!(m.masked_fill(&mask, &m.neg()?)?.i(1)?.to_vec1::<f32>()?, [-4.0, 5.0, -6.0]);
    assert_eq!(m.i(0)?.repeat_interleave(2, 0)?.to_vec1::<f32>()?, [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
    assert_eq!(m.repeat_interleave(0, 1)?.dims(), [2, 0]);
    // Indices beyond u32 are clamped, not wrapped.
    let far = Tensor::new([1i64 << 32, -1], &CPU)?;
    assert_eq!(m.index_select(&far, 1)?.i(0)?.to_vec1::<f32>()?, [3.0, 1.0]);
    assert_eq!(m.i((0, &far))?.to_vec1::<f32>()?, [3.0, 1.0]);
    assert!(matches!(m.i(vec![2u32]), Err(Error::InvalidIndex { .. })));
    Ok(())
}

#[test]
fn ranges_end_where_numbers_do() -> Result<()> {
    use half::bf16;
    let (start, end) = (i64::MAX - 3, i64::MAX);
    assert_eq!(Tensor::arange(start, end, &CPU)?.to_vec1::<i64>()?, [start, start + 1, start + 2]);
    assert_eq!(Tensor::arange_step(250u8, 255, 3, &CPU)?.to_vec1::<u8>()?, [250, 253]);
    // 256 + 1 is 256 in bf16.
    assert!(Tensor::arange(bf16::ZERO, bf16::from_f32(300.0), &CPU).is_err());
    assert!(Tensor::arange(0f32, f32::INFINITY, &CPU).is_err());
    assert_eq!(Tensor::arange(0f32, f32::NAN, &CPU)?.dims(), [0]);
    Ok(())
}

#[test]
fn a_scatter_writes_nothing_outside_of_its_axis() -> Result<()> {
    let base = Tensor::new([1f32, 2.0, 3.0], &CPU)?;
    let source = Tensor::new([10f32, 20.0, 30.0], &CPU)?;
    let at = Tensor::new([-1i64, 3, 1], &CPU)?;
    assert_eq!(base.scatter_add(&at, &source, 0)?.to_vec1::<f32>()?, [1.0, 32.0, 3.0]);
    assert_eq!(base.scatter(&at, &source, 0)?.to_vec1::<f32>()?, [1.0, 30.0, 3.0]);
    assert_eq!(base.index_add(&at, &source, 0)?.to_vec1::<f32>()?, [1.0, 32.0, 3.0]);
    Ok(())
}

/// In any layout and along any axis; 1 is lost beside 1e8 where it comes first.
#[test]
fn rows_are_added_in_the_order_of_their_indices() -> Result<()> {
    let base = Tensor::zeros((2, 3), DType::F32, &CPU)?;
    let source = Tensor::new([[1e8f32, 2.0], [1.0, 3.0], [-1e8, 4.0], [1.0, 5.0]], &CPU)?;
    for at in [Tensor::new([2u32, 2, 2, 2], &CPU)?, Tensor::new([2i16, 2, 2, 2], &CPU)?] {
        let sum = base.index_add(&at, &source.t()?, 1)?;
        assert_eq!(sum.to_vec2::<f32>()?, [[0.0, 0.0, 1.0], [0.0, 0.0, 14.0]]);
        let sum = base.t()?.index_add(&at, &source, 0)?;
        assert_eq!(sum.to_vec2::<f32>()?, [[0.0, 0.0], [0.0, 0.0], [1.0, 14.0]]);
    }
    let none = Tensor::zeros(0, DType::U32, &CPU)?;
    let nothing = Tensor::zeros((2, 0), DType::F32, &CPU)?;
    assert_eq!(base.index_add(&none, &nothing, 1)?.to_vec2::<f32>()?, [[0.0; 3]; 2]);
    Ok(())
}
