//! Matvecs and matmuls: weight formats, layouts, rows, prologues, epilogues, siblings.

use tallow_ir::{DType, Format, FusionKind, dot};

use crate::{Case, Expect, blocks, case, check};

const MATVEC: &[FusionKind] = &[FusionKind::Matvec];
const MATMUL: &[FusionKind] = &[FusionKind::Matmul];

/// The kind for `rows` (a number or a symbol).
fn kind(rows: &str) -> &'static [FusionKind] {
    if rows.parse::<i64>().is_ok_and(|m| m <= 8) { MATVEC } else { MATMUL }
}

/// `x [rows,k]` times the transpose of a weight `[n,k]` of type `w` (blocks, or a float that is widened).
fn linear(w: &str, rows: &str, k: u32, n: u32) -> Case {
    let widen = match w {
        "f32" => "reshape",
        "f16" | "bf16" => "cast",
        _ => "dequantize",
    };
    case(
        format!("{rows} x {k} by {w} [{n},{k}]"),
        // Few columns are a transposed matvec.
        if (1..=8).contains(&n) { MATVEC } else { kind(rows) },
        format!(
            r#"
        symbol seq <= 100
        %0 = input "x" : f32[{rows},{k}]
        %1 = weight "w" : {w}[{n},{k}]
        %2 = {widen} %1 : f32[{n},{k}]
        %3 = permute %2 [1,0] : f32[{k},{n}]
        %4 = matmul %0 %3 : f32[{rows},{n}]
        return %4 as "y""#
        ),
    )
}

#[test]
fn every_format_and_number_of_rows() {
    let mut cases = vec![];
    for rows in ["1", "3", "9", "64", "seq"] {
        for format in blocks() {
            cases.push(linear(format.spec().name, rows, 512, 100));
        }
        for w in ["f32", "f16", "bf16"] {
            cases.push(linear(w, rows, 512, 100));
        }
    }
    for rows in ["2", "4", "5", "6", "7", "8"] {
        cases.extend([linear("q4_k", rows, 512, 100), linear("f16", rows, 512, 100)]);
    }
    check(&cases);
}

/// Rounded activations: multiplied as integers where the device and the format allow it.
#[test]
fn quantized_activations() {
    let mut cases = vec![];
    let packed = |format: &Format| dot::packing(*format).is_some() || *format == Format::IQ1_S;
    for rows in ["1", "3"] {
        for format in blocks().filter(packed) {
            let Case { name, text, .. } = linear(format.spec().name, rows, 1024, 100);
            let text = text
                .replace("%4 = matmul %0 %3", "%5 = dequantize %6 : f32[ROWS,1024]\n%4 = matmul %5 %3")
                .replace("%1 = weight", "%6 = quantize %0 : q8_1[ROWS,1024]\n%1 = weight")
                .replace("ROWS", rows);
            // With a kernel that rounds beside it on some profiles.
            cases.push(Case { name: format!("rounded {name}"), text, expect: Expect::Kinds(MATVEC) });
        }
    }
    check(&cases);
}

/// Rounded behind a norm that is the matvec's prologue: the norm and the rounding read the same activations, of rows that
/// workgroups of all sizes go over once or several times.
#[test]
fn quantized_norms() {
    let mut cases = vec![];
    for (rows, k, n) in
        [("1", 256, 40), ("1", 4096, 40), ("1", 4096, 4096), ("1", 14336, 200), ("2", 4096, 9)]
    {
        let norm = rms_norm(rows, k);
        cases.push(case(
            format!("rounded norm, {rows} x {k} by [{n},{k}]"),
            MATVEC,
            format!(
                r#"
                %0 = input "x" : f32[{rows},{k}]{norm}
                %30 = quantize %22 : q8_1[{rows},{k}]
                %31 = dequantize %30 : f32[{rows},{k}]
                %32 = weight "w" : q4_0[{n},{k}]
                %33 = dequantize %32 : f32[{n},{k}]
                %34 = permute %33 [1,0] : f32[{k},{n}]
                %35 = matmul %31 %34 : f32[{rows},{n}]
                return %35 as "y""#
            ),
        ));
    }
    check(&cases);
}

/// Products of every dtype, each accumulated in its register's type.
#[test]
fn every_dtype() {
    let mut cases = vec![];
    for d in DType::SCALARS {
        for rows in ["1", "3", "33"] {
            let plain = case(
                format!("{rows} rows of {d}"),
                kind(rows),
                format!(
                    r#"
                %0 = input "x" : {d}[{rows},24]
                %1 = input "y" : {d}[24,17]
                %2 = matmul %0 %1 : {d}[{rows},17]
                %3 = add %2 %2 : {d}[{rows},17]
                return %3 as "y""#
                ),
            );
            let wide = matches!(d, DType::F64 | DType::I64);
            cases.push(if wide { Case { expect: Expect::Wide(kind(rows)), ..plain } } else { plain });
        }
    }
    check(&cases);
}

/// Inner extents that are no multiple of eight, of one, and larger than a workgroup's step; few and many columns.
#[test]
fn odd_extents() {
    let mut cases = vec![];
    for rows in ["1", "3", "33", "seq"] {
        for w in ["f32", "f16", "bf16"] {
            for (k, n) in [(1, 1), (7, 5), (7, 9), (13, 33), (24, 3), (24, 11), (1001, 130), (4096, 2)] {
                cases.push(linear(w, rows, k, n));
            }
        }
        cases.push(linear("q4_0", rows, 32, 1));
        cases.push(linear("q4_k", rows, 256, 3));
        cases.push(linear("q6_k", rows, 14336, 8));
    }
    check(&cases);
}

/// Operands as they come: right side not transposed, both computed, batches, 16-bit results, symbolic extents.
#[test]
fn layouts_and_batches() {
    let mut cases = vec![];
    for rows in ["1", "5", "40", "seq"] {
        for d in ["f32", "f16", "bf16"] {
            cases.push(case(
                format!("plain {d} {rows}"),
                kind(rows),
                format!(
                    r#"
                symbol seq <= 100
                %0 = input "x" : {d}[{rows},48]
                %1 = input "y" : {d}[48,20]
                %2 = matmul %0 %1 : {d}[{rows},20]
                return %2 as "z""#
                ),
            ));
            cases.push(case(
                format!("batches {d} {rows}"),
                kind(rows),
                format!(
                    r#"
                symbol seq <= 100
                %0 = input "x" : {d}[3,1,{rows},48]
                %1 = input "y" : {d}[1,4,20,48]
                %2 = permute %1 [0,1,3,2] : {d}[1,4,48,20]
                %3 = exp %0 : {d}[3,1,{rows},48]
                %4 = matmul %3 %2 : {d}[3,4,{rows},20]
                %5 = neg %4 : {d}[3,4,{rows},20]
                return %5 as "z""#
                ),
            ));
        }
        cases.push(case(
            format!("symbolic inner and columns, {rows}"),
            kind(rows),
            format!(
                r#"
            symbol seq <= 100
            symbol t <= 64
            symbol u <= 30
            %0 = input "x" : f32[2,{rows},t]
            %1 = input "y" : f32[2,t,u]
            %2 = matmul %0 %1 : f32[2,{rows},u]
            return %2 as "z""#
            ),
        ));
        cases.push(case(
            format!("slice of a weight, {rows}"),
            kind(rows),
            format!(
                r#"
            symbol seq <= 100
            %0 = input "x" : f32[{rows},64]
            %1 = weight "w" : q8_0[96,128]
            %2 = dequantize %1 : f32[96,128]
            %3 = slice %2 axis=1 start=64 len=64 : f32[96,64]
            %4 = slice %3 axis=0 start=3 len=50 : f32[50,64]
            %5 = permute %4 [1,0] : f32[64,50]
            %6 = matmul %0 %5 : f32[{rows},50]
            %7 = slice %2 axis=1 start=5 len=64 : f32[96,64]
            %8 = permute %7 [1,0] : f32[64,96]
            %9 = matmul %0 %8 : f32[{rows},96]
            return %6 as "aligned"
            return %9 as "unaligned""#
            ),
        ));
    }
    check(&cases);
}

/// RMS norm of `x [rows,k]` with a weight, as lines `%10` to `%22`.
fn rms_norm(rows: &str, k: u32) -> String {
    format!(
        r#"
        %10 = mul %0 %0 : f32[{rows},{k}]
        %11 = reduce_sum %10 axes=[1] : f32[{rows}]
        %12 = const 0.00390625 : f32[]
        %13 = broadcast %12 : f32[{rows}]
        %14 = mul %11 %13 : f32[{rows}]
        %15 = sqrt %14 : f32[{rows}]
        %16 = recip %15 : f32[{rows}]
        %17 = reshape %16 : f32[{rows},1]
        %18 = broadcast %17 : f32[{rows},{k}]
        %19 = mul %0 %18 : f32[{rows},{k}]
        %20 = weight "norm" : f32[{k}]
        %21 = broadcast %20 : f32[{rows},{k}]
        %22 = mul %19 %21 : f32[{rows},{k}]"#
    )
}

/// Norm before, gate and up beside each other, their product after, residual added.
#[test]
fn norm_gated_mlp() {
    let mut cases = vec![];
    for rows in ["1", "2", "4", "50", "seq"] {
        for (gate, up) in [("q4_k", "q6_k"), ("q8_0", "q8_0"), ("q4_0", "q4_k")] {
            let norm = rms_norm(rows, 256);
            cases.push(case(
                format!("mlp {gate} {up} {rows}"),
                kind(rows),
                format!(
                    r#"
                symbol seq <= 100
                %0 = input "x" : f32[{rows},256]{norm}
                %30 = weight "gate" : {gate}[512,256]
                %31 = dequantize %30 : f32[512,256]
                %32 = permute %31 [1,0] : f32[256,512]
                %33 = matmul %22 %32 : f32[{rows},512]
                %34 = weight "up" : {up}[512,256]
                %35 = dequantize %34 : f32[512,256]
                %36 = permute %35 [1,0] : f32[256,512]
                %37 = matmul %22 %36 : f32[{rows},512]
                %38 = neg %33 : f32[{rows},512]
                %39 = exp %38 : f32[{rows},512]
                %40 = const 1.0 : f32[]
                %41 = broadcast %40 : f32[{rows},512]
                %42 = add %39 %41 : f32[{rows},512]
                %43 = div %33 %42 : f32[{rows},512]
                %44 = mul %43 %37 : f32[{rows},512]
                %45 = weight "down" : {up}[256,512]
                %46 = dequantize %45 : f32[256,512]
                %47 = permute %46 [1,0] : f32[512,256]
                %48 = matmul %44 %47 : f32[{rows},256]
                %49 = add %48 %0 : f32[{rows},256]
                return %49 as "y""#
                ),
            ));
        }
    }
    check(&cases);
}

/// `%base .. %base+..`: rotates the halves (or neighbours) of each head of `%from [rows, heads*32]`; the result is the
/// last line's node, `base + 12`.
fn rope(from: u32, base: u32, rows: &str, heads: u32, halves: bool) -> String {
    let full = format!("[{rows},{heads},32]");
    let (shape, axis, half) = if halves {
        (format!("[{rows},{heads},2,16]"), 2, format!("[{rows},{heads},1,16]"))
    } else {
        (format!("[{rows},{heads},16,2]"), 3, format!("[{rows},{heads},16,1]"))
    };
    let n = |i: u32| base + i;
    format!(
        r#"
        %{} = reshape %{from} : f32{shape}
        %{} = slice %{} axis={axis} start=0 len=1 : f32{half}
        %{} = slice %{} axis={axis} start=1 len=1 : f32{half}
        %{} = neg %{} : f32{half}
        %{} = concat %{} %{} axis={axis} : f32{shape}
        %{} = reshape %{} : f32{full}
        %{} = reshape %{from} : f32{full}
        %{} = reshape %1 : f32[{rows},1,32]
        %{} = broadcast %{} : f32{full}
        %{} = mul %{} %{} : f32{full}
        %{} = reshape %2 : f32[{rows},1,32]
        %{} = broadcast %{} : f32{full}
        %{} = mul %{} %{} : f32{full}
        %{} = add %{} %{} : f32{full}"#,
        n(0),
        n(1),
        n(0),
        n(2),
        n(0),
        n(3),
        n(2),
        n(4),
        n(3),
        n(1),
        n(5),
        n(4),
        n(6),
        n(7),
        n(8),
        n(7),
        n(9),
        n(6),
        n(8),
        n(10),
        n(11),
        n(10),
        n(12),
        n(5),
        n(11),
        n(13),
        n(9),
        n(12)
    )
}

/// Norm, then q, k and v of different formats and widths; q and k rotated; k and v into caches.
#[test]
fn rotated_projections_into_caches() {
    let mut cases = vec![];
    for rows in ["1", "3", "40", "seq"] {
        for halves in [true, false] {
            let norm = rms_norm(rows, 256);
            let (q, k) = (rope(33, 50, rows, 4, halves), rope(37, 70, rows, 2, halves));
            cases.push(case(
                format!("qkv {rows} {halves}"),
                kind(rows),
                format!(
                    r#"
                symbol seq <= 100
                symbol pos <= 100
                %0 = input "x" : f32[{rows},256]
                %1 = input "cos" : f32[{rows},32]
                %2 = input "sin" : f32[{rows},32]{norm}
                %30 = weight "q" : q4_k[128,256]
                %31 = dequantize %30 : f32[128,256]
                %32 = permute %31 [1,0] : f32[256,128]
                %33 = matmul %22 %32 : f32[{rows},128]
                %34 = weight "k" : q4_k[64,256]
                %35 = dequantize %34 : f32[64,256]
                %36 = permute %35 [1,0] : f32[256,64]
                %37 = matmul %22 %36 : f32[{rows},64]
                %38 = weight "v" : q6_k[64,256]
                %39 = dequantize %38 : f32[64,256]
                %40 = permute %39 [1,0] : f32[256,64]
                %41 = matmul %22 %40 : f32[{rows},64]{q}{k}
                %90 = permute %63 [1,0,2] : f32[4,{rows},32]
                return %90 as "q"
                %91 = permute %83 [1,0,2] : f32[2,{rows},32]
                %92 = cast %91 : f16[2,{rows},32]
                %93 = state "kc" : f16[2,256,32]
                %94 = state_update %93 %92 at=[0,pos,0] : f16[2,256,32]
                return %94
                %95 = reshape %41 : f32[{rows},2,32]
                %96 = permute %95 [1,0,2] : f32[2,{rows},32]
                %97 = cast %96 : f16[2,{rows},32]
                %98 = state "vc" : f16[2,256,32]
                %99 = state_update %98 %97 at=[0,pos,0] : f16[2,256,32]
                return %99"#
                ),
            ));
        }
    }
    check(&cases);
}

/// Deviations of heads of queries and of keys, behind a norm or rounded activations or neither. Eight rows of 3328
/// elements rounded take nearly all the shared memory that there is for them.
#[test]
fn norms_of_heads() {
    let mut cases = vec![];
    let heads = |from: u32, base: u32, rows: &str, heads: u32, head: u32| {
        let at = |i: u32| base + i;
        format!(
            r#"
            %{} = reshape %{from} : f32[{rows},{heads},{head}]
            %{} = reduce_sum %{0} axes=[2] : f32[{rows},{heads}]
            %{} = reshape %{1} : f32[{rows},{heads},1]
            %{} = broadcast %{2} : f32[{rows},{heads},{head}]
            %{} = sub %{0} %{3} : f32[{rows},{heads},{head}]
            %{} = abs %{4} : f32[{rows},{heads},{head}]
            %{} = reduce_max %{5} axes=[2] : f32[{rows},{heads}]
            %{} = reshape %{6} : f32[{rows},{heads},1]
            %{} = broadcast %{7} : f32[{rows},{heads},{head}]
            %{} = div %{4} %{8} : f32[{rows},{heads},{head}]"#,
            at(0),
            at(1),
            at(2),
            at(3),
            at(4),
            at(5),
            at(6),
            at(7),
            at(8),
            at(9)
        )
    };
    for (i, (rows, k)) in [("1", 4096), ("3", 256), ("8", 3328), ("20", 256)].into_iter().enumerate() {
        for (j, head) in [24, 64, 80, 128, 256].into_iter().enumerate() {
            let all = ["rounded", "norm", "none"];
            for before in if rows == "8" { &all[..1] } else { &all[(i + j) % 3..][..1] } {
                let (q, n) = (8 * head, 2 * head);
                let x = match *before {
                    "none" => String::new(),
                    "norm" => rms_norm(rows, k),
                    _ => format!(
                        "\n%21 = quantize %0 : q8_1[{rows},{k}]\n%22 = dequantize %21 : f32[{rows},{k}]"
                    ),
                };
                let left = if *before == "none" { 0 } else { 22 };
                let (queries, keys) = (heads(33, 50, rows, 8, head), heads(37, 60, rows, 2, head));
                cases.push(case(
                    format!("heads of {head}, {rows} x {k}, {before}"),
                    kind(rows),
                    format!(
                        r#"
                    %0 = input "x" : f32[{rows},{k}]{x}
                    %30 = weight "q" : q4_0[{q},{k}]
                    %31 = dequantize %30 : f32[{q},{k}]
                    %32 = permute %31 [1,0] : f32[{k},{q}]
                    %33 = matmul %{left} %32 : f32[{rows},{q}]
                    %34 = weight "k" : q8_0[{n},{k}]
                    %35 = dequantize %34 : f32[{n},{k}]
                    %36 = permute %35 [1,0] : f32[{k},{n}]
                    %37 = matmul %{left} %36 : f32[{rows},{n}]{queries}{keys}
                    return %59 as "q"
                    return %69 as "k""#
                    ),
                ));
            }
        }
    }
    check(&cases);
}

/// Bias, activation and a cast after; several outputs of one matmul; a weight in 16 bits.
#[test]
fn epilogues() {
    let mut cases = vec![];
    for rows in ["1", "4", "20", "seq"] {
        for w in ["f16", "bf16"] {
            cases.push(case(
                format!("bias and gelu {w} {rows}"),
                kind(rows),
                format!(
                    r#"
                symbol seq <= 100
                %0 = input "x" : {w}[{rows},96]
                %1 = cast %0 : f32[{rows},96]
                %2 = weight "w" : {w}[40,96]
                %3 = cast %2 : f32[40,96]
                %4 = permute %3 [1,0] : f32[96,40]
                %5 = matmul %1 %4 : f32[{rows},40]
                %6 = weight "b" : {w}[40]
                %7 = cast %6 : f32[40]
                %8 = broadcast %7 : f32[{rows},40]
                %9 = add %5 %8 : f32[{rows},40]
                %10 = erf %9 : f32[{rows},40]
                %11 = mul %9 %10 : f32[{rows},40]
                %12 = cast %11 : {w}[{rows},40]
                return %12 as "y"
                %13 = tanh %9 : f32[{rows},40]
                return %13 as "z""#
                ),
            ));
        }
        cases.push(case(
            format!("columns from the neighbours {rows}"),
            kind(rows),
            format!(
                r#"
            symbol seq <= 100
            %0 = input "x" : f32[{rows},64]
            %1 = weight "w" : f32[64,48]
            %2 = matmul %0 %1 : f32[{rows},48]
            %3 = reshape %2 : f32[{rows},12,4]
            %4 = flip %3 axis=2 : f32[{rows},12,4]
            %5 = mul %3 %4 : f32[{rows},12,4]
            return %5 as "y""#
            ),
        ));
    }
    check(&cases);
}

/// Nothing to sum; more columns, rows or batches than a device has workgroups.
#[test]
fn extremes() {
    let mut cases = vec![];
    for (rows, k, n) in [("1", 0, 4), ("20", 0, 5)] {
        cases.push(linear("f32", rows, k, n));
    }
    for (rows, k, n) in
        [("1", 64, 300_000), ("20", 16, 300_000), ("1", 16, 2_500_000), ("600000", 16, 4), ("600000", 16, 9)]
    {
        cases.push(linear("f16", rows, k, n));
    }
    let batches = |rows: &str| {
        case(
            format!("70000 batches of {rows}"),
            kind(rows),
            format!(
                r#"
            %0 = input "x" : f32[70000,{rows},4]
            %1 = input "y" : f32[70000,4,9]
            %2 = matmul %0 %1 : f32[70000,{rows},9]
            return %2 as "z""#
            ),
        )
    };
    cases.push(batches("1"));
    cases.push(Case { expect: Expect::NoGrid, ..batches("20") });
    check(&cases);
}

#[test]
fn no_rows_or_columns() {
    let extents = [("0", 8, 4), ("3", 8, 0), ("20", 8, 0)];
    let expect = || Expect::Kinds(&[FusionKind::Map]);
    check(&extents.map(|(rows, k, n)| Case { expect: expect(), ..linear("f32", rows, k, n) }));
}

/// `x` and the transpose of a weight, both rounded to a type: with cooperative matrices where a device has them.
fn rounded_operands(narrow: &str, w: &str, rows: &str, k: u32, n: u32) -> Case {
    let Case { name, text, expect } = linear(w, rows, k, n);
    let text = text
        .replace("matmul %0 %3", "matmul %6 %8")
        .replace("%4 =", "%5 = cast %0 : NARROW[ROWS,K]\n%6 = cast %5 : f32[ROWS,K]\n%7 = cast %3 : NARROW[K,N]\n%8 = cast %7 : f32[K,N]\n%4 =")
        .replace("ROWS", rows)
        .replace("NARROW", narrow)
        .replace("[K,N]", &format!("[{k},{n}]"))
        .replace(",K]", &format!(",{k}]"));
    Case { name: format!("{narrow} of {name}"), text, expect }
}

#[test]
fn rounded_operands_of_matmuls() {
    let mut cases = vec![];
    for format in blocks() {
        cases.push(rounded_operands("f16", format.spec().name, "seq", 512, 100));
    }
    cases.push(rounded_operands("bf16", "q4_k", "seq", 512, 100));
    for (rows, k, n) in [("9", 40, 9), ("64", 36, 130), ("33", 7, 512), ("seq", 4096, 4096)] {
        for narrow in ["f16", "bf16"] {
            cases.extend([narrow, "f32"].map(|w| rounded_operands(narrow, w, rows, k, n)));
        }
    }
    check(&cases);
}

/// Operands stored as f16 or bf16, in rows of the inner extent or of columns, with several results in one kernel.
#[test]
fn operands_of_16_bits_in_either_order() {
    let mut cases = vec![];
    let extents = [(9, 24, 64), (512, 4096, 2048), (100, 33, 40), (65, 16, 9)];
    for (ty, (m, k, n)) in ["f16", "bf16"].into_iter().flat_map(|ty| extents.map(|extents| (ty, extents))) {
        cases.push(case(
            format!("{ty} {m} x {k} x {n}"),
            MATMUL,
            format!(
                r#"
        %0 = input "a" : {ty}[3,{m},{k}]
        %1 = input "b" : {ty}[3,{k},{n}]
        %2 = matmul %0 %1 : {ty}[3,{m},{n}]
        %3 = weight "c" : {ty}[1,{n},{k}]
        %4 = permute %3 [0,2,1] : {ty}[1,{k},{n}]
        %5 = matmul %0 %4 : {ty}[3,{m},{n}]
        %6 = mul %2 %5 : {ty}[3,{m},{n}]
        return %6 as "y""#
            ),
        ));
    }
    check(&cases);
}

/// Convolutions: the inner extent is read through a permute of several axes, one element at a time.
#[test]
fn operands_of_16_bits_through_index_maps() {
    let mixed = |ty: &str| {
        case(
            format!("mixed {ty}"),
            MATMUL,
            format!(
                r#"
        %0 = input "x" : {ty}[16,40,3,3]
        %1 = permute %0 [1,3,0,2] : {ty}[40,3,16,3]
        %2 = reshape %1 : {ty}[40,144]
        %3 = tanh %2 : {ty}[40,144]
        %4 = weight "w" : {ty}[144,24]
        %5 = matmul %3 %4 : {ty}[40,24]
        %6 = tanh %5 : {ty}[40,24]
        return %6 as "y""#
            ),
        )
    };
    check(&["f16", "bf16"].map(mixed));
}
