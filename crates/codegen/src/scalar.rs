//! Elementwise ops as GLSL expressions. One arm an op; the compiler demands a new one for a new row of the
//! table in `tallow-ir`.
//!
//! Guards are here: where SPIR-V leaves a result undefined or loose (NaN in min and max, float to integer
//! range, integer division by zero, powers of negative numbers, large arguments of sine), the expression
//! calls a function of `templates/math.glsl` with the meaning that the interpreter gives.

use tallow_ir::elementwise::TypeRule;
use tallow_ir::{DType, ElementwiseOp as E};

/// GLSL types that kernels compute in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Glsl {
    /// `float`: f32, and narrower floats in wider precision.
    Float,
    /// `uint`: u8 and u32.
    Uint,
    /// `int`: i32, and i16 sign-extended.
    Int,
}

impl Glsl {
    /// The type that values of `dtype` have in registers; `None` if kernels cannot compute in it.
    pub fn of(dtype: DType) -> Option<Glsl> {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 => Some(Glsl::Float),
            DType::U8 | DType::U32 => Some(Glsl::Uint),
            DType::I16 | DType::I32 => Some(Glsl::Int),
            DType::I64 | DType::F64 => None,
            DType::Block(_) => Some(Glsl::Float),
        }
    }

    /// The type's name.
    pub fn name(self) -> &'static str {
        match self {
            Glsl::Float => "float",
            Glsl::Uint => "uint",
            Glsl::Int => "int",
        }
    }

    /// A literal.
    pub fn literal(self, value: f64) -> String {
        match self {
            Glsl::Float if value.is_nan() => "uintBitsToFloat(0x7fc00000u)".into(),
            Glsl::Float if value == f64::INFINITY => "uintBitsToFloat(0x7f800000u)".into(),
            Glsl::Float if value == f64::NEG_INFINITY => "uintBitsToFloat(0xff800000u)".into(),
            Glsl::Float => format!("{:?}", value as f32),
            Glsl::Uint => format!("{}u", value as u32),
            Glsl::Int if value as i64 == i64::from(i32::MIN) => "int(0x80000000u)".into(),
            Glsl::Int => format!("{}", value as i32),
        }
    }
}

/// The expression for `op` on operand expressions `x`, whose values have type `ty` (of `dtype`).
pub fn elementwise(op: E, ty: Glsl, dtype: DType, x: &[String]) -> String {
    let a = x.first().map_or("", String::as_str);
    let b = x.get(1).map_or("", String::as_str);
    let c = x.get(2).map_or("", String::as_str);
    let float = ty == Glsl::Float;
    let flag = |test: String| format!("{test} ? 1u : 0u");
    let wrap = |e: String| narrowed(dtype, e);
    let text = match op {
        E::Neg if ty == Glsl::Uint => wrap(format!("0u - {a}")),
        E::Neg => wrap(format!("-{a}")),
        E::Abs if ty == Glsl::Uint => a.into(),
        E::Abs => wrap(format!("abs({a})")),
        E::Sign if float => format!("sign_of({a})"),
        E::Sign if ty == Glsl::Uint => format!("min({a}, 1u)"),
        E::Sign => format!("sign({a})"),
        E::Exp => format!("exp({a})"),
        E::Exp2 => format!("exp2({a})"),
        E::Expm1 => format!("expm1_of({a})"),
        E::Log => format!("log({a})"),
        E::Log2 => format!("log2_of({a})"),
        E::Log1p => format!("log1p_of({a})"),
        E::Sqrt => format!("sqrt({a})"),
        E::Rsqrt => format!("rsqrt_of({a})"),
        E::Recip => format!("1.0 / {a}"),
        E::Sin => format!("sin_of({a})"),
        E::Cos => format!("cos_of({a})"),
        E::Tan => format!("tan_of({a})"),
        E::Asin => format!("asin_of({a})"),
        E::Acos => format!("acos_of({a})"),
        E::Atan => format!("atan_of({a})"),
        E::Sinh => format!("sinh_of({a})"),
        E::Cosh => format!("cosh_of({a})"),
        E::Tanh => format!("tanh_of({a})"),
        E::Erf => format!("erf_of({a})"),
        E::Floor => format!("floor({a})"),
        E::Ceil => format!("ceil({a})"),
        E::Round => format!("round_of({a})"),
        E::Trunc => format!("trunc({a})"),
        E::Add => wrap(format!("{a} + {b}")),
        E::Sub => wrap(format!("{a} - {b}")),
        E::Mul => wrap(format!("{a} * {b}")),
        E::Div if float => format!("{a} / {b}"),
        E::Div => wrap(format!("div_of({a}, {b})")),
        E::Rem => format!("rem_of({a}, {b})"),
        E::Pow => format!("pow_of({a}, {b})"),
        E::Minimum if float => format!("min_of({a}, {b})"),
        E::Minimum => format!("min({a}, {b})"),
        E::Maximum if float => format!("max_of({a}, {b})"),
        E::Maximum => format!("max({a}, {b})"),
        E::BitAnd => format!("{a} & {b}"),
        E::BitOr => format!("{a} | {b}"),
        E::BitXor => format!("{a} ^ {b}"),
        E::BitNot => wrap(format!("~{a}")),
        E::Shl => wrap(format!("shl_of({a}, {b})")),
        E::Shr => format!("shr_of({a}, {b})"),
        E::Philox => format!("philox_of({a}, {b}, {c})"),
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
    // What an 8-bit float holds is so far from what f32 does that every result is rounded.
    let rounds = matches!(op.rule(), TypeRule::Float | TypeRule::Numeric) && dtype == DType::F8E4M3;
    if rounds && !is_closed(op) { format!("round_f8({text})") } else { text }
}

/// True if the result is one of the operands, perhaps with another sign.
fn is_closed(op: E) -> bool {
    matches!(op, E::Neg | E::Abs | E::Sign | E::Minimum | E::Maximum)
}

/// `e` wrapped to the bits of an integer type that lives in a wider register; other types as they are.
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

/// A uint expression as a number of `dtype`.
pub fn from_uint(dtype: DType, a: &str) -> String {
    let ty = Glsl::of(dtype).map_or("", Glsl::name);
    match dtype {
        DType::U8 | DType::I16 => narrowed(dtype, format!("{ty}({a})")),
        DType::F8E4M3 => format!("round_f8(float({a}))"),
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

/// The expression that converts `a` from dtype `from` to `to`, both computed in their register types.
pub fn cast(from: DType, to: DType, a: &str) -> String {
    let (Some(source), Some(target)) = (Glsl::of(from), Glsl::of(to)) else { return a.into() };
    match (to, source, target) {
        (DType::F16, Glsl::Float, _) if from != DType::F16 => format!("round_f16({a})"),
        (DType::BF16, Glsl::Float, _) if from != DType::BF16 => format!("round_bf16({a})"),
        (DType::F8E4M3, Glsl::Float, _) if from != DType::F8E4M3 => format!("round_f8({a})"),
        (DType::F8E4M3, _, _) if source != Glsl::Float => format!("round_f8(float({a}))"),
        (DType::F16, _, _) if source != Glsl::Float => format!("round_f16(float({a}))"),
        (DType::BF16, _, _) if source != Glsl::Float => format!("round_bf16(float({a}))"),
        (DType::I16, Glsl::Float, _) => format!("int(clamp(number({a}), -32768.0, 32767.0))"),
        (DType::U8, Glsl::Float, _) => format!("uint(clamp(number({a}), 0.0, 255.0))"),
        (DType::U32, Glsl::Float, _) => format!("to_uint({a})"),
        (DType::I32, Glsl::Float, _) => format!("to_int({a})"),
        (DType::U8, _, _) if from != DType::U8 => format!("uint({a}) & 0xffu"),
        (DType::I16, _, _) if !matches!(from, DType::I16 | DType::U8) => format!("int({a}) << 16 >> 16"),
        (_, s, t) if s == t => a.into(),
        (_, _, t) => format!("{}({a})", t.name()),
    }
}
