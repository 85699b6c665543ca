//! Scatters, directly and with copies of the target.

use tallow_ir::{DType, FusionKind, ScatterKind};

use crate::{Case, case, check};

const SCATTER: &[FusionKind] = &[FusionKind::Scatter];

fn scatter(kind: ScatterKind, dtype: DType, [target, source]: [&str; 2]) -> Case {
    let name = kind.name();
    case(
        format!("{name} {dtype} {target} {source}"),
        SCATTER,
        format!(
            r#"
        symbol n <= 20000
        %0 = input "target" : {dtype}[{target}]
        %1 = input "at" : u32[{source}]
        %2 = input "source" : {dtype}[{source}]
        %3 = {name} %0 %1 %2 : {dtype}[{target}]
        return %3 as "y""#
        ),
    )
}

/// Targets that fit into a copy, that are divided into ranges, and that no copies are for, of elements that go there
/// or not. (Scatters of 64 bits need atomics that not every device with such types has.)
#[test]
fn scatters_in_every_dtype() {
    let extents = [
        ["1", "1"],
        ["3", "100"],
        ["1000", "1000"],
        ["17", "n"],
        ["n", "10000000"],
        ["40000", "16000000"],
        ["200000", "10000000"],
    ];
    let dtypes = || DType::SCALARS.into_iter().filter(|dtype| dtype.size() != Some(8));
    let of = |kind, dtype| extents.map(|extents| scatter(kind, dtype, extents));
    let sums = dtypes().flat_map(|dtype| of(ScatterKind::Add, dtype));
    let integers = dtypes().filter(|dtype| !dtype.is_float());
    let maxima = integers.flat_map(|dtype| of(ScatterKind::Max, dtype));
    check(&sums.chain(maxima).collect::<Vec<_>>());
}
