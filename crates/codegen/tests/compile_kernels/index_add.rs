//! Rows added at the places that indices name.

use tallow_ir::{DType, FusionKind};

use crate::{Case, Expect, case, check};

const INDEX_ADD: &[FusionKind] = &[FusionKind::IndexAdd];

fn index_add(dtype: DType, [outer, rows, inner, count]: [&str; 4]) -> Case {
    let shape = format!("{dtype}[{outer},{rows},{inner}]");
    let plain = case(
        format!("index_add {shape} {count}"),
        INDEX_ADD,
        format!(
            r#"
        symbol n <= 20000
        symbol m <= 100
        %0 = input "target" : {shape}
        %1 = input "at" : u32[{count}]
        %2 = input "source" : {dtype}[{outer},{count},{inner}]
        %3 = index_add %0 %1 %2 : {shape}
        return %3 as "y""#
        ),
    );
    match dtype {
        DType::F64 | DType::I64 => Case { expect: Expect::Wide(INDEX_ADD), ..plain },
        _ => plain,
    }
}

/// Extents of one, of embeddings, of no multiples of vectors, and symbols in each place.
const EXTENTS: [[&str; 4]; 8] = [
    ["1", "1", "1", "1"],
    ["1", "5000", "768", "8192"],
    ["3", "17", "5", "100"],
    ["1", "100000", "1", "1000000"],
    ["70000", "3", "2", "7"],
    ["1", "200", "48", "n"],
    ["2", "n", "6", "9"],
    ["n", "4", "3", "m"],
];

#[test]
fn indexed_additions_in_every_dtype() {
    let of = |dtype| EXTENTS.map(|extents| index_add(dtype, extents));
    check(&DType::SCALARS.into_iter().flat_map(of).collect::<Vec<_>>());
}

/// Each operand is computed where it is read, also from what was quantized.
#[test]
fn operands_are_computed_where_they_are_read() {
    let text = r#"
        %0 = input "table" : i32[40]
        %1 = cast %0 : u32[40]
        %2 = const 3 : u32[]
        %3 = broadcast %2 : u32[40]
        %4 = minimum %1 %3 : u32[40]
        %5 = input "x" : f16[2,48,40]
        %6 = exp %5 : f16[2,48,40]
        %7 = permute %6 [0,2,1] : f16[2,40,48]
        %8 = weight "w" : q4_0[8,32]
        %9 = dequantize %8 : f16[8,32]
        %10 = reshape %9 : f16[1,4,64]
        %11 = slice %10 axis=2 start=3 len=48 : f16[1,4,48]
        %12 = broadcast %11 : f16[2,4,48]
        %13 = index_add %12 %4 %7 : f16[2,4,48]
        return %13 as "y""#;
    check(&[case("index_add of computed operands", INDEX_ADD, text)]);
}
