//! Tensors from nothing, from Rust's numbers, and back.

use tallow::DType;

use crate::both;
use crate::inputs::{Input, Layout};
use crate::suite::{Bound, Suite};

pub fn all(s: &mut Suite) {
    let a = Input::new(1, &[3], Layout::Contiguous, DType::F32, &s.device);
    both!(s, a, Bound::Exact, |a| Tensor::new(1.5f32, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(&[1u8, 2, 3], device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(&[1i64, -2][..], device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(&[[1f64, 2.0], [3.0, 4.0]], device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(&[[[1u32, 2]], [[3, 4]]], device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(&[[[[1u32, 2]]], [[[3, 4]]]], device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(&[[0f32; 3]; 0], device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(vec![1f32, 2.0], device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(vec![vec![1f32, 2.0], vec![3.0, 4.0]], device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(vec![vec![1f32, 2.0], vec![3.0]], device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(vec![&[1f32, 2.0][..], &[3.0, 4.0]], device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(vec![vec![vec![1u8], vec![2]]], device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(Vec::<Vec<f32>>::new(), device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(Vec::<f32>::new(), device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::from_vec(vec![1f32, 2.0, 3.0, 4.0], (2, 2), device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::from_vec(vec![1f32, 2.0, 3.0, 4.0], ((), 2), device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::from_vec(vec![1f32, 2.0, 3.0], (2, ()), device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::from_vec(vec![1f32, 2.0, 3.0], (2, 2), device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::from_vec(vec![0f32; 0], ((), 0), device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::from_slice(&[7i64], (), device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::from_slice(&[7i64; 6], &[1, 2, 3][..], device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::from_iter((0..5).map(|i| i as f64), device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::zeros((2, 3), DType::BF16, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::ones(4, DType::I64, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::full(2.5f32, (2, 1), device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::full(1i64 << 40, (), device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::eye(4, DType::F32, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::eye(1, DType::U8, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::tril2(5, DType::U8, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::triu2(5, DType::F32, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::triu2(0, DType::F32, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::arange(0f32, 5.5, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::arange(5u8, 2, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::arange_step(0f64, 1.0, 0.1, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::arange_step(0f32, 1.0, 0.1, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::arange_step(5i64, -5, -3, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::arange_step(1u32, 9, 4, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::arange_step(1f32, 2.0, 0.0, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| {
        let x = Tensor::arange_step(
            half::f16::from_f32(0.0),
            half::f16::from_f32(2.0),
            half::f16::from_f32(0.3),
            device(&a.x),
        )?;
        (x * 0.5)?
    });
    reading(s, &a);
}

/// Reading with the wrong type or rank is an error on both sides, so is what follows from it.
fn reading(s: &mut Suite, a: &Input) {
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.to_vec1::<f32>()?, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.to_vec1::<f64>()?, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.to_vec2::<f32>()?, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.to_vec3::<f32>()?, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.to_scalar::<f32>()?, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.get(1)?.to_scalar::<f32>()?, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.get(1)?.to_vec0::<f32>()?, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.unsqueeze(0)?.to_vec2::<f32>()?, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| Tensor::new(a.x.reshape((1, 3, 1))?.to_vec3::<f32>()?, device(&a.x))?);
    both!(s, a, Bound::Exact, |a| a.x.apply(&|x: &Tensor| x + 1.0)?);
    both!(s, a, Bound::Exact, |a| a.x.apply_t(&|x: &Tensor| x * 2.0, true)?);
}
