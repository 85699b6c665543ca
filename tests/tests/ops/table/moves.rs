//! Leaves, and what only says where elements are read or written.

use candle_core as candle;
use tallow_ir::{DType, Dim, Op, Scalar, Shape};

use super::{add, dims, last};
use crate::row::{Bound, Fill, Leaf, Operand, Row};

type T = candle::Tensor;

fn one(dims: &[usize], dtype: DType) -> Vec<Operand> {
    vec![Operand::new(dims, dtype)]
}

fn two(dims: &[usize], dtype: DType) -> Vec<Operand> {
    vec![Operand::new(dims, dtype), Operand::new(dims, dtype)]
}

/// The last axis of Candle's tensor, or the error of one that has none.
fn last_of(t: &T) -> usize {
    t.rank().saturating_sub(1)
}

/// The elements of an axis in reverse order.
fn reversed(t: &T, axis: usize) -> candle::Result<T> {
    let order: Vec<u32> = (0..t.dim(axis)? as u32).rev().collect();
    t.contiguous()?.index_select(&T::new(order, t.device())?, axis)
}

/// Three elements that lie two apart along the last axis, or as many as there are.
fn window(extent: usize) -> (usize, usize) {
    let size = extent.clamp(1, 3);
    (size, if 2 * (size - 1) < extent { 2 } else { 1 })
}

pub fn rows() -> Vec<Row> {
    [leaves(), reshapes(), selections(), joins(), lookups_and_writes()].into_iter().flatten().collect()
}

/// A view, whose elements are those of its operands.
fn moved(name: &str, operands: fn(&[usize], DType) -> Vec<Operand>, build: fn(&[usize]) -> Op) -> Row {
    let row = Row::new("Views and joins", name, operands, move |g, v| {
        let op = build(&dims(g, v[0]));
        add(g, op, v)
    });
    row.bound(Bound::Moved)
}

fn leaves() -> Vec<Row> {
    vec![
        leaf("const", |_, dtype| Op::Const(Scalar::of(dtype, 3.0)))
            .candle(Bound::Exact, |t| t[0].zeros_like()?.affine(1.0, 3.0)),
        leaf("iota", |dims, dtype| Op::Iota { len: dims.iter().product::<usize>().into(), dtype })
            .undivided()
            .lacks("no counterpart of f64 steps; `arange` is compared in the suite of Candle's methods"),
        leaf("dim_value", |dims, dtype| Op::DimValue { dim: Dim::from(dims.len()), dtype })
            .candle(Bound::Exact, |t| t[0].zeros_like()?.affine(1.0, t[0].rank() as f64)),
    ]
}

/// Views of all elements, in other shapes.
fn reshapes() -> Vec<Row> {
    vec![
        moved("reshape", one, |d| {
            let rest: usize = d.iter().skip(1).product();
            let first = d.first().copied().unwrap_or(1);
            Op::Reshape(Shape::from([first, 1, rest]))
        })
        .candle(Bound::Exact, |t| {
            let d = t[0].dims();
            t[0].reshape((d.first().copied().unwrap_or(1), 1, d.iter().skip(1).product::<usize>()))
        }),
        // In front of the first axis nothing repeats, for rows stay rows.
        moved(
            "broadcast",
            |d, dtype| vec![Operand::new(&middle_once(d), dtype)],
            |d| {
                let mut to = d.to_vec();
                if let Some(middle) = to.get_mut(1) {
                    *middle *= 5;
                }
                Op::Broadcast(to.into())
            },
        )
        .candle(Bound::Exact, |t| {
            let mut to = t[0].dims().to_vec();
            if let Some(middle) = to.get_mut(1) {
                *middle *= 5;
            }
            t[0].broadcast_as(to)
        }),
        moved("permute", one, |d| {
            let mut axes: Vec<usize> = (0..d.len()).collect();
            axes.iter_mut().skip(1).zip((1..d.len()).rev()).for_each(|(a, b)| *a = b);
            Op::Permute(axes)
        })
        .candle(Bound::Exact, |t| if t[0].rank() < 3 { Ok(t[0].clone()) } else { t[0].transpose(1, 2) }),
    ]
}

/// Views that pick elements along the last axis.
fn selections() -> Vec<Row> {
    vec![
        moved("slice", one, |d| {
            let len = d.last().copied().unwrap_or(2);
            Op::Slice {
                axis: d.len().saturating_sub(1),
                start: (len / 2).into(),
                len: (len - len / 2).into(),
            }
        })
        .candle(Bound::Exact, |t| {
            let axis = last_of(&t[0]);
            let len = t[0].dim(axis)?;
            t[0].narrow(axis, len / 2, len - len / 2)
        }),
        moved("flip", one, |d| Op::Flip { axis: d.len().saturating_sub(1) })
            .candle(Bound::Exact, |t| reversed(&t[0], last_of(&t[0]))),
        moved("window", one, |d| {
            let (size, dilation) = window(d.last().copied().unwrap_or(1));
            Op::Window { axis: d.len().saturating_sub(1), size, stride: 2, dilation }
        })
        .candle(Bound::Exact, |t| {
            let axis = last_of(&t[0]);
            let extent = t[0].dim(axis)?;
            let (size, dilation) = window(extent);
            if extent == 0 {
                candle::bail!("no windows")
            }
            let count = (extent - dilation * (size - 1) - 1) / 2 + 1;
            let windows: Vec<T> = (0..count)
                .map(|o| {
                    let at: Vec<u32> = (0..size).map(|k| (o * 2 + k * dilation) as u32).collect();
                    t[0].contiguous()?.index_select(&T::new(at, t[0].device())?, axis)
                })
                .collect::<candle::Result<_>>()?;
            T::stack(&windows, axis)
        }),
    ]
}

fn joins() -> Vec<Row> {
    vec![
        Row::new("Views and joins", "pad", one, |g, v| {
            let value = Scalar::of(g.ty(v[0]).dtype, 2.0);
            let axis = last(g, v[0]);
            add(g, Op::Pad { axis, before: Dim::from(2usize), after: Dim::from(1usize), value }, v)
        })
        .bound(Bound::Moved)
        .candle(Bound::Exact, |t| {
            let axis = last_of(&t[0]);
            let mut side = t[0].dims().to_vec();
            t[0].dim(axis)?;
            let mut part = |n: usize| {
                side[axis] = n;
                T::full(2f32, side.as_slice(), t[0].device())?.to_dtype(t[0].dtype())
            };
            T::cat(&[&part(2)?, &t[0].contiguous()?, &part(1)?], axis)
        }),
        moved("concat", two, |d| Op::Concat { axis: d.len().saturating_sub(1) })
            .candle(Bound::Exact, |t| T::cat(t, last_of(&t[0]))),
    ]
}

fn lookups_and_writes() -> Vec<Row> {
    vec![
        Row::new(
            "Lookups and writes",
            "gather",
            |d, dtype| {
                let extent = d.last().copied().unwrap_or(1);
                vec![Operand::new(d, dtype), Operand::new(&[5], DType::U32).of(Fill::Below(extent)).shared()]
            },
            |g, v| {
                let axis = last(g, v[0]);
                add(g, Op::Gather { axis }, v)
            },
        )
        .bound(Bound::Moved)
        .candle(Bound::Exact, |t| t[0].contiguous()?.index_select(&t[1].contiguous()?, last_of(&t[0]))),
        Row::new(
            "Lookups and writes",
            "state_update",
            |d, dtype| {
                let mut whole = d.to_vec();
                whole.iter_mut().skip(1).for_each(|n| *n += 2);
                vec![Operand::new(&whole, dtype).from(Leaf::State), Operand::new(d, dtype)]
            },
            |g, v| {
                let rank = g.ty(v[0]).shape.rank();
                let offsets = (0..rank).map(|i| Dim::from(usize::from(i > 0))).collect();
                add(g, Op::StateUpdate { offsets, rows: None }, v)
            },
        )
        .bound(Bound::Moved)
        .candle(Bound::Exact, |t| {
            if t[1].rank() == 0 {
                return Ok(t[1].clone());
            }
            let ranges: Vec<_> = t[1]
                .dims()
                .iter()
                .enumerate()
                .map(|(i, n)| usize::from(i > 0)..n + usize::from(i > 0))
                .collect();
            t[0].slice_assign(&ranges, &t[1])
        }),
        rows_backwards(),
    ]
}

/// Rows of the second axis, or the only one, written from the last position on: the first one is beyond the state.
fn rows_backwards() -> Row {
    let axis_of = |rank: usize| rank.saturating_sub(1).min(1);
    let offset = |i: usize| usize::from(i > 1);
    let operands = move |d: &[usize], dtype| {
        let whole: Vec<usize> = d.iter().enumerate().map(|(i, n)| n + 2 * offset(i)).collect();
        vec![Operand::new(&whole, dtype).from(Leaf::State), Operand::new(d, dtype)]
    };
    let row = Row::new("Lookups and writes", "state_update_rows", operands, move |g, v| {
        let d = dims(g, v[1]);
        let axis = axis_of(d.len());
        let count =
            add(g, Op::Iota { len: d.get(axis).copied().unwrap_or(1).into(), dtype: DType::U32 }, &[])?;
        let back = add(g, Op::Flip { axis: 0 }, &[count])?;
        let one = g.full_like(back, 1.0).map_err(|e| e.to_string())?;
        let indices = add(g, Op::Elementwise(tallow_ir::ElementwiseOp::Add), &[back, one])?;
        let offsets = (0..d.len()).map(|i| Dim::from(offset(i))).collect();
        add(g, Op::StateUpdate { offsets, rows: Some(axis) }, &[v[0], v[1], indices])
    });
    row.bound(Bound::Moved).candle(Bound::Exact, move |t| {
        let axis = axis_of(t[1].rank());
        let n = t[1].dim(axis)?;
        if n < 2 {
            return Ok(t[0].clone());
        }
        let rows = reversed(&t[1].narrow(axis, 1, n - 1)?, axis)?;
        let start = |i: usize| if i == axis { 1 } else { offset(i) };
        let ranges: Vec<_> = rows.dims().iter().enumerate().map(|(i, n)| start(i)..n + start(i)).collect();
        t[0].slice_assign(&ranges, &rows)
    })
}

/// The middle axis as one.
fn middle_once(dims: &[usize]) -> Vec<usize> {
    let mut dims = dims.to_vec();
    if let Some(middle) = dims.get_mut(1) {
        *middle = (*middle).min(1);
    }
    dims
}

/// A leaf in the shape of its operand, which it is added to, for a kernel must have something to do.
fn leaf(name: &str, build: fn(&[usize], DType) -> Op) -> Row {
    Row::new("Leaves", name, one, move |g, v| {
        let ty = g.ty(v[0]).clone();
        let shape = dims(g, v[0]);
        let leaf = add(g, build(&shape, ty.dtype), &[])?;
        let whole = if g.ty(leaf).shape.rank() == 1 {
            add(g, Op::Reshape(ty.shape.clone()), &[leaf])?
        } else {
            add(g, Op::Broadcast(ty.shape.clone()), &[leaf])?
        };
        let zero = g.full_like(v[0], 0.0).map_err(|e| e.to_string())?;
        let nothing = add(g, Op::Elementwise(tallow_ir::ElementwiseOp::Mul), &[v[0], zero])?;
        add(g, Op::Elementwise(tallow_ir::ElementwiseOp::Add), &[whole, nothing])
    })
}
