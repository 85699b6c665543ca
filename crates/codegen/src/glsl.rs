//! The GLSL types that kernels compute in, and literals of them.

use tallow_ir::{DType, DeviceCaps, Scalar};

/// GLSL types that kernels compute in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Glsl {
    /// `float`: f32, and narrower floats in f32 precision.
    Float,
    /// `uint`: u8 and u32.
    Uint,
    /// `int`: i32, and i16 sign-extended.
    Int,
    /// `int64_t`: i64.
    Long,
    /// `double`: f64.
    Double,
}

impl Glsl {
    /// The register type of `dtype`; `None` if the device cannot compute in it.
    pub fn of(dtype: DType, caps: &DeviceCaps) -> Option<Glsl> {
        let ty = Glsl::register(dtype);
        let has = match ty {
            Glsl::Float | Glsl::Uint | Glsl::Int => true,
            Glsl::Long => caps.int64,
            Glsl::Double => caps.float64,
        };
        has.then_some(ty)
    }

    /// Like [`Glsl::of`], for a device that has all types.
    pub(crate) fn register(dtype: DType) -> Glsl {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 | DType::Block(_) => Glsl::Float,
            DType::U8 | DType::U32 => Glsl::Uint,
            DType::I16 | DType::I32 => Glsl::Int,
            DType::I64 => Glsl::Long,
            DType::F64 => Glsl::Double,
        }
    }

    /// The GLSL name.
    pub fn name(self) -> &'static str {
        match self {
            Glsl::Float => "float",
            Glsl::Uint => "uint",
            Glsl::Int => "int",
            Glsl::Long => "int64_t",
            Glsl::Double => "double",
        }
    }

    /// The type of a vector of four.
    pub fn vector(self) -> &'static str {
        match self {
            Glsl::Float => "vec4",
            Glsl::Uint => "uvec4",
            Glsl::Int => "ivec4",
            Glsl::Long => "i64vec4",
            Glsl::Double => "dvec4",
        }
    }

    /// The word for this type in names of functions and arrays.
    pub fn word(self) -> &'static str {
        match self {
            Glsl::Long => "long",
            Glsl::Float | Glsl::Uint | Glsl::Int | Glsl::Double => self.name(),
        }
    }

    /// Bytes of a register.
    pub fn bytes(self) -> u32 {
        match self {
            Glsl::Float | Glsl::Uint | Glsl::Int => 4,
            Glsl::Long | Glsl::Double => 8,
        }
    }

    /// True for `float` and `double`.
    pub fn is_float(self) -> bool {
        matches!(self, Glsl::Float | Glsl::Double)
    }

    /// A literal of a number that the type represents exactly, or of an f64 that a float type rounds.
    pub fn literal(self, value: f64) -> String {
        let special = |float: u32, double: u32| match self {
            Glsl::Double => format!("packDouble2x32(uvec2(0u, {double:#x}u))"),
            Glsl::Float | Glsl::Uint | Glsl::Int | Glsl::Long => format!("uintBitsToFloat({float:#x}u)"),
        };
        match self {
            Glsl::Float | Glsl::Double if value.is_nan() => special(0x7fc0_0000, 0x7ff8_0000),
            Glsl::Float | Glsl::Double if value == f64::INFINITY => special(0x7f80_0000, 0x7ff0_0000),
            Glsl::Float | Glsl::Double if value == f64::NEG_INFINITY => special(0xff80_0000, 0xfff0_0000),
            Glsl::Float => format!("{:?}", value as f32),
            Glsl::Double => format!("{value:?}lf"),
            Glsl::Uint | Glsl::Int | Glsl::Long => self.int_literal(value as i64),
        }
    }

    /// A literal of an integer, exact in the integer types.
    pub fn int_literal(self, value: i64) -> String {
        match self {
            Glsl::Float | Glsl::Double => self.literal(value as f64),
            Glsl::Uint => format!("{}u", value as u32),
            Glsl::Int if value == i64::from(i32::MIN) => "int(0x80000000u)".into(),
            Glsl::Int => format!("{}", value as i32),
            Glsl::Long if value == i64::MIN => "int64_t(0x8000000000000000ul)".into(),
            Glsl::Long => format!("{value}l"),
        }
    }

    /// A literal of a constant.
    pub fn constant(self, value: Scalar) -> String {
        if value.dtype().is_float() { self.literal(value.as_f64()) } else { self.int_literal(value.as_i64()) }
    }

    /// The expression `a * b + c`.
    pub fn multiply_add(self, a: &str, b: &str, c: &str) -> String {
        if self.is_float() { format!("fma({a}, {b}, {c})") } else { format!("{a} * {b} + {c}") }
    }
}
