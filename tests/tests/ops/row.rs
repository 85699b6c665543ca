//! One row of the table: an op, its operands, what Candle calls it, and how far results may be apart.

use candle_core as candle;
use tallow_ir::{DType, Graph, Value};
use tallow_quant::Format;

use crate::class::Class;

/// What the elements of an operand are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// Multiples of 1/16 within 4 (1/4 of f8e4m3, 1 of bf16), integers within 8: sums of products of a few
    /// hundred are exact in f32, as is every sum of 30 in its own type.
    Numbers,
    /// As `Numbers`, above 0.
    Positive,
    /// As `Numbers`, not 0.
    NonZero,
    /// -1 to 1, for functions that are defined there.
    Unit,
    /// Powers of two from 1/2 to 2 with a sign; 1 and 2 of integers. Products of them are exact.
    Powers,
    /// Numbers of every size, the ends of the integer types, and of floats NaN and infinities.
    Ends,
    /// 0 or 1.
    Truths,
    /// `0..n`.
    Below(usize),
    /// From 0 to 2 beyond the number of bits.
    Shifts,
}

/// Where an operand comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Leaf {
    /// Given at each run.
    Input,
    /// Quantized, resident.
    Blocks(Format),
    /// Outlives runs.
    State,
}

/// One operand in the shape that the op sees.
#[derive(Clone, Debug)]
pub struct Operand {
    pub dims: Vec<usize>,
    pub dtype: DType,
    pub fill: Fill,
    pub leaf: Leaf,
    /// The same for every row of a large tensor, such as weights and indices.
    #[cfg_attr(not(feature = "vulkan"), expect(dead_code, reason = "read where kernels are compared"))]
    pub shared: bool,
}

impl Operand {
    pub fn new(dims: &[usize], dtype: DType) -> Operand {
        Operand { dims: dims.to_vec(), dtype, fill: Fill::Numbers, leaf: Leaf::Input, shared: false }
    }

    pub fn of(self, fill: Fill) -> Operand {
        Operand { fill, ..self }
    }

    pub fn from(self, leaf: Leaf) -> Operand {
        Operand { leaf, ..self }
    }

    pub fn shared(self) -> Operand {
        Operand { shared: true, ..self }
    }
}

/// How far a kernel's result may be from the interpreter's, which rounds once an op, from f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Elements only move: the same bits.
    Moved,
    /// The arithmetic is exact in the kernel's type on what the operands hold, so both round the same number, once.
    Exact,
    /// One function of the driver's, see [`Bound::limit`].
    Function,
    /// So many steps of the result's type at the size of the largest element, or at 1.
    Steps(f64),
}

impl Bound {
    /// The largest difference from `expected`, where the largest element of all is `largest`.
    ///
    /// Functions: in f32, Vulkan lets an exponential err by 3 + 2|x| units in the last place and a logarithm by 3
    /// (2^-21 near 1), and ours of the circle and the rest are made of some ten of those with 2^-24 each: 3e-5 of the
    /// result and 1e-5 near 0 hold them over the range (`device/functions.rs`). In f64 all are ours: some ten
    /// operations of 2^-53. Narrow types compute in f32 and round once, so that a last bit of f32 may decide over one
    /// step: eps of the result, and half the smallest number.
    pub fn limit(self, dtype: DType, expected: f64, largest: f64) -> f64 {
        let step_error = step(dtype) * expected.abs() + smallest(dtype);
        match self {
            Bound::Moved | Bound::Exact => 0.0,
            Bound::Function => match dtype {
                DType::F32 => 1e-5 + 3e-5 * expected.abs(),
                DType::F64 => 1e-15 + 4e-15 * expected.abs(),
                DType::F16 | DType::BF16 | DType::F8E4M3 => step_error + 1e-5,
                DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 | DType::Block(_) => 0.0,
            },
            Bound::Steps(n) => n * step(dtype) * largest.max(1.0),
        }
    }
}

/// Distance from 1 to the next number; 0 for integers, which are exact.
pub fn step(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => half::f16::EPSILON.to_f64(),
        DType::BF16 => half::bf16::EPSILON.to_f64(),
        DType::F8E4M3 => 0.125,
        DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 | DType::Block(_) => 0.0,
    }
}

/// The smallest positive number.
fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::F8E4M3 => 2f64.powi(-9),
        DType::F16 => 2f64.powi(-24),
        DType::BF16 => 2f64.powi(-133),
        DType::F32 => 2f64.powi(-149),
        DType::F64 => f64::from_bits(1),
        DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 | DType::Block(_) => 0.0,
    }
}

/// The op in a graph: from its operands, of the shapes of the case, to its result.
pub type Build = Box<dyn Fn(&mut Graph, &[Value]) -> Result<Value, String>>;

/// The same with Candle's tensors.
pub type CandleSide = Box<dyn Fn(&[candle::Tensor]) -> candle::Result<candle::Tensor>>;

/// An expression of the frontend.
pub type Expression = Box<dyn Fn(&[tallow::Tensor]) -> tallow::Result<tallow::Tensor>>;

/// What Candle has.
pub enum Candle {
    /// The same, within a bound.
    Has(CandleSide, Bound),
    /// Nothing to compare with, and why.
    Lacks(&'static str),
}

/// The operands of a base shape and an element type.
pub type Operands = Box<dyn Fn(&[usize], DType) -> Vec<Operand>>;

/// An op of the table.
pub struct Row {
    /// What it is called on the page.
    pub name: String,
    /// The word that an error must contain.
    pub word: String,
    /// The part of the page.
    pub part: &'static str,
    /// Operands from the base shape and the element type.
    pub operands: Operands,
    /// The base shape of a class.
    pub dims: fn(Class) -> Vec<usize>,
    pub build: Build,
    /// The op as an expression, where it brings tables of its own: these are data, which a graph does not hold.
    pub expression: Option<Expression>,
    pub candle: Candle,
    /// Kernel against interpreter.
    #[cfg_attr(not(feature = "vulkan"), expect(dead_code, reason = "read where kernels are compared"))]
    pub bound: Bound,
    /// Rows of the first axis of all operands that are not shared have nothing to do with each other, and are the
    /// first axis of the result.
    #[cfg_attr(not(feature = "vulkan"), expect(dead_code, reason = "read where kernels are compared"))]
    pub by_rows: bool,
}

impl Row {
    pub fn new(
        part: &'static str,
        name: &str,
        operands: impl Fn(&[usize], DType) -> Vec<Operand> + 'static,
        build: impl Fn(&mut Graph, &[Value]) -> Result<Value, String> + 'static,
    ) -> Row {
        Row {
            name: name.to_string(),
            word: name.split(' ').next().unwrap_or_default().to_string(),
            part,
            operands: Box::new(operands),
            dims: Class::dims,
            build: Box::new(build),
            expression: None,
            candle: Candle::Lacks("nothing like it"),
            bound: Bound::Exact,
            by_rows: true,
        }
    }

    pub fn bound(self, bound: Bound) -> Row {
        Row { bound, ..self }
    }

    pub fn images(self) -> Row {
        Row { dims: Class::images, ..self }
    }

    pub fn undivided(self) -> Row {
        Row { by_rows: false, ..self }
    }

    pub fn tables(self, expression: fn(&[tallow::Tensor]) -> tallow::Result<tallow::Tensor>) -> Row {
        Row { expression: Some(Box::new(expression)), ..self }
    }

    pub fn word(self, word: &str) -> Row {
        Row { word: word.to_string(), ..self }
    }

    pub fn candle(
        self,
        bound: Bound,
        side: impl Fn(&[candle::Tensor]) -> candle::Result<candle::Tensor> + 'static,
    ) -> Row {
        Row { candle: Candle::Has(Box::new(side), bound), ..self }
    }

    pub fn lacks(self, why: &'static str) -> Row {
        Row { candle: Candle::Lacks(why), ..self }
    }
}
