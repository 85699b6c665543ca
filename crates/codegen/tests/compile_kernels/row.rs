//! Reductions, alone and several over the same rows.

use tallow_ir::{DType, FusionKind, ReduceKind};

use crate::{Case, Expect, case, check};

const ROW: &[FusionKind] = &[FusionKind::Row];

fn reduction(kind: ReduceKind, d: DType) -> Case {
    let (name, r) = (kind.name(), if kind.is_arg() { DType::U32 } else { d });
    let plain = case(
        format!("{name} {d}"),
        ROW,
        format!(
            r#"
        %0 = input "x" : {d}[3,4,50]
        %1 = {name} %0 axes=[2] : {r}[3,4]
        return %1 as "trailing"
        %2 = {name} %0 axes=[0] : {r}[4,50]
        return %2 as "leading"
        %3 = {name} %0 axes=[1] : {r}[3,50]
        return %3 as "middle"
        %4 = {name} %0 axes=[0,2] : {r}[4]
        return %4 as "outer"
        %5 = {name} %0 axes=[0,1,2] : {r}[]
        return %5 as "all""#
        ),
    );
    if matches!(d, DType::F64 | DType::I64) { Case { expect: Expect::Wide(ROW), ..plain } } else { plain }
}

#[test]
fn every_reduction_in_every_dtype() {
    let all = ReduceKind::ALL.into_iter().flat_map(|k| DType::SCALARS.map(|d| reduction(k, d)));
    check(&all.collect::<Vec<_>>());
}

/// Rows from one element to more than a workgroup holds, and no element at all.
#[test]
fn row_lengths() {
    let lengths = [0, 1, 2, 31, 33, 256, 1000, 20000];
    let of = |n: i32| {
        case(
            format!("{n} elements"),
            ROW,
            format!(
                r#"
            %0 = input "x" : f32[7,{n}]
            %1 = reduce_max %0 axes=[1] : f32[7]
            %2 = reduce_argmin %0 axes=[1] : u32[7]
            return %1 as "a"
            return %2 as "b""#
            ),
        )
    };
    check(&lengths.map(of));
}

/// Rows that several workgroups share.
#[test]
fn long_rows_in_every_dtype() {
    let of = |d: DType| {
        let mut text = format!("%0 = input \"x\" : {d}[2,30000]\n");
        for (i, kind) in ReduceKind::ALL.into_iter().enumerate() {
            let (name, r) = (kind.name(), if kind.is_arg() { DType::U32 } else { d });
            text += &format!("%{} = {name} %0 axes=[1] : {r}[2]\nreturn %{} as \"{name}\"\n", i + 1, i + 1);
        }
        let plain = case(format!("long rows of {d}"), ROW, text);
        if matches!(d, DType::F64 | DType::I64) { Case { expect: Expect::Wide(ROW), ..plain } } else { plain }
    };
    check(&DType::SCALARS.map(of));
}

/// Rows that one workgroup takes although they are long: where meeting takes more bindings than there are, where the loop's
/// variable would wrap, and columns.
#[test]
fn long_rows_that_are_not_shared() {
    let scratch = |profile: &str, text: &str| {
        let graph = tallow_ir::text::parse(&format!("graph \"g\" {{\n{text}\n}}")).unwrap();
        let module = tallow_codegen::compile(&graph, &tallow_ir::caps::profile(profile).unwrap()).unwrap();
        module.kernels.iter().map(|kernel| kernel.scratch.len()).collect::<Vec<_>>()
    };
    let sum = |n: i64| {
        format!(
            "%0 = input \"x\" : f32[{n},1]\n%1 = input \"y\" : f32[1,{n}]\n%2 = broadcast %0 : f32[{n},{n}]\n\
             %3 = broadcast %1 : f32[{n},{n}]\n%4 = mul %2 %3 : f32[{n},{n}]\n\
             %5 = reduce_sum %4 axes=[0,1] : f32[]\nreturn %5 as \"s\""
        )
    };
    assert_eq!(scratch("h200", &sum(60_000)), [2]);
    assert_eq!(scratch("h200", &sum(65_535)), [0]);
    assert_eq!(scratch("minimum", &sum(60_000)), [0]);
    // Three windows of each operand leave no room beside the table and the result.
    let dot = |n: i64| {
        format!(
            "%0 = input \"x\" : f32[{n}]\n%1 = input \"y\" : f32[{n}]\n%2 = mul %0 %1 : f32[{n}]\n\
             %3 = reduce_sum %2 axes=[0] : f32[]\nreturn %3 as \"s\""
        )
    };
    assert_eq!(scratch("lavapipe", &dot(1_000_000)), [2]);
    let few =
        tallow_ir::DeviceCaps { max_storage_buffers: 8, ..tallow_ir::caps::profile("lavapipe").unwrap() };
    let graph = tallow_ir::text::parse(&format!("graph \"g\" {{\n{}\n}}", dot(100_000_000))).unwrap();
    let module = tallow_codegen::compile(&graph, &few).unwrap();
    assert!(module.kernels.iter().all(|k| k.scratch.is_empty() && k.bindings.len() <= 8));
    let columns = "%0 = input \"x\" : f32[40000,64]\n%1 = reduce_max %0 axes=[0] : f32[64]\n\
                   %2 = broadcast %1 : f32[40000,64]\n%3 = sub %0 %2 : f32[40000,64]\n%4 = exp %3 : f32[40000,64]\n\
                   %5 = reduce_sum %4 axes=[0] : f32[64]\nreturn %5 as \"s\"\nreturn %4 as \"e\"";
    assert_eq!(scratch("h200", columns), [0]);
}

fn softmax(d: DType, rows: &str, inner: &str) -> Case {
    let symbols = "symbol seq <= 40\nsymbol len <= 500";
    let (full, one) = (format!("{d}[{rows},{inner}]"), format!("{d}[{rows},1]"));
    case(
        format!("softmax {full}"),
        ROW,
        format!(
            r#"{symbols}
        %0 = input "x" : {full}
        %1 = reduce_max %0 axes=[1] : {d}[{rows}]
        %2 = reshape %1 : {one}
        %3 = broadcast %2 : {full}
        %4 = sub %0 %3 : {full}
        %5 = exp %4 : {full}
        %6 = reduce_sum %5 axes=[1] : {d}[{rows}]
        %7 = reshape %6 : {one}
        %8 = broadcast %7 : {full}
        %9 = div %5 %8 : {full}
        return %9 as "y""#
        ),
    )
}

#[test]
fn several_reductions_of_a_row() {
    let mut cases = vec![];
    for d in [DType::F32, DType::F16, DType::BF16] {
        for (rows, inner) in [("7", "100"), ("seq", "100"), ("7", "len"), ("seq", "len"), ("1", "3")] {
            cases.push(softmax(d, rows, inner));
        }
    }
    cases.push(case(
        "layer norm with its statistics",
        ROW,
        r#"
        symbol seq <= 40
        %0 = input "x" : f16[seq,96]
        %1 = cast %0 : f32[seq,96]
        %2 = reduce_sum %1 axes=[1] : f32[seq]
        %3 = const 0.010416666666666666 : f32[]
        %4 = broadcast %3 : f32[seq]
        %5 = mul %2 %4 : f32[seq]
        %6 = reshape %5 : f32[seq,1]
        %7 = broadcast %6 : f32[seq,96]
        %8 = sub %1 %7 : f32[seq,96]
        %9 = mul %8 %8 : f32[seq,96]
        %10 = reduce_sum %9 axes=[1] : f32[seq]
        %11 = mul %10 %4 : f32[seq]
        %12 = const 0.00001 : f32[]
        %13 = broadcast %12 : f32[seq]
        %14 = add %11 %13 : f32[seq]
        %15 = sqrt %14 : f32[seq]
        %16 = recip %15 : f32[seq]
        %17 = reshape %16 : f32[seq,1]
        %18 = broadcast %17 : f32[seq,96]
        %19 = mul %8 %18 : f32[seq,96]
        %20 = weight "g" : bf16[96]
        %21 = cast %20 : f32[96]
        %22 = broadcast %21 : f32[seq,96]
        %23 = mul %19 %22 : f32[seq,96]
        %24 = cast %23 : f16[seq,96]
        return %24 as "y"
        return %5 as "mean"
        return %11 as "variance""#,
    ));
    cases.push(case(
        "columns normalized by their largest",
        ROW,
        r#"
        %0 = input "x" : f32[30,5,8]
        %1 = abs %0 : f32[30,5,8]
        %2 = reduce_max %1 axes=[0] : f32[5,8]
        %3 = broadcast %2 : f32[30,5,8]
        %4 = div %0 %3 : f32[30,5,8]
        return %4 as "y""#,
    ));
    cases.push(case(
        "value and index of the largest",
        ROW,
        r#"
        symbol vocab <= 1000
        %0 = input "x" : f32[1,vocab]
        %1 = reduce_argmax %0 axes=[1] : u32[1]
        %2 = reduce_max %0 axes=[1] : f32[1]
        %3 = reduce_argmin %0 axes=[1] : u32[1]
        return %1 as "token"
        return %2 as "logit"
        return %3 as "least""#,
    ));
    cases.push(case(
        "a window, padded, of gathered rows",
        ROW,
        r#"
        %0 = weight "w" : q8_0[20,64]
        %1 = dequantize %0 : f32[20,64]
        %2 = input "i" : u32[6]
        %3 = gather %1 %2 axis=0 : f32[6,64]
        %4 = pad %3 axis=1 before=3 after=5 value=0.5 : f32[6,72]
        %5 = reduce_prod %4 axes=[1] : f32[6]
        return %5 as "y""#,
    ));
    check(&cases);
}

/// A norm whose result goes to a state too.
#[test]
fn row_results_into_a_state() {
    check(&[case(
        "norm into a cache",
        ROW,
        r#"
        symbol pos <= 60
        %0 = input "x" : f32[2,1,16]
        %1 = mul %0 %0 : f32[2,1,16]
        %2 = reduce_sum %1 axes=[2] : f32[2,1]
        %3 = sqrt %2 : f32[2,1]
        %4 = reshape %3 : f32[2,1,1]
        %5 = broadcast %4 : f32[2,1,16]
        %6 = div %0 %5 : f32[2,1,16]
        %7 = cast %6 : f16[2,1,16]
        %8 = state "k" : f16[2,64,16]
        %9 = state_update %8 %7 at=[0,pos,0] : f16[2,64,16]
        return %9
        return %6 as "y""#,
    )]);
}

/// Scans along each axis of rows that an invocation, a subgroup or a workgroup scans, and of rows in parts.
#[test]
fn scans_in_every_dtype() {
    let of = |d: DType| {
        let mut body = String::new();
        let mut id = 0;
        let shapes = [(3, 12, 1), (7, 100, 1), (9000, 60, 1), (2, 5000, 1), (1, 1, 20001), (20001, 3, 1)];
        for (a, b, c) in shapes {
            let shape = format!("{d}[{a},{b},{c}]");
            body += &format!("%{id} = input \"x{id}\" : {shape}\n");
            for axis in 0..3 {
                let at = id + axis + 1;
                body += &format!("%{at} = scan_sum %{id} axis={axis} : {shape}\nreturn %{at} as \"y{at}\"\n");
            }
            id += 4;
        }
        let plain = case(format!("scans {d}"), &[FusionKind::Scan], body);
        let wide = matches!(d, DType::F64 | DType::I64);
        if wide { Case { expect: Expect::Wide(&[FusionKind::Scan]), ..plain } } else { plain }
    };
    check(&DType::SCALARS.map(of));
}

/// Many rows of few elements, one subgroup each, with results per element and per row.
#[test]
fn narrow_rows() {
    let of = |d: DType| {
        let body = format!(
            r#"
        %0 = input "x" : {d}[5000,36]
        %1 = reduce_max %0 axes=[1] : {d}[5000]
        %2 = reshape %1 : {d}[5000,1]
        %3 = broadcast %2 : {d}[5000,36]
        %4 = sub %0 %3 : {d}[5000,36]
        %5 = reduce_prod %4 axes=[1] : {d}[5000]
        %6 = reduce_argmin %0 axes=[1] : u32[5000]
        return %4 as "a"
        return %5 as "b"
        return %6 as "c""#
        );
        let plain = case(format!("narrow rows {d}"), ROW, body);
        if matches!(d, DType::F64 | DType::I64) { Case { expect: Expect::Wide(ROW), ..plain } } else { plain }
    };
    check(&DType::SCALARS.map(of));
}
