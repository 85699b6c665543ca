//! Sorts, merges and selections.

use tallow_ir::{DType, FusionKind};

use crate::{Case, Expect, case, check};

const SORT: &[FusionKind] = &[FusionKind::Sort];

fn sorts(d: DType) -> Case {
    let plain = case(
        format!("sorts of {d}"),
        SORT,
        format!(
            r#"
        symbol n <= 100000
        %0 = input "x" : {d}[3,70]
        %1 = argsort %0 axis=1 descending=false : u32[3,70]
        return %1 as "rows"
        %2 = input "y" : {d}[1,n]
        %3 = argsort %2 axis=1 descending=true first=8 : u32[1,8]
        return %3 as "first"
        %4 = input "z" : {d}[2,5000]
        %5 = argsort %4 axis=1 descending=true : u32[2,5000]
        return %5 as "merged""#
        ),
    );
    if matches!(d, DType::F64 | DType::I64) { Case { expect: Expect::Wide(SORT), ..plain } } else { plain }
}

#[test]
fn sorts_of_every_dtype() {
    check(&DType::SCALARS.map(sorts));
}
