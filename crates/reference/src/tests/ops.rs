//! Elementwise ops, casts, views, reductions and indexing.

use super::*;

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

/// Result of `op` on two inputs of `dtype`.
fn binary(op: &str, dtype: DType, a: &[f64], b: &[f64]) -> Vec<f64> {
    let n = a.len();
    let result = if ["eq", "ne", "lt", "le", "gt", "ge"].contains(&op) { DType::U8 } else { dtype };
    let body = format!(
        "%0 = input \"a\" : {dtype}[{n}]\n%1 = input \"b\" : {dtype}[{n}]\n%2 = {op} %0 %1 : {result}[{n}]\nreturn %2 as \"y\""
    );
    run(&body, &[], &[a, b])
}

fn unary(op: &str, from: DType, to: DType, a: &[f64]) -> Vec<f64> {
    let n = a.len();
    let body = format!("%0 = input \"a\" : {from}[{n}]\n%1 = {op} %0 : {to}[{n}]\nreturn %1 as \"y\"");
    run(&body, &[], &[a])
}

#[test]
fn float_arithmetic_rounds_once_to_the_dtype() {
    same(&binary("add", DType::F32, &[0.1, 1e8], &[0.2, 1.0]), &[f64::from(0.1f32 + 0.2f32), 1e8]);
    same(&binary("mul", DType::F16, &[300.0, 3.0], &[300.0, 0.5]), &[INF, 1.5]);
    same(&binary("add", DType::BF16, &[256.0], &[1.0]), &[256.0]);
    same(&binary("add", DType::F64, &[0.1], &[0.2]), &[0.1 + 0.2]);
    same(&binary("div", DType::F32, &[1.0, -1.0, 0.0], &[0.0, 0.0, 0.0]), &[INF, -INF, NAN]);
    same(&binary("rem", DType::F32, &[-7.5], &[2.0]), &[-1.5]);
    same(&unary("exp", DType::F32, DType::F32, &[0.0, 1.0]), &[1.0, f64::from(std::f32::consts::E)]);
    same(&unary("round", DType::F32, DType::F32, &[2.5, -0.5, -2.4]), &[3.0, -1.0, -2.0]);
    same(&unary("sqrt", DType::F32, DType::F32, &[4.0, -1.0]), &[2.0, NAN]);
    same(&unary("sign", DType::F32, DType::F32, &[-3.0, NAN, 2.0]), &[-1.0, NAN, 1.0]);
}

#[test]
fn integers_wrap_and_never_trap() {
    same(&binary("add", DType::U8, &[250.0], &[10.0]), &[4.0]);
    same(&binary("sub", DType::U32, &[0.0], &[1.0]), &[4294967295.0]);
    same(&binary("mul", DType::I32, &[65536.0, 3.0], &[32768.0, -2.0]), &[-2147483648.0, -6.0]);
    same(
        &binary("div", DType::I32, &[7.0, -7.0, -2147483648.0], &[0.0, 2.0, -1.0]),
        &[0.0, -3.0, -2147483648.0],
    );
    same(&binary("rem", DType::I32, &[7.0, -7.0], &[0.0, 2.0]), &[0.0, -1.0]);
    same(&binary("div", DType::I64, &[i64::MIN as f64], &[-1.0]), &[i64::MIN as f64]);
    same(&unary("neg", DType::U8, DType::U8, &[1.0]), &[255.0]);
    same(&unary("abs", DType::I32, DType::I32, &[-2147483648.0]), &[-2147483648.0]);
}

#[test]
fn comparisons_know_nan_and_select_keeps_it() {
    for (op, expected) in [
        ("eq", [0, 1, 0]),
        ("ne", [1, 0, 1]),
        ("lt", [1, 0, 0]),
        ("le", [1, 1, 0]),
        ("gt", [0, 0, 0]),
        ("ge", [0, 1, 0]),
    ] {
        let expected = expected.map(f64::from);
        same(&binary(op, DType::F32, &[1.0, 2.0, NAN], &[2.0, 2.0, NAN]), &expected);
    }
    same(&binary("minimum", DType::F32, &[NAN, 1.0, 2.0], &[1.0, NAN, -2.0]), &[NAN, NAN, -2.0]);
    same(&binary("maximum", DType::F32, &[NAN, 1.0, 2.0], &[1.0, NAN, -2.0]), &[NAN, NAN, 2.0]);
    same(&binary("logical_and", DType::U8, &[2.0, 2.0, 0.0], &[1.0, 0.0, 0.0]), &[1.0, 0.0, 0.0]);
    same(&binary("logical_or", DType::U8, &[2.0, 0.0, 0.0], &[1.0, 3.0, 0.0]), &[1.0, 1.0, 0.0]);
    let select = r#"%0 = input "c" : u8[3]
        %1 = input "a" : f32[3]
        %2 = input "b" : f32[3]
        %3 = select %0 %1 %2 : f32[3]
        return %3 as "y""#;
    same(&run(select, &[], &[&[0.0, 1.0, 7.0], &[1.0, NAN, 3.0], &[-1.0, -2.0, NAN]]), &[-1.0, NAN, 3.0]);
    let ints = select.replace("f32", "i64");
    same(&run(&ints, &[], &[&[0.0, 1.0, 7.0], &[1.0, 2.0, 3.0], &[-1.0, -2.0, -3.0]]), &[-1.0, 2.0, 3.0]);
}

#[test]
fn casts_saturate_wrap_and_round() {
    let floats = [-1.0, 300.7, NAN, INF, -INF, 2.9, -0.0];
    same(&unary("cast", DType::F32, DType::U8, &floats), &[0.0, 255.0, 0.0, 255.0, 0.0, 2.0, 0.0]);
    same(&unary("cast", DType::F64, DType::I32, &[3e9, -3e9, -2.9]), &[2147483647.0, -2147483648.0, -2.0]);
    same(&unary("cast", DType::I32, DType::U8, &[-1.0, 256.0, 511.0]), &[255.0, 0.0, 255.0]);
    same(&unary("cast", DType::I32, DType::U32, &[-1.0]), &[4294967295.0]);
    same(&unary("cast", DType::U32, DType::I32, &[4294967295.0]), &[-1.0]);
    same(&unary("cast", DType::I32, DType::F32, &[16777217.0, 16777219.0]), &[16777216.0, 16777220.0]);
    same(&unary("cast", DType::I32, DType::F16, &[70000.0, 2049.0]), &[INF, 2048.0]);
    same(&unary("cast", DType::F32, DType::F16, &[1.0 + 1.0 / 2048.0, NAN]), &[1.0, NAN]);
    same(&unary("cast", DType::F16, DType::F32, &[0.5, 65504.0]), &[0.5, 65504.0]);
    same(&unary("cast", DType::F32, DType::F64, &[0.1]), &[f64::from(0.1f32)]);
    same(&unary("cast", DType::U8, DType::I64, &[200.0]), &[200.0]);
}

#[test]
fn constants_iota_and_extents() {
    let body = r#"symbol n <= 9
        %0 = const -1.5 : f16[]
        %1 = const 300 : u8[]
        %2 = iota : i32[n]
        %3 = iota : f32[3]
        %4 = dim_value {2*n-7} : i64[]
        %5 = dim_value {n} : f32[]
        %6 = dim_value {n-5} : u32[]
        return %0 as "a"
        return %1 as "b"
        return %2 as "c"
        return %3 as "d"
        return %4 as "e"
        return %5 as "f"
        return %6 as "g""#;
    same(&run(body, &[("n", 2)], &[]), &[-1.5, 44.0, 0.0, 1.0, 0.0, 1.0, 2.0, -3.0, 2.0, 4294967293.0]);
}

#[test]
fn views_move_elements() {
    let six = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
    let view = |line: &str| {
        run(&format!("%0 = input \"a\" : f32[2,3]\n%1 = {line}\nreturn %1 as \"y\""), &[], &[&six])
    };
    same(&view("permute %0 [1,0] : f32[3,2]"), &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    same(&view("reshape %0 : f32[3,1,2]"), &six);
    same(&view("slice %0 axis=1 start=1 len=2 : f32[2,2]"), &[1.0, 2.0, 4.0, 5.0]);
    same(&view("slice %0 axis=0 start=1 len=0 : f32[0,3]"), &[]);
    same(&view("flip %0 axis=1 : f32[2,3]"), &[2.0, 1.0, 0.0, 5.0, 4.0, 3.0]);
    same(&view("flip %0 axis=0 : f32[2,3]"), &[3.0, 4.0, 5.0, 0.0, 1.0, 2.0]);
    same(
        &view("pad %0 axis=1 before=1 after=0 value=9.0 : f32[2,4]"),
        &[9.0, 0.0, 1.0, 2.0, 9.0, 3.0, 4.0, 5.0],
    );
    same(
        &view("pad %0 axis=0 before=0 after=1 value=nan : f32[3,3]"),
        &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, NAN, NAN, NAN],
    );
    same(
        &view("concat %0 %0 axis=1 : f32[2,6]"),
        &[0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 3.0, 4.0, 5.0],
    );
    same(&view("broadcast %0 : f32[2,2,3]"), &[six, six].concat());
}

#[test]
fn views_of_views_compose() {
    // The reshape of a permuted, reversed slice must read through all three.
    let body = r#"%0 = input "a" : f32[2,3,4]
        %1 = permute %0 [2,0,1] : f32[4,2,3]
        %2 = slice %1 axis=0 start=1 len=2 : f32[2,2,3]
        %3 = flip %2 axis=2 : f32[2,2,3]
        %4 = reshape %3 : f32[3,4]
        %5 = permute %4 [1,0] : f32[4,3]
        return %5 as "y""#;
    let all: Vec<f64> = (0..24).map(f64::from).collect();
    let mut expected = vec![];
    for column in 0..4 {
        for row in 0..3 {
            let flat = row * 4 + column;
            let (i, j, k) = (flat / 6, flat / 3 % 2, flat % 3);
            expected.push((j * 12 + (2 - k) * 4 + i + 1) as f64);
        }
    }
    same(&run(body, &[], &[&all]), &expected);
}

#[test]
fn broadcast_aligns_at_the_last_axis_also_of_symbolic_shapes() {
    let body = r#"symbol n <= 4
        %0 = input "a" : f32[n,1]
        %1 = input "b" : f32[3]
        %2 = const 10.0 : f32[]
        %3 = broadcast %0 : f32[2,n,3]
        %4 = broadcast %1 : f32[2,n,3]
        %5 = broadcast %2 : f32[2,n,3]
        %6 = mul %3 %5 : f32[2,n,3]
        %7 = add %6 %4 : f32[2,n,3]
        return %7 as "y""#;
    let once = [11.0, 12.0, 13.0, 21.0, 22.0, 23.0];
    same(&run(body, &[("n", 2)], &[&[1.0, 2.0], &[1.0, 2.0, 3.0]]), &[once, once].concat());
    same(&run(body, &[("n", 0)], &[&[], &[1.0, 2.0, 3.0]]), &[]);
    // A symbol that happens to be 1 repeats nothing.
    same(&run(body, &[("n", 1)], &[&[1.0], &[1.0, 2.0, 3.0]]), &[11.0, 12.0, 13.0, 11.0, 12.0, 13.0]);
}

fn reduced(kind: &str, axes: &str, dtype: &str, shape: &str, to: &str, values: &[f64]) -> Vec<f64> {
    let body = format!(
        "%0 = input \"a\" : {dtype}[{shape}]\n%1 = reduce_{kind} %0 axes=[{axes}] : {to}\nreturn %1 as \"y\""
    );
    run(&body, &[], &[values])
}

#[test]
fn reductions_over_any_axes() {
    let all: Vec<f64> = (1..=12).map(f64::from).collect();
    same(&reduced("sum", "0", "f32", "2,3,2", "f32[3,2]", &all), &[8.0, 10.0, 12.0, 14.0, 16.0, 18.0]);
    same(&reduced("sum", "1", "f32", "2,3,2", "f32[2,2]", &all), &[9.0, 12.0, 27.0, 30.0]);
    same(&reduced("sum", "0,2", "f32", "2,3,2", "f32[3]", &all), &[18.0, 26.0, 34.0]);
    same(&reduced("prod", "0,1,2", "f64", "2,3,2", "f64[]", &all), &[479001600.0]);
    same(&reduced("prod", "0", "u8", "3", "u8[]", &[16.0, 16.0, 3.0]), &[0.0]);
    same(&reduced("sum", "0", "u8", "3", "u8[]", &[200.0, 100.0, 3.0]), &[47.0]);
    same(&reduced("max", "1", "i32", "2,2", "i32[2]", &[-5.0, -7.0, 3.0, 9.0]), &[-5.0, 9.0]);
    // The sum is exact in f64 and rounded once: in f32, each of the ones would be lost.
    let long: Vec<f64> = std::iter::once(16777216.0).chain([1.0; 3000]).collect();
    same(&reduced("sum", "0", "f32", "3001", "f32[]", &long), &[16780216.0]);
}

#[test]
fn reductions_of_nothing_and_of_nan() {
    for (kind, dtype, expected) in [
        ("sum", "f32", 0.0),
        ("prod", "f32", 1.0),
        ("max", "f32", -INF),
        ("min", "f16", INF),
        ("max", "u8", 0.0),
        ("min", "u8", 255.0),
        ("max", "i32", -2147483648.0),
        ("min", "u32", 4294967295.0),
    ] {
        same(&reduced(kind, "0", dtype, "0,2", &format!("{dtype}[2]"), &[]), &[expected; 2]);
    }
    same(&reduced("argmax", "1", "f32", "2,0", "u32[2]", &[]), &[0.0, 0.0]);
    same(&reduced("sum", "1", "f32", "0,3", "f32[0]", &[]), &[]);
    same(&reduced("max", "0", "f32", "3", "f32[]", &[1.0, NAN, 2.0]), &[NAN]);
    same(&reduced("min", "0", "f32", "3", "f32[]", &[NAN, 1.0, 2.0]), &[NAN]);
    same(&reduced("sum", "0", "f32", "3", "f32[]", &[INF, -INF, 2.0]), &[NAN]);
}

#[test]
fn positions_are_of_the_first_and_row_major() {
    same(&reduced("argmax", "1", "f32", "2,3", "u32[2]", &[1.0, 3.0, 3.0, -1.0, -2.0, -1.0]), &[1.0, 0.0]);
    same(&reduced("argmin", "1", "f32", "2,3", "u32[2]", &[1.0, 1.0, 3.0, 5.0, 4.0, 4.0]), &[0.0, 1.0]);
    same(
        &reduced("argmax", "0,2", "i32", "2,2,2", "u32[2]", &[0.0, 1.0, 9.0, 2.0, 8.0, 3.0, 4.0, 9.0]),
        &[2.0, 0.0],
    );
    // A NaN wins, as in the reductions to a value.
    same(&reduced("argmax", "0", "f32", "4", "u32[]", &[5.0, NAN, 9.0, NAN]), &[1.0]);
    same(&reduced("argmin", "0", "f32", "4", "u32[]", &[5.0, NAN, -9.0, NAN]), &[1.0]);
    same(&reduced("argmax", "0", "f32", "2", "u32[]", &[-INF, -INF]), &[0.0]);
}

#[test]
fn gather_clamps_and_takes_any_axis() {
    let rows = r#"%0 = input "a" : f32[2,3]
        %1 = input "i" : u32[2,2]
        %2 = gather %0 %1 axis=0 : f32[2,2,3]
        return %2 as "y""#;
    let six = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
    let expected = [3.0, 4.0, 5.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 1.0, 2.0];
    same(&run(rows, &[], &[&six, &[1.0, 0.0, 4e9, 0.0]]), &expected);
    let columns = r#"%0 = input "a" : i64[2,3]
        %1 = input "i" : u32[]
        %2 = permute %0 [1,0] : i64[3,2]
        %3 = gather %2 %1 axis=1 : i64[3]
        return %3 as "y""#;
    same(&run(columns, &[], &[&six, &[1.0]]), &[3.0, 4.0, 5.0]);
    let empty = r#"symbol n <= 4
        %0 = input "a" : f32[n]
        %1 = input "i" : u32[2]
        %2 = gather %0 %1 axis=0 : f32[2]
        return %2 as "y""#;
    same(&run(empty, &[("n", 0)], &[&[], &[0.0, 1.0]]), &[0.0, 0.0]);
}

#[test]
fn attention_is_softmax_of_scores() {
    let text = |causal: bool, s: usize, t: usize| {
        format!(
            "%0 = input \"q\" : f64[2,{s},1]\n%1 = input \"k\" : f64[1,{t},1]\n%2 = input \"v\" : f64[1,{t},2]\n\
             %3 = attention %0 %1 %2 scale=2.0 causal={causal} : f64[2,{s},2]\nreturn %3 as \"y\""
        )
    };
    let (q, k, v) = ([0.5f64, -1.0, 0.0, 2.0], [1.0, 3.0, -2.0], [1.0, 10.0, 2.0, 20.0, 4.0, 40.0]);
    let expected = |causal: bool| -> Vec<f64> {
        let mut out = vec![];
        for (n, q) in q.iter().enumerate() {
            let visible = if causal { n % 2 + 2 } else { 3 };
            let weights: Vec<f64> = k[..visible].iter().map(|k| (2.0 * q * k).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mix =
                |c: usize| weights.iter().enumerate().map(|(j, w)| w * v[2 * j + c]).sum::<f64>() / total;
            out.extend([mix(0), mix(1)]);
        }
        out
    };
    for causal in [false, true] {
        let got = run(&text(causal, 2, 3), &[], &[&q, &k, &v]);
        assert!(got.iter().zip(expected(causal)).all(|(a, b)| (a - b).abs() < 1e-12), "{got:?}");
    }
    // Of two queries and one key, the first sees nothing.
    let got = run(&text(true, 2, 1), &[], &[&q, &k[..1], &v[..2]]);
    same(&got, &[0.0, 0.0, 1.0, 10.0, 0.0, 0.0, 1.0, 10.0]);
    same(&run(&text(false, 2, 0), &[], &[&q, &[], &[]]), &[0.0; 8]);
}
