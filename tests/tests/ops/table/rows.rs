//! What combines or orders the elements along axes.

use candle_core as candle;
use tallow_ir::{DType, Op, ReduceKind, ScanKind, ScatterKind, SortSpan};

use super::{add, dims, last};
use crate::row::{Bound, Fill, Operand, Row};

type T = candle::Tensor;

pub fn rows() -> Vec<Row> {
    let mut rows = vec![];
    for kind in ReduceKind::ALL {
        for along in Along::ALL {
            rows.push(reduce(kind, along));
        }
    }
    for kind in ScanKind::ALL {
        for along in [Along::Last, Along::Middle] {
            rows.push(scan(kind, along));
        }
    }
    for descending in [false, true] {
        rows.push(argsort(descending));
    }
    for kind in ScatterKind::ALL {
        rows.push(scatter(kind));
    }
    rows.push(index_add());
    rows
}

/// Which axes of three. The first one stays, for rows stay rows.
#[derive(Clone, Copy, PartialEq)]
enum Along {
    Last,
    Middle,
    Both,
}

impl Along {
    const ALL: [Along; 3] = [Along::Last, Along::Middle, Along::Both];

    fn name(self) -> &'static str {
        match self {
            Along::Last => "last axis",
            Along::Middle => "middle axis",
            Along::Both => "two axes",
        }
    }

    fn axes(self, rank: usize) -> Vec<usize> {
        let last = rank.saturating_sub(1);
        match self {
            Along::Last => vec![last],
            Along::Middle => vec![rank.saturating_sub(2).min(1)],
            Along::Both if rank < 3 => vec![last],
            Along::Both => vec![last - 1, last],
        }
    }
}

fn reduce(kind: ReduceKind, along: Along) -> Row {
    let fill = match kind {
        ReduceKind::Sum | ReduceKind::Max | ReduceKind::Min | ReduceKind::ArgMax | ReduceKind::ArgMin => {
            Fill::Numbers
        }
        // At most 335 factors from 1/2 to 2; the product may overflow, to the same infinity.
        ReduceKind::Prod => Fill::Powers,
    };
    let row = Row::new(
        "Reductions, scans, order",
        &format!("{} {}", kind.name(), along.name()),
        move |d, dtype| vec![Operand::new(d, dtype).of(fill)],
        move |g, v| {
            let axes = along.axes(dims(g, v[0]).len());
            add(g, Op::Reduce { kind, axes }, v)
        },
    );
    // Candle rounds a sum of 16 bits after each of up to 335 elements, by half a step of the largest sum; ours and
    // those of f32 and f64 are exact.
    let sums = Bound::Steps(168.0);
    match kind {
        ReduceKind::Sum => row.candle(sums, move |t| t[0].sum(along.axes(t[0].rank()))),
        ReduceKind::Prod => row.lacks("no products in Candle"),
        _ if along == Along::Both => row.lacks("along one axis in Candle"),
        ReduceKind::Max => row.candle(Bound::Exact, move |t| t[0].max(along.axes(t[0].rank())[0])),
        ReduceKind::Min => row.candle(Bound::Exact, move |t| t[0].min(along.axes(t[0].rank())[0])),
        ReduceKind::ArgMax => row.candle(Bound::Exact, move |t| t[0].argmax(along.axes(t[0].rank())[0])),
        ReduceKind::ArgMin => row.candle(Bound::Exact, move |t| t[0].argmin(along.axes(t[0].rank())[0])),
    }
}

fn scan(kind: ScanKind, along: Along) -> Row {
    let fill = match kind {
        ScanKind::Sum => Fill::Numbers,
        ScanKind::Prod => Fill::Powers,
        // Coefficients: sums that begin anew at each 0, which are exact.
        ScanKind::Linear => Fill::Truths,
    };
    let row = Row::new(
        "Reductions, scans, order",
        &format!("{} {}", kind.name(), along.name()),
        move |d, dtype| {
            let mut operands = vec![Operand::new(d, dtype).of(fill)];
            operands.resize(kind.operands(), Operand::new(d, dtype));
            operands
        },
        move |g, v| {
            let axis = along.axes(dims(g, v[0]).len())[0];
            add(g, Op::Scan { kind, axis, part: None }, v)
        },
    );
    match kind {
        // A matmul by a triangle of ones, which rounds 16 bits once; up to 67 terms.
        ScanKind::Sum => row.candle(Bound::Steps(34.0), move |t| t[0].cumsum(along.axes(t[0].rank())[0])),
        ScanKind::Prod => row.lacks("no products in Candle"),
        ScanKind::Linear => row.lacks("no recurrences in Candle"),
    }
}

fn argsort(descending: bool) -> Row {
    Row::new(
        "Reductions, scans, order",
        if descending { "argsort descending" } else { "argsort ascending" },
        |d, dtype| vec![Operand::new(d, dtype)],
        move |g, v| {
            let axis = last(g, v[0]);
            add(g, Op::ArgSort { axis, descending, span: SortSpan::All }, v)
        },
    )
    // The order of equal elements is Candle's own, so positions cannot be compared.
    .lacks(
        "equal elements in another order; the sorted elements are compared in the suite of Candle's methods",
    )
}

fn scatter(kind: ScatterKind) -> Row {
    let operands = |d: &[usize], dtype: DType| {
        let n: usize = d.iter().product();
        let flat = if d.is_empty() { vec![] } else { vec![n] };
        let target = if d.is_empty() { vec![] } else { vec![n / 2 + 1] };
        vec![
            Operand::new(&target, dtype),
            // Some are beyond the target.
            Operand::new(&flat, DType::U32).of(Fill::Below(n / 2 + 3)),
            Operand::new(&flat, dtype),
        ]
    };
    let row = Row::new("Lookups and writes", kind.name(), operands, move |g, v| add(g, Op::Scatter(kind), v))
        .undivided();
    match kind {
        // Candle rounds narrow floats at each arrival, by half a step of the largest sum; with all indices the same, 192
        // arrive at one element. In the other types, and in ours, sums are exact.
        ScatterKind::Add => row.candle(Bound::Steps(96.0), |t| {
            if t[0].rank() == 0 {
                candle::bail!("no axis")
            }
            // Candle fails where an index is out of range; a longer target takes those.
            let extra = T::zeros(2, t[0].dtype(), t[0].device())?;
            let target = T::cat(&[&t[0].contiguous()?, &extra], 0)?;
            let sum = target.scatter_add(&t[1].contiguous()?, &t[2].contiguous()?, 0)?;
            sum.narrow(0, 0, t[0].dim(0)?)
        }),
        ScatterKind::Max => row.lacks("no such scatter in Candle"),
    }
}

fn index_add() -> Row {
    // The first axis stays; along the next, rows are added to about half as many.
    let operands = |d: &[usize], dtype: DType| {
        let [outer, middle @ .., inner] = d else {
            let none = Operand::new(&[], dtype);
            return vec![none.clone(), Operand::new(&[], DType::U32), none];
        };
        let count = middle.iter().product::<usize>();
        let rows = count / 2 + 1;
        vec![
            Operand::new(&[*outer, rows, *inner], dtype),
            // Some are beyond the target.
            Operand::new(&[count], DType::U32).of(Fill::Below(rows + 2)),
            Operand::new(&[*outer, count, *inner], dtype),
        ]
    };
    let row = Row::new("Lookups and writes", "index_add", operands, move |g, v| add(g, Op::IndexAdd, v));
    // As for `scatter_add`: Candle rounds narrow floats at each arrival.
    row.undivided().candle(Bound::Steps(96.0), |t| {
        if t[0].rank() == 0 {
            candle::bail!("no axis")
        }
        let [outer, rows, inner] = [t[0].dim(0)?, t[0].dim(1)?, t[0].dim(2)?];
        let extra = T::zeros((outer, 2, inner), t[0].dtype(), t[0].device())?;
        let target = T::cat(&[&t[0].contiguous()?, &extra], 1)?;
        let sum = target.index_add(&t[1].contiguous()?, &t[2].contiguous()?, 1)?;
        sum.narrow(1, 0, rows)
    })
}
