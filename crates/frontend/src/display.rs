//! Printing as Candle prints: nested brackets, long axes abbreviated, shape and type below.

use std::fmt::{self, Write};
use std::sync::{Mutex, PoisonError};

use float8::F8E4M3;
use half::{bf16, f16};
use tallow_ir::DType;

use crate::element::{WithDType, from_bytes};
use crate::error::Result;
use crate::tensor::{Expr, Tensor};

/// How tensors are printed, for the whole program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrinterOptions {
    /// Digits after the point.
    pub precision: usize,
    /// Tensors of more elements are abbreviated.
    pub threshold: usize,
    /// How many parts are shown at either end of an abbreviated axis.
    pub edge_items: usize,
    /// Rows longer than this are broken.
    pub line_width: usize,
    /// Whether floats are printed with an exponent; `None` to decide by their sizes.
    pub sci_mode: Option<bool>,
}

impl PrinterOptions {
    const DEFAULT: PrinterOptions =
        PrinterOptions { precision: 4, threshold: 1000, edge_items: 3, line_width: 80, sci_mode: None };
}

impl Default for PrinterOptions {
    fn default() -> Self {
        PrinterOptions::DEFAULT
    }
}

static OPTIONS: Mutex<PrinterOptions> = Mutex::new(PrinterOptions::DEFAULT);

/// The options in force.
pub fn print_options() -> &'static Mutex<PrinterOptions> {
    &OPTIONS
}

fn change(set: impl FnOnce(&mut PrinterOptions)) {
    set(&mut OPTIONS.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Puts options in force.
pub fn set_print_options(options: PrinterOptions) {
    change(|all| *all = options);
}

/// Puts the options in force that a program starts with.
pub fn set_print_options_default() {
    set_print_options(PrinterOptions::DEFAULT);
}

/// Few digits, short edges.
pub fn set_print_options_short() {
    set_print_options(PrinterOptions { precision: 2, edge_items: 2, ..PrinterOptions::DEFAULT });
}

/// Every element.
pub fn set_print_options_full() {
    set_print_options(PrinterOptions { threshold: usize::MAX, ..PrinterOptions::DEFAULT });
}

/// Sets [`PrinterOptions::line_width`].
pub fn set_line_width(line_width: usize) {
    change(|all| all.line_width = line_width);
}

/// Sets [`PrinterOptions::precision`].
pub fn set_precision(precision: usize) {
    change(|all| all.precision = precision);
}

/// Sets [`PrinterOptions::edge_items`].
pub fn set_edge_items(edge_items: usize) {
    change(|all| all.edge_items = edge_items);
}

/// Sets [`PrinterOptions::threshold`].
pub fn set_threshold(threshold: usize) {
    change(|all| all.threshold = threshold);
}

/// Sets [`PrinterOptions::sci_mode`].
pub fn set_sci_mode(sci_mode: Option<bool>) {
    change(|all| all.sci_mode = sci_mode);
}

impl fmt::Debug for Tensor {
    /// A short list with its values, which the device may have to be waited for; another tensor with its extents. Computes
    /// nothing: a tensor whose value is not known shows its extents and `lazy`, or `input`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHORT: usize = 10;
        let state = match &*self.expr() {
            Expr::Data(_) | Expr::Device(_) | Expr::Blocks(_) => "",
            Expr::Op(..) => ", lazy",
            Expr::Input(_) => ", input",
            Expr::State(_) => ", state",
            Expr::Variable(_) => ", variable",
        };
        let short = match self.const_dims() {
            Ok([]) => true,
            Ok([extent]) => *extent < SHORT,
            Ok(_) | Err(_) => false,
        };
        f.write_str("Tensor[")?;
        // Blocks have no elements to list.
        let short = short && self.dtype().size().is_some();
        let bytes = if short { self.host_bytes().ok().flatten() } else { None };
        match bytes {
            Some(bytes) => f.write_str(&shortest(self.dtype(), &bytes).join(", "))?,
            None if self.rank() == 0 => f.write_str("scalar")?,
            None => {
                let extents: Vec<String> = self.sym_dims().iter().map(ToString::to_string).collect();
                write!(f, "dims {}", extents.join(", "))?;
            }
        }
        write!(f, "; {}{}{state}]", self.dtype(), self.device_suffix())
    }
}

impl fmt::Display for Tensor {
    /// The values, computed if need be. An error is printed in their place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = OPTIONS.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match self.page(&options) {
            Ok(page) => writeln!(f, "{page}")?,
            Err(error) => writeln!(f, "<{error}>")?,
        }
        let extents: Vec<String> = self.sym_dims().iter().map(ToString::to_string).collect();
        write!(f, "Tensor[[{}], {}{}]", extents.join(", "), self.dtype(), self.device_suffix())
    }
}

impl Tensor {
    /// Where it lives, unless that is the CPU.
    fn device_suffix(&self) -> &'static str {
        if self.device().is_cpu() { "" } else { ", vulkan" }
    }

    fn page(&self, options: &PrinterOptions) -> Result<String> {
        if let DType::Block(_) = self.dtype() {
            return self.dequantize()?.page(options);
        }
        let dims = self.const_dims()?;
        let numbers = numbers(self.dtype(), &self.bytes("display")?);
        let short = numbers.len() > options.threshold;
        let visible = |index: usize| {
            let mut rest = index;
            dims.iter().rev().all(|extent| {
                let at = rest % extent;
                rest /= extent;
                !hides(*extent, at, options.edge_items)
            })
        };
        let shown = |i: &usize| !short || visible(*i);
        let style = Style::of(self.dtype(), (0..numbers.len()).filter(shown).map(|i| numbers[i]), options);
        let text = |i: usize, width: usize| style.text(numbers[i], width, options.precision);
        let widths = (0..numbers.len()).filter(shown).map(|i| text(i, 1).len());
        let width = widths.max().unwrap_or(0).max(1);
        let mut page = Page { text: String::new(), width, short, options };
        page.part(&|i| text(i, width), 0, dims, 1);
        Ok(page.text)
    }
}

/// True if place `at` of an abbreviated axis is not shown.
fn hides(extent: usize, at: usize, edge: usize) -> bool {
    extent > edge.saturating_mul(2) && at >= edge && at < extent - edge
}

/// A number of any type, in full precision.
#[derive(Clone, Copy)]
enum Number {
    Integer(i64),
    Float(f64),
}

fn numbers(dtype: DType, bytes: &[u8]) -> Vec<Number> {
    fn all<T: WithDType>(bytes: &[u8], number: impl Fn(T) -> Number) -> Vec<Number> {
        from_bytes(bytes).into_iter().map(number).collect()
    }
    match dtype {
        DType::U8 => all(bytes, |x: u8| Number::Integer(x.into())),
        DType::U32 => all(bytes, |x: u32| Number::Integer(x.into())),
        DType::I16 => all(bytes, |x: i16| Number::Integer(x.into())),
        DType::I32 => all(bytes, |x: i32| Number::Integer(x.into())),
        DType::I64 => all(bytes, Number::Integer),
        DType::F8E4M3 => all(bytes, |x: F8E4M3| Number::Float(x.to_f64())),
        DType::F16 => all(bytes, |x: f16| Number::Float(x.into())),
        DType::BF16 => all(bytes, |x: bf16| Number::Float(x.into())),
        DType::F32 => all(bytes, |x: f32| Number::Float(x.into())),
        DType::F64 => all(bytes, Number::Float),
        // Blocks are printed as what they mean.
        DType::Block(_) => Vec::new(),
    }
}

/// The shortest text of each element that reads back as itself.
fn shortest(dtype: DType, bytes: &[u8]) -> Vec<String> {
    fn all<T: WithDType + fmt::Display>(bytes: &[u8]) -> Vec<String> {
        from_bytes::<T>(bytes).iter().map(ToString::to_string).collect()
    }
    match dtype {
        DType::U8 => all::<u8>(bytes),
        DType::U32 => all::<u32>(bytes),
        DType::I16 => all::<i16>(bytes),
        DType::I32 => all::<i32>(bytes),
        DType::I64 => all::<i64>(bytes),
        DType::F8E4M3 => all::<F8E4M3>(bytes),
        DType::F16 => all::<f16>(bytes),
        DType::BF16 => all::<bf16>(bytes),
        DType::F32 => all::<f32>(bytes),
        DType::F64 => all::<f64>(bytes),
        DType::Block(_) => Vec::new(),
    }
}

/// How numbers are written, the same for all of a tensor.
#[derive(Clone, Copy)]
enum Style {
    /// Digits alone.
    Integer,
    /// Whole floats: a point and nothing behind it.
    Integral,
    /// A point and some digits.
    Fixed,
    /// With an exponent.
    Scientific,
    /// With an exponent and as many digits as it takes, which is how 16-bit floats know it.
    Shortest,
}

impl Style {
    /// Whole if all are, with an exponent if sizes differ by more than 1000 or are extreme; sizes are compared
    /// in the element type.
    fn of(dtype: DType, values: impl Iterator<Item = Number>, options: &PrinterOptions) -> Style {
        if dtype.is_int() {
            return Style::Integer;
        }
        let in_type = |x: f64| tallow_ir::round::float(dtype, x);
        let float = |number| match number {
            Number::Float(x) if x.is_finite() && x != 0.0 => Some(x),
            Number::Float(_) | Number::Integer(_) => None,
        };
        let (mut whole, mut least, mut most) = (true, f64::INFINITY, 0f64);
        for x in values.filter_map(float) {
            whole &= x == x.ceil();
            (least, most) = (least.min(x.abs()), most.max(x.abs()));
        }
        let extreme =
            most > 0.0 && (in_type(most / least) > 1000.0 || most > in_type(1e8) || least < in_type(1e-4));
        match (options.sci_mode.unwrap_or(extreme), whole) {
            (true, _) if dtype.size_in_bytes() < 4 => Style::Shortest,
            (true, _) => Style::Scientific,
            (false, true) => Style::Integral,
            (false, false) => Style::Fixed,
        }
    }

    fn text(self, number: Number, width: usize, precision: usize) -> String {
        match (number, self) {
            (Number::Integer(x), _) => format!("{x:width$}"),
            (Number::Float(x), Style::Scientific) => format!("{x:width$.precision$e}"),
            (Number::Float(x), Style::Shortest) => format!("{:e}", x as f32),
            (Number::Float(x), Style::Integral) if x.is_finite() => {
                format!("{x:before$.0}.", before = width.saturating_sub(1))
            }
            (Number::Float(x), Style::Integral) => format!("{x:width$.0}"),
            (Number::Float(x), Style::Fixed | Style::Integer) => format!("{x:width$.precision$}"),
        }
    }
}

/// A tensor's text as it grows.
struct Page<'a> {
    text: String,
    width: usize,
    short: bool,
    options: &'a PrinterOptions,
}

impl Page<'_> {
    /// Writes the part of extents `dims` whose first element is `first`; rows are indented by `indent`.
    fn part(&mut self, text: &dyn Fn(usize) -> String, first: usize, dims: &[usize], indent: usize) {
        self.text.push('[');
        match dims {
            [] => self.text.push_str(&text(first)),
            [extent] => self.row(text, first, *extent, indent),
            [extent, inner @ ..] => {
                let size: usize = inner.iter().product();
                let mut at = 0;
                while at < *extent {
                    if self.short && hides(*extent, at, self.options.edge_items) {
                        self.text.push_str("...");
                        at = extent - self.options.edge_items;
                    } else {
                        self.part(text, first + at * size, inner, indent + 1);
                        at += 1;
                        if at < *extent {
                            self.text.push(',');
                        }
                    }
                    if at < *extent {
                        self.new_line(indent);
                    }
                }
            }
        }
        self.text.push(']');
    }

    /// Writes a row, broken where it is not abbreviated and too long for a line.
    fn row(&mut self, text: &dyn Fn(usize) -> String, first: usize, extent: usize, indent: usize) {
        let edge = self.options.edge_items;
        let abbreviated = self.short && extent > edge.saturating_mul(2);
        let per_line = (self.options.line_width / (self.width + 2)).max(1);
        for at in 0..extent {
            match (abbreviated, hides(extent, at, edge)) {
                (true, true) if at > edge => continue,
                (true, true) => {
                    self.text.push_str(if at > 0 { ", ..." } else { "..." });
                    continue;
                }
                (false, _) if at > 0 && at % per_line == 0 => {
                    self.text.push(',');
                    self.new_line(indent);
                }
                _ if at > 0 => self.text.push_str(", "),
                _ => {}
            }
            self.text.push_str(&text(first + at));
        }
    }

    fn new_line(&mut self, indent: usize) {
        let _ = write!(self.text, "\n{:indent$}", "");
    }
}
