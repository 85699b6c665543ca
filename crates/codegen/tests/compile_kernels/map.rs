//! Elementwise ops, casts and views.

use tallow_ir::elementwise::TypeRule;
use tallow_ir::{DType, ElementwiseOp, FusionKind};

use crate::{Case, Expect, case, check};

const MAP: &[FusionKind] = &[FusionKind::Map];

/// Types that kernels compute in.
const COMPUTED: [DType; 8] =
    [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::U8, DType::U32, DType::I16, DType::I32];

/// On devices that have 64-bit types; elsewhere refused.
fn wide(case: Case) -> Case {
    Case { expect: Expect::Wide(MAP), ..case }
}

fn operands(op: ElementwiseOp, dtype: DType) -> Vec<DType> {
    match op.rule() {
        TypeRule::Float | TypeRule::Numeric | TypeRule::Compare | TypeRule::Int => vec![dtype; op.arity()],
        TypeRule::Logic => vec![DType::U8; op.arity()],
        TypeRule::Word => vec![DType::U32; op.arity()],
        TypeRule::Select => vec![DType::U8, dtype, dtype],
    }
}

/// `op` on inputs, and again on its own result where the types allow, so that operands are expressions too.
fn elementwise(op: ElementwiseOp, dtype: DType) -> Option<Case> {
    let operands = operands(op, dtype);
    let result = op.result_dtype(&operands).ok()?;
    let mut lines: Vec<String> =
        operands.iter().enumerate().map(|(i, d)| format!("%{i} = input \"x{i}\" : {d}[5,7]")).collect();
    let n = operands.len();
    let all: Vec<String> = (0..n).map(|i| format!("%{i}")).collect();
    lines.push(format!("%{n} = {} {} : {result}[5,7]", op.name(), all.join(" ")));
    lines.push(format!("return %{n} as \"y\""));
    if operands[n - 1] == result {
        let mut again = all.clone();
        again[n - 1] = format!("%{n}");
        lines.push(format!("%{} = {} {} : {result}[5,7]", n + 1, op.name(), again.join(" ")));
        // A negative constant as operand.
        lines.push(format!(
            "%{} = const {} : {result}[]",
            n + 2,
            if result.is_float() { "-1.5" } else { "3" }
        ));
        lines.push(format!("%{} = broadcast %{} : {result}[5,7]", n + 3, n + 2));
        again[n - 1] = format!("%{}", n + 3);
        lines.push(format!("%{} = {} {} : {result}[5,7]", n + 4, op.name(), again.join(" ")));
        lines.push(format!("%{} = add %{} %{} : {result}[5,7]", n + 5, n + 1, n + 4));
        lines.push(format!("return %{} as \"z\"", n + 5));
    }
    Some(case(format!("{} {dtype}", op.name()), MAP, lines.join("\n")))
}

#[test]
fn every_elementwise_op_in_every_dtype() {
    let mut cases = vec![];
    for op in ElementwiseOp::ALL {
        let of_op: Vec<Case> = COMPUTED.iter().filter_map(|d| elementwise(*op, *d)).collect();
        assert!(of_op.len() >= 3, "{} has {} dtypes", op.name(), of_op.len());
        cases.extend(of_op);
        let typed = !matches!(op.rule(), TypeRule::Logic | TypeRule::Word);
        for dtype in [DType::F64, DType::I64] {
            cases.extend(elementwise(*op, dtype).filter(|_| typed).map(wide));
        }
    }
    check(&cases);
}

#[test]
fn casts_between_all_dtypes() {
    let mut cases = vec![];
    for from in DType::SCALARS {
        for to in DType::SCALARS {
            let of_op = case(
                format!("{from} to {to}"),
                MAP,
                format!(
                    "%0 = input \"x\" : {from}[3,5]\n%1 = permute %0 [1,0] : {from}[5,3]\n%2 = cast %1 : {to}[5,3]\nreturn %2 as \"y\""
                ),
            );
            let computed = COMPUTED.contains(&from) && COMPUTED.contains(&to);
            cases.push(if computed { of_op } else { wide(of_op) });
        }
    }
    check(&cases);
}

/// A view of each kind.
fn constant_views(d: DType, one: &str) -> Case {
    case(
        format!("views {d}"),
        MAP,
        format!(
            r#"
            %0 = input "x" : {d}[4,6]
            %1 = input "y" : {d}[4,3]
            %2 = pad %0 axis=1 before=2 after=1 value={one} : {d}[4,9]
            return %2 as "pad"
            %3 = concat %1 %0 %1 axis=1 : {d}[4,12]
            return %3 as "concat"
            %4 = flip %0 axis=1 : {d}[4,6]
            return %4 as "flip"
            %5 = permute %0 [1,0] : {d}[6,4]
            return %5 as "permute"
            %6 = slice %0 axis=1 start=2 len=3 : {d}[4,3]
            %7 = add %6 %1 : {d}[4,3]
            return %7 as "slice"
            %8 = reshape %5 : {d}[2,3,2,2]
            %9 = permute %8 [2,0,3,1] : {d}[2,2,2,3]
            return %9 as "reshape"
            %10 = slice %1 axis=0 start=1 len=1 : {d}[1,3]
            %11 = broadcast %10 : {d}[2,2,2,3]
            %12 = add %11 %9 : {d}[2,2,2,3]
            return %12 as "broadcast""#
        ),
    )
}

fn gathers(d: DType) -> Case {
    case(
        format!("gather {d}"),
        MAP,
        format!(
            r#"
            %0 = input "x" : {d}[4,6,3]
            %1 = input "i" : u32[2,5]
            %2 = gather %0 %1 axis=1 : {d}[4,2,5,3]
            return %2 as "middle"
            %3 = gather %0 %1 axis=0 : {d}[2,5,6,3]
            return %3 as "first"
            %4 = gather %0 %1 axis=2 : {d}[4,6,2,5]
            return %4 as "last"
            %5 = const 3 : u32[]
            %6 = broadcast %5 : u32[2,5]
            %7 = rem %1 %6 : u32[2,5]
            %8 = gather %1 %7 axis=0 : u32[2,5,5]
            %9 = gather %0 %8 axis=0 : {d}[2,5,5,6,3]
            return %9 as "twice""#
        ),
    )
}

fn symbolic_views(d: DType, one: &str) -> Case {
    case(
        format!("symbolic {d}"),
        MAP,
        format!(
            r#"
            symbol seq <= 32
            symbol pos <= 100
            %0 = input "x" : {d}[seq,6]
            %1 = input "y" : {d}[pos,6]
            %2 = concat %0 %1 axis=0 : {d}[seq+pos,6]
            return %2 as "concat"
            %3 = pad %0 axis=0 before=pos after=seq value={one} : {d}[2*seq+pos,6]
            return %3 as "pad"
            %4 = flip %2 axis=0 : {d}[seq+pos,6]
            %5 = slice %4 axis=0 start=pos len=seq : {d}[seq,6]
            %6 = add %5 %0 : {d}[seq,6]
            return %6 as "slice"
            %7 = permute %0 [1,0] : {d}[6,seq]
            %8 = reshape %7 : {d}[2,3,seq]
            return %8 as "permute"
            %9 = flip %8 axis=1 : {d}[2,3,seq]
            return %9 as "flip""#
        ),
    )
}

/// Views with constant and with symbolic extents, in every dtype.
#[test]
fn views() {
    let mut cases = vec![];
    for d in DType::SCALARS {
        let one = if d.is_float() { "1.0" } else { "1" };
        let of_op = [constant_views(d, one), gathers(d), symbolic_views(d, one)];
        cases.extend(of_op.into_iter().map(|c| if COMPUTED.contains(&d) { c } else { wide(c) }));
    }
    check(&cases);
}

#[test]
fn odd_shapes() {
    check(&[
        case("scalar", MAP, "%0 = input \"x\" : f32[]\n%1 = exp %0 : f32[]\nreturn %1 as \"y\""),
        case("empty", MAP, "%0 = input \"x\" : f32[0,3]\n%1 = exp %0 : f32[0,3]\nreturn %1 as \"y\""),
        case("copy", MAP, "%0 = input \"x\" : f16[3]\nreturn %0 as \"y\""),
        case(
            "large",
            MAP,
            "%0 = input \"x\" : f32[70000,300]\n%1 = exp %0 : f32[70000,300]\nreturn %1 as \"y\"",
        ),
        case(
            "rank 8",
            MAP,
            "%0 = input \"x\" : f32[2,3,2,3,2,3,2,3]\n%1 = permute %0 [7,5,3,1,6,4,2,0] : f32[3,3,3,3,2,2,2,2]\nreturn %1 as \"y\"",
        ),
        case(
            "two outputs",
            MAP,
            r#"
            %0 = input "x" : f32[4,6]
            %1 = exp %0 : f32[4,6]
            %2 = neg %1 : f32[4,6]
            %3 = cast %2 : bf16[4,6]
            return %1 as "a"
            return %3 as "b""#,
        ),
    ]);
}

#[test]
fn constants() {
    check(&[case(
        "numbers",
        MAP,
        r#"
            %0 = input "x" : f32[4]
            %1 = const nan : f32[]
            %2 = const inf : f32[]
            %3 = const -inf : f32[]
            %4 = const 1e-45 : f32[]
            %5 = const 3.4028234663852886e38 : f32[]
            %6 = broadcast %1 : f32[4]
            %7 = maximum %0 %6 : f32[4]
            %8 = broadcast %2 : f32[4]
            %9 = sub %7 %8 : f32[4]
            %10 = broadcast %3 : f32[4]
            %11 = sub %9 %10 : f32[4]
            %12 = broadcast %4 : f32[4]
            %13 = sub %11 %12 : f32[4]
            %14 = broadcast %5 : f32[4]
            %15 = mul %13 %14 : f32[4]
            return %15 as "y"
            %16 = input "i" : i32[4]
            %17 = const -2147483648 : i32[]
            %18 = broadcast %17 : i32[4]
            %19 = sub %16 %18 : i32[4]
            return %19 as "z""#,
    )]);
}

#[test]
fn several_updates() {
    check(&[case(
        "several updates",
        MAP,
        r#"
            symbol pos <= 60
            %0 = state "s" : f16[2,64,8]
            %1 = input "x" : f32[2,1,8]
            %2 = cast %1 : f16[2,1,8]
            %3 = state_update %0 %2 at=[0,pos,0] : f16[2,64,8]
            %4 = state "t" : u8[64]
            %5 = input "y" : u8[4]
            %6 = neg %5 : u8[4]
            %7 = state_update %4 %6 at=[pos] : u8[64]
            return %3
            return %7"#,
    )]);
}

#[test]
fn positions() {
    let mut cases = vec![];
    for d in COMPUTED {
        cases.push(case(format!("iota {d}"), MAP, format!(
            "symbol n <= 9\n%0 = iota : {d}[n]\n%1 = dim_value {{n+1}} : {d}[]\n%2 = broadcast %1 : {d}[n]\n%3 = sub %2 %0 : {d}[n]\nreturn %3 as \"y\""
        )));
    }
    check(&cases);
}

#[test]
fn rows_of_blocks() {
    let mut cases = vec![];
    for f in crate::blocks() {
        let f = f.spec().name;
        cases.push(case(
            format!("rows of {f}"),
            MAP,
            format!(
                r#"
            symbol seq <= 16
            %0 = weight "w" : {f}[50,512]
            %1 = dequantize %0 : f32[50,512]
            %2 = input "i" : u32[seq]
            %3 = gather %1 %2 axis=0 : f32[seq,512]
            return %3 as "y"
            %4 = dequantize %0 : f16[50,512]
            return %4 as "z""#
            ),
        ));
    }
    check(&cases);
}
