//! Methods that tell what a tensor is have the same types on both sides: a function of them compiles with either.

macro_rules! signatures {
    ($side:ident $of:ident) => {
        mod $side {
            use $of::{D, DType, Device, Result, Shape, Tensor};

            /// All that is asked of a tensor, as text.
            pub fn told(tensor: &Tensor) -> Result<String> {
                let (dims, stride, shape): (&[usize], &[usize], &Shape) =
                    (tensor.dims(), tensor.stride(), tensor.shape());
                let (rank, count): (usize, usize) = (tensor.rank(), tensor.elem_count());
                let (first, last): (usize, usize) = (tensor.dim(0)?, tensor.dim(D::Minus1)?);
                let orders: [bool; 2] = [tensor.is_contiguous(), tensor.is_fortran_contiguous()];
                let (_, dtype): (&Device, DType) = (tensor.device(), tensor.dtype());
                let ours: [usize; 4] = [shape.rank(), shape.elem_count(), shape.dim(1)?, shape.dims()[0]];
                let orders_of: [bool; 2] = [shape.is_contiguous(stride), shape.is_fortran_contiguous(stride)];
                let grown: Vec<usize> = shape.clone().extend(&[7]).into_dims();
                let both: Shape = shape.broadcast_shape_binary_op(&Shape::from((5, 1, 1, 1)), "add")?;
                Ok(format!(
                    "{dims:?} {stride:?} {shape:?} {rank} {count} {first} {last} {orders:?} {} {ours:?} {orders_of:?} {grown:?} {both:?}",
                    dtype.as_str()
                ))
            }

            /// The extents of a tensor of three axes, and of its parts.
            pub fn taken_apart(tensor: &Tensor) -> Result<[usize; 15]> {
                let (a, b, c): (usize, usize, usize) = tensor.dims3()?;
                let (d, e): (usize, usize) = tensor.get(0)?.dims2()?;
                let f: usize = tensor.get(0)?.get(0)?.dims1()?;
                let () = tensor.get(0)?.get(0)?.get(0)?.dims0()?;
                let (g, h, i, j): (usize, usize, usize, usize) = tensor.unsqueeze(0)?.shape().dims4()?;
                let (k, l, m, n, o): (usize, usize, usize, usize, usize) =
                    tensor.unsqueeze(0)?.unsqueeze(3)?.dims5()?;
                Ok([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o])
            }

            /// Shapes from what Candle takes, as generic code does it.
            pub fn made() -> Vec<Shape> {
                fn of(shape: impl Into<Shape>) -> Shape {
                    shape.into()
                }
                let all = [of(()), of(2), of((2,)), of((2, 3)), of((2, 3, 4)), of((2, 3, 4, 5)), of((2, 3, 4, 5, 6))];
                let more = [of(vec![2, 3]), of(&[2, 3][..]), of(&[2, 3]), of(&all[3]), Shape::from_dims(&[2, 3])];
                [&all[..], &more].concat()
            }

            pub fn cube() -> Result<Tensor> {
                Tensor::arange(0u32, 24, &Device::Cpu)?.reshape((2, 3, 4))
            }
        }
    };
}
signatures!(ours tallow);
signatures!(theirs candle_core);

#[test]
fn what_is_told_of_tensors_is_the_same() {
    let (x, y) = (ours::cube().unwrap(), theirs::cube().unwrap());
    assert_eq!(ours::told(&x).unwrap(), theirs::told(&y).unwrap());
    assert_eq!(ours::told(&x.t().unwrap()).unwrap(), theirs::told(&y.t().unwrap()).unwrap());
    assert_eq!(ours::taken_apart(&x).unwrap(), theirs::taken_apart(&y).unwrap());
    assert_eq!(format!("{:?}", ours::made()), format!("{:?}", theirs::made()));
    assert!(
        ours::told(&x.flatten_all().unwrap()).is_err() && theirs::told(&y.flatten_all().unwrap()).is_err()
    );
}
