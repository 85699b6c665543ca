//! Elementwise ops as GLSL expressions: one match arm per op. The compiler demands an arm for each new row of the table
//! in `tallow-ir`.
//!
//! Some SPIR-V results are undefined or loosely specified: NaN in min and max, out-of-range float to integer, integer
//! division by zero, powers of negative numbers, sine of large arguments. For these the expression calls a function of
//! `templates/math.glsl` that matches the interpreter.

use tallow_ir::elementwise::TypeRule;
use tallow_ir::{DType, ElementwiseOp as E};

pub use crate::glsl::Glsl;
use crate::library::{self as lib, Function, Uses};

/// The expression for `op` on operand expressions `x`; their values have type `ty` (the register type of `dtype`).
pub fn elementwise(op: E, ty: Glsl, dtype: DType, x: &[String], uses: &mut Uses) -> String {
    let a = x.first().map_or("", String::as_str);
    let b = x.get(1).map_or("", String::as_str);
    let c = x.get(2).map_or("", String::as_str);
    let float = ty.is_float();
    let flag = |test: String| format!("{test} ? 1u : 0u");
    let wrap = |e: String| narrowed(dtype, e);
    let mut call = |function: Function, args: &str| uses.call(function, args);
    let text = match op {
        E::Neg if ty == Glsl::Uint => wrap(format!("0u - {a}")),
        E::Neg => wrap(format!("-{a}")),
        E::Abs if ty == Glsl::Uint => a.into(),
        E::Abs => wrap(format!("abs({a})")),
        E::Sign if float => call(lib::SIGN_OF, a),
        E::Sign if ty == Glsl::Uint => format!("min({a}, 1u)"),
        E::Sign => format!("sign({a})"),
        E::Exp if ty == Glsl::Double => call(lib::EXP_OF, a),
        E::Exp => format!("exp({a})"),
        E::Exp2 if ty == Glsl::Double => call(lib::EXP2_OF, a),
        E::Exp2 => format!("exp2({a})"),
        E::Expm1 => call(lib::EXPM1_OF, a),
        E::Log if ty == Glsl::Double => call(lib::LOG_OF, a),
        E::Log => format!("log({a})"),
        E::Log2 => call(lib::LOG2_OF, a),
        E::Log10 => format!("{} * {}", call(lib::LOG2_OF, a), ty.literal(std::f64::consts::LOG10_2)),
        E::Log1p => call(lib::LOG1P_OF, a),
        E::Sqrt => format!("sqrt({a})"),
        E::Rsqrt => call(lib::RSQRT_OF, a),
        E::Recip => format!("1.0 / {a}"),
        E::Sin => call(lib::SIN_OF, a),
        E::Cos => call(lib::COS_OF, a),
        E::Tan => call(lib::TAN_OF, a),
        E::Asin => call(lib::ASIN_OF, a),
        E::Acos => call(lib::ACOS_OF, a),
        E::Atan => call(lib::ATAN_OF, a),
        E::Sinh => call(lib::SINH_OF, a),
        E::Cosh => call(lib::COSH_OF, a),
        E::Tanh => call(lib::TANH_OF, a),
        E::Erf => call(lib::ERF_OF, a),
        E::Floor => format!("floor({a})"),
        E::Ceil => format!("ceil({a})"),
        E::Round => call(lib::ROUND_OF, a),
        E::Trunc => format!("trunc({a})"),
        E::Add => wrap(format!("{a} + {b}")),
        E::Sub => wrap(format!("{a} - {b}")),
        E::Mul => wrap(format!("{a} * {b}")),
        E::Div if float => format!("{a} / {b}"),
        E::Div => wrap(call(lib::DIV_OF, &format!("{a}, {b}"))),
        E::Rem => call(lib::REM_OF, &format!("{a}, {b}")),
        E::Pow => call(lib::POW_OF, &format!("{a}, {b}")),
        E::Minimum if float => call(lib::MIN_OF, &format!("{a}, {b}")),
        E::Minimum => format!("min({a}, {b})"),
        E::Maximum if float => call(lib::MAX_OF, &format!("{a}, {b}")),
        E::Maximum => format!("max({a}, {b})"),
        E::BitAnd => format!("{a} & {b}"),
        E::BitOr => format!("{a} | {b}"),
        E::BitXor => format!("{a} ^ {b}"),
        E::BitNot => wrap(format!("~{a}")),
        E::Shl => wrap(call(lib::SHL_OF, &format!("{a}, {b}"))),
        E::Shr => call(lib::SHR_OF, &format!("{a}, {b}")),
        E::Philox => call(lib::PHILOX_OF, &format!("{a}, {b}, {c}")),
        E::Eq => flag(format!("{a} == {b}")),
        E::Ne => flag(format!("{a} != {b}")),
        E::Lt => flag(format!("{a} < {b}")),
        E::Le => flag(format!("{a} <= {b}")),
        E::Gt => flag(format!("{a} > {b}")),
        E::Ge => flag(format!("{a} >= {b}")),
        E::And => flag(format!("{a} != 0u && {b} != 0u")),
        E::Or => flag(format!("{a} != 0u || {b} != 0u")),
        E::Xor => flag(format!("({a} != 0u) != ({b} != 0u)")),
        E::Not => flag(format!("{a} == 0u")),
        E::Select => format!("{a} != 0u ? {b} : {c}"),
    };
    // An 8-bit float has so much less precision than f32 that every result is rounded.
    let rounds = matches!(op.rule(), TypeRule::Float | TypeRule::Numeric) && dtype == DType::F8E4M3;
    if rounds && !is_closed(op) { uses.call(lib::ROUND_F8, text) } else { text }
}

/// True if the result is one of the operands (perhaps with its sign changed) or a sign, which needs no rounding.
fn is_closed(op: E) -> bool {
    matches!(op, E::Neg | E::Abs | E::Sign | E::Minimum | E::Maximum)
}

/// `e` wrapped to the bits of an integer type that is computed in a wider register; unchanged for other types.
pub fn narrowed(dtype: DType, e: String) -> String {
    match dtype {
        DType::U8 => format!("({e}) & 0xffu"),
        DType::I16 => format!("({e}) << 16 >> 16"),
        DType::U32
        | DType::I32
        | DType::I64
        | DType::F8E4M3
        | DType::F16
        | DType::BF16
        | DType::F32
        | DType::F64
        | DType::Block(_) => e,
    }
}

/// An accumulator in a register as a value of `dtype`: integers are wrapped, and f8e4m3 is rounded, since values that
/// it cannot represent must not be visible. Other floats stay in register precision.
pub fn held(dtype: DType, e: String, uses: &mut Uses) -> String {
    if dtype == DType::F8E4M3 { uses.call(lib::ROUND_F8, e) } else { narrowed(dtype, e) }
}

/// A uint expression converted to `dtype`.
pub fn from_uint(dtype: DType, a: &str, uses: &mut Uses) -> String {
    let ty = Glsl::register(dtype).name();
    match dtype {
        DType::U8 | DType::I16 => narrowed(dtype, format!("{ty}({a})")),
        DType::F8E4M3 => uses.call(lib::ROUND_F8, format_args!("float({a})")),
        DType::U32
        | DType::I32
        | DType::I64
        | DType::F16
        | DType::BF16
        | DType::F32
        | DType::F64
        | DType::Block(_) => format!("{ty}({a})"),
    }
}

/// The expression that converts `a` from dtype `from` to `to`, both in their register types.
pub fn cast(from: DType, to: DType, a: &str, uses: &mut Uses) -> String {
    let (source, target) = (Glsl::register(from), Glsl::register(to));
    // Converting f64 to a type narrower than f32 must round once, so the intermediate f32 is rounded to odd.
    let mut narrow = |function: Function| {
        let float = match source {
            Glsl::Double => uses.call(lib::ODD_OF, a),
            Glsl::Float => a.to_string(),
            Glsl::Uint | Glsl::Int | Glsl::Long => format!("float({a})"),
        };
        uses.call(function, float)
    };
    match to {
        _ if from == to => a.into(),
        DType::F16 => narrow(lib::ROUND_F16),
        DType::BF16 if matches!(from, DType::U32 | DType::I32 | DType::I64) => {
            let odd = uses.call(lib::ODD_INT, a);
            uses.call(lib::ROUND_BF16, odd)
        }
        DType::BF16 => narrow(lib::ROUND_BF16),
        DType::F8E4M3 => narrow(lib::ROUND_F8),
        DType::U8 if source.is_float() => {
            let number = uses.call(lib::NUMBER, a);
            format!("uint(clamp({number}, {}, {}))", source.literal(0.0), source.literal(255.0))
        }
        DType::I16 if source.is_float() => {
            let number = uses.call(lib::NUMBER, a);
            format!("int(clamp({number}, {}, {}))", source.literal(-32768.0), source.literal(32767.0))
        }
        DType::U32 if source.is_float() => uses.call(lib::TO_UINT, a),
        DType::I32 if source.is_float() => uses.call(lib::TO_INT, a),
        DType::I64 if source.is_float() => uses.call(lib::TO_LONG, a),
        DType::U8 => format!("uint({a}) & 0xffu"),
        DType::I16 if from != DType::U8 => format!("int({a}) << 16 >> 16"),
        _ if source == target => a.into(),
        DType::I16 | DType::U32 | DType::I32 | DType::I64 | DType::F32 | DType::F64 | DType::Block(_) => {
            format!("{}({a})", target.name())
        }
    }
}
