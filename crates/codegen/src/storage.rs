//! Storage buffers in GLSL: declarations, and functions that load and store one element.
//!
//! 16-bit and 8-bit elements use typed buffers where the device supports them. Elsewhere they are parts of 32-bit
//! words, and a store is two atomics on the word. The atomics change no bit of an adjacent element, so invocations that
//! share a word do not race.
//!
//! A tensor larger than one binding is bound as several *windows*, one binding each. Accesses then go through functions
//! that select the window by the element's position.

mod atomic;
mod group;

use std::collections::BTreeSet;

use tallow_ir::{DType, DeviceCaps, Format};

use crate::library::{self as lib, Uses};

pub(crate) use self::atomic::{Atomic, FLOAT_ATOMICS};
pub(crate) use self::group::bytes;

/// One declared buffer.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    /// The binding of the first window; the others follow.
    pub binding: u32,
    /// Number of windows (bindings).
    pub windows: u32,
    /// Bytes of each window except the last; a multiple of 16.
    pub window_bytes: u64,
    pub dtype: DType,
    pub written: bool,
    /// Number of elements (the maximum, for a symbolic shape). Determines the offsets of a block format's planes.
    pub elements: u64,
    /// Also declared as 16-byte vectors, for vector loads.
    pub wide: bool,
    /// Also declared as 8-byte vectors, for blocks dequantized to f16, or unpacked to bytes if they are
    /// [`packed`](Buffer::packed).
    pub pairs: bool,
    /// A weight whose blocks are unpacked to bytes, not floats.
    pub packed: bool,
    /// Stores combine with the existing value.
    pub atomic: Option<Atomic>,
    /// Elements per vector access; 0 if there is none.
    pub group: u32,
    /// Groups are stored as whole words, without conversion.
    pub as_words: bool,
    /// Elements are (also) accessed one at a time.
    pub single: bool,
    /// Eight elements are loaded at once by `load8_`.
    pub eights: bool,
    /// Eight elements that were loaded at once are converted by `widen8_`.
    pub widens: bool,
    /// Another binding of the kernel is the same memory: a state that is read and updated.
    pub aliased: bool,
}

/// The SPIR-V decoration `Aliased`. Without it a driver may assume that no other variable is the same memory (SPIR-V 1.6, 2.18.2),
/// and move a load of the old value behind the store of the new one.
const ALIASED: &str = "spirv_decorate(20) ";

/// The element type in memory. A block format with one plain element per block has the type of that element.
pub(crate) fn plain(dtype: DType) -> DType {
    match dtype {
        DType::Block(Format::F32) => DType::F32,
        DType::Block(Format::F16) => DType::F16,
        DType::Block(Format::BF16) => DType::BF16,
        DType::Block(Format::F64) => DType::F64,
        DType::Block(Format::I16) => DType::I16,
        DType::Block(Format::I32) => DType::I32,
        DType::Block(Format::I64) => DType::I64,
        other => other,
    }
}

/// Extensions a shader enables.
pub(crate) type Extensions = BTreeSet<&'static str>;

impl Buffer {
    /// Whether the declared array has the element's own type for 16 and 8 bits, not words.
    ///
    /// A written array of such a type also needs the type's arithmetic feature. Without it, SPIR-V has no constants of
    /// the type, and a shader compiler may find that a value is constant.
    fn typed(&self, caps: &DeviceCaps) -> bool {
        let computes = |feature: bool| feature || !self.written;
        match self.dtype {
            DType::F16 => caps.storage_16bit && computes(caps.f16),
            DType::BF16 | DType::I16 => caps.storage_16bit && computes(caps.int16),
            DType::U8 | DType::F8E4M3 => caps.storage_8bit && computes(caps.int8),
            DType::U32 | DType::I32 | DType::I64 | DType::F32 | DType::F64 | DType::Block(_) => true,
        }
    }

    /// The extension of the arithmetic type of a narrow element that is stored.
    fn arithmetic(&self, caps: &DeviceCaps) -> Option<&'static str> {
        match self.dtype {
            _ if !self.written || !self.typed(caps) => None,
            DType::F16 => Some("GL_EXT_shader_explicit_arithmetic_types_float16"),
            DType::BF16 | DType::I16 => Some("GL_EXT_shader_explicit_arithmetic_types_int16"),
            DType::U8 | DType::F8E4M3 => Some("GL_EXT_shader_explicit_arithmetic_types_int8"),
            DType::U32 | DType::I32 | DType::I64 | DType::F32 | DType::F64 | DType::Block(_) => None,
        }
    }
}

impl Buffer {
    /// Whether stores are compare-and-swap loops on the bits, as sums of floats are where the device cannot add them.
    fn swaps(&self, caps: &DeviceCaps) -> bool {
        self.atomic.is_some_and(|atomic| atomic.swaps(self.dtype, caps.atomic_float_add))
    }

    fn element(&self, caps: &DeviceCaps, ext: &mut Extensions) -> &'static str {
        match self.dtype {
            DType::F32 if self.swaps(caps) => "uint",
            DType::F64 if self.swaps(caps) => {
                ext.insert("GL_EXT_shader_explicit_arithmetic_types_int64");
                "uint64_t"
            }
            DType::F32 => "float",
            DType::U32 | DType::Block(_) => "uint",
            DType::I32 => "int",
            DType::F16 if self.typed(caps) => {
                ext.insert("GL_EXT_shader_16bit_storage");
                "float16_t"
            }
            DType::BF16 if self.typed(caps) => {
                ext.insert("GL_EXT_shader_16bit_storage");
                "uint16_t"
            }
            DType::I16 if self.typed(caps) => {
                ext.insert("GL_EXT_shader_16bit_storage");
                "int16_t"
            }
            DType::U8 | DType::F8E4M3 if self.typed(caps) => {
                ext.insert("GL_EXT_shader_8bit_storage");
                "uint8_t"
            }
            DType::F16 | DType::BF16 | DType::I16 | DType::U8 | DType::F8E4M3 => "uint",
            DType::I64 => {
                ext.insert("GL_EXT_shader_explicit_arithmetic_types_int64");
                "int64_t"
            }
            DType::F64 => "double",
        }
    }

    /// The declaration, with aliases for vector loads.
    pub fn declare(&self, caps: &DeviceCaps, ext: &mut Extensions) -> String {
        let b = self.binding;
        // A kernel reads what it writes through the atomics that store parts of words, and through another binding where
        // it updates a state. Declaring this lets the validation layer report true hazards only.
        let whole = self.typed(caps) && self.atomic.is_none() && !self.has_halves();
        let access = match (self.written, whole) {
            (false, _) => "readonly ",
            (true, true) => "writeonly ",
            (true, false) => "",
        };
        let element = self.element(caps, ext);
        ext.extend(self.arithmetic(caps));
        if self.aliased {
            ext.insert("GL_EXT_spirv_intrinsics");
        }
        let decoration = if self.aliased { ALIASED } else { "" };
        match self.dtype {
            DType::I64 | DType::F64 if self.atomic.is_some() => {
                ext.insert("GL_EXT_shader_atomic_int64");
            }
            DType::F32 if self.atomic.is_some() && !self.swaps(caps) => {
                ext.insert(FLOAT_ATOMICS);
            }
            _ => {}
        }
        let mut text = String::new();
        let vectors = self.group_vector();
        for b in b..b + self.windows {
            if let Some((vector, _)) = vectors {
                let access = if self.written { "writeonly" } else { "readonly" };
                text += &format!(
                    "layout(set = 0, binding = {b}, std430) {decoration}{access} buffer V{b} {{ {vector} v{b}[]; }};\n"
                );
            }
            if vectors.is_none() || self.single {
                text += &format!(
                    "layout(set = 0, binding = {b}, std430) {decoration}{access}buffer B{b} {{ {element} b{b}[]; }};\n"
                );
            }
            if self.wide {
                text += &format!(
                    "layout(set = 0, binding = {b}, std430) {decoration}readonly buffer W{b} {{ uvec4 w{b}[]; }};\n"
                );
            }
            if self.pairs {
                text += &format!(
                    "layout(set = 0, binding = {b}, std430) {decoration}readonly buffer P{b} {{ uvec2 p{b}[]; }};\n"
                );
            }
        }
        text
    }

    /// Lines that run `body(array of the window, position in it)` for the window of element `i`. Elements have `bytes`
    /// bytes, and array names start with `prefix`. The result is one if-else chain without early returns, which would
    /// become loops when drivers inline the function.
    fn by_window(&self, prefix: &str, bytes: u64, body: impl Fn(&str, &str) -> String) -> String {
        let per = self.window_bytes / bytes;
        let last = self.windows - 1;
        let mut text = String::new();
        for w in 0..=last {
            let array = format!("{prefix}{}", self.binding + w);
            let at = if w == 0 { "i".to_string() } else { format!("i - {}u", u64::from(w) * per) };
            let test = format!("if (i < {}u) ", u64::from(w + 1) * per);
            let head = if w == last { "" } else { &test };
            let line =
                if last == 0 { body(&array, &at) } else { format!("{head}{{ {} }}", body(&array, &at)) };
            text += if w == 0 { "    " } else { " else " };
            text += &line;
        }
        text + "\n"
    }

    /// A function `name(i)` that returns element `i`, of `bytes` bytes, as a `ty`. Array names start with `prefix`.
    fn reader(&self, name: &str, ty: &str, prefix: &str, bytes: u64) -> String {
        let b = self.binding;
        if self.windows == 1 {
            return format!("{ty} {name}{b}(uint i) {{ return {prefix}{b}[i]; }}\n");
        }
        // 16-bit and 8-bit types may be allowed in buffers only.
        let element = |array: &str, at: &str| {
            if bytes < 4 { format!("{ty}({array}[{at}])") } else { format!("{array}[{at}]") }
        };
        let body = self.by_window(prefix, bytes, |array, at| format!("x = {};", element(array, at)));
        format!("{ty} {name}{b}(uint i) {{\n    {ty} x;\n{body}    return x;\n}}\n")
    }

    /// Bytes per element of the declared array.
    fn array_bytes(&self, caps: &DeviceCaps) -> u64 {
        match self.dtype {
            DType::F32 | DType::U32 | DType::I32 | DType::Block(_) => 4,
            DType::F16 | DType::BF16 | DType::I16 if self.typed(caps) => 2,
            DType::U8 | DType::F8E4M3 if self.typed(caps) => 1,
            DType::F16 | DType::BF16 | DType::I16 | DType::U8 | DType::F8E4M3 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// The expression that reads element `i` of the declared array.
    fn read(&self, i: &str) -> String {
        let b = self.binding;
        if self.windows == 1 { format!("b{b}[{i}]") } else { format!("at{b}({i})") }
    }

    /// The expression that loads element `i`.
    pub fn load(&self, i: &str, caps: &DeviceCaps) -> String {
        let b = self.binding;
        match self.dtype {
            DType::F32 | DType::U32 | DType::I32 | DType::I64 | DType::F64 => self.read(i),
            DType::F16 if self.typed(caps) => format!("float({})", self.read(i)),
            DType::I16 if self.typed(caps) => format!("int({})", self.read(i)),
            DType::U8 if self.typed(caps) => format!("uint({})", self.read(i)),
            DType::F16 | DType::BF16 | DType::I16 | DType::U8 | DType::F8E4M3 | DType::Block(_) => {
                format!("load{b}({i})")
            }
        }
    }

    /// The statement that loads the eight elements from element `i` into the array `to`.
    pub fn load_eight(&mut self, i: &str, to: &str) -> String {
        self.eights = true;
        format!("load8_{}({i}, {to});", self.binding)
    }

    /// The statement that stores `value` to element `i`.
    pub fn store(&self, i: &str, value: &str, caps: &DeviceCaps, uses: &mut Uses) -> String {
        let b = self.binding;
        if self.windows == 1 && self.atomic.is_none() && self.typed(caps) {
            return format!("b{b}[{i}] = {};", self.stored(value, uses));
        }
        format!("store{b}({i}, {value});")
    }

    /// Whether the format has a plane of two bytes per block, so that adjacent blocks share its words.
    fn has_halves(&self) -> bool {
        let DType::Block(format) = self.dtype else { return false };
        format.spec().planes.iter().any(|plane| plane.bytes_per_block == 2)
    }

    /// The statement that stores the low half of `value` to the 16-bit element `i` of a block plane.
    pub fn store_half(&self, i: &str, value: &str) -> String {
        format!("store16_{}({i}, {value});", self.binding)
    }

    /// `value` converted to the declared array's element type. The array must be typed.
    fn stored(&self, value: &str, uses: &mut Uses) -> String {
        match self.dtype {
            DType::F32 | DType::U32 | DType::I32 | DType::I64 | DType::F64 => value.into(),
            DType::F16 => uses.call(lib::NARROW_F16, value),
            DType::BF16 => uses.call(lib::NARROW_BF16, value),
            DType::I16 => uses.call(lib::NARROW_I16, value),
            DType::U8 => uses.call(lib::NARROW_U8, value),
            DType::F8E4M3 => uses.call(lib::NARROW_F8, value),
            // Words that the quantizing kernel has already packed.
            DType::Block(_) => value.into(),
        }
    }

    /// The GLSL type of an element's value.
    fn value_type(&self) -> &'static str {
        match self.dtype {
            DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 => "float",
            DType::U32 | DType::U8 | DType::Block(_) => "uint",
            DType::I16 | DType::I32 => "int",
            DType::I64 => "int64_t",
            DType::F64 => "double",
        }
    }

    /// Definitions of the functions that `load` and `store` call.
    pub fn functions(&self, caps: &DeviceCaps, uses: &mut Uses) -> String {
        let groups = self.group_functions(caps, uses);
        let text = match (self.group_vector().is_some() && !self.single, self.written) {
            (true, _) => groups + &self.wide_functions(),
            (false, true) => groups + &self.store_functions(caps, uses),
            (false, false) => groups + &self.load_functions(caps, uses),
        };
        if !text.is_empty() {
            uses.long |= self.dtype == DType::I64 || self.dtype == DType::F64 && self.atomic.is_some();
            uses.double |= self.dtype == DType::F64;
        }
        text
    }

    /// The vector-load functions that [`crate::blocks::operand`] uses.
    fn wide_functions(&self) -> String {
        let mut text = String::new();
        if self.wide {
            let name = if self.packed { "quad" } else { "wide" };
            text += &self.reader(name, "uvec4", "w", 16);
        }
        if self.pairs {
            text += &self.reader("pair", "uvec2", "p", 8);
        }
        text
    }

    fn load_functions(&self, caps: &DeviceCaps, uses: &mut Uses) -> String {
        let b = self.binding;
        let mut text = String::new();
        if self.windows > 1 {
            let ty = match (self.dtype, self.typed(caps)) {
                (DType::F16, true) => "float",
                (DType::BF16 | DType::U8 | DType::F8E4M3, true) => "uint",
                (DType::I16, true) => "int",
                _ => self.element(caps, &mut Extensions::new()),
            };
            text += &self.reader("at", ty, "b", self.array_bytes(caps));
        }
        text += &self.wide_functions();
        let bytes = matches!(self.dtype, DType::U8 | DType::F8E4M3);
        let word = self.read(if bytes { "i >> 2" } else { "i >> 1" });
        text += &match (self.dtype, self.typed(caps)) {
            (DType::BF16, true) => {
                format!(
                    "float load{b}(uint i) {{ return uintBitsToFloat(uint({}) << 16); }}\n",
                    self.read("i")
                )
            }
            (DType::F16, false) => {
                format!("float load{b}(uint i) {{ return unpackHalf2x16({word} >> (16u * (i & 1u))).x; }}\n")
            }
            (DType::BF16, false) => {
                format!(
                    "float load{b}(uint i) {{ return uintBitsToFloat(({word} >> (16u * (i & 1u))) << 16); }}\n"
                )
            }
            (DType::U8, false) => {
                format!("uint load{b}(uint i) {{ return ({word} >> (8u * (i & 3u))) & 0xffu; }}\n")
            }
            (DType::I16, false) => {
                format!(
                    "int load{b}(uint i) {{ return bitfieldExtract(int({word}), int(16u * (i & 1u)), 16); }}\n"
                )
            }
            (DType::F8E4M3, true) => {
                let value = uses.call(lib::VALUE_F8, format_args!("uint({})", self.read("i")));
                format!("float load{b}(uint i) {{ return {value}; }}\n")
            }
            (DType::F8E4M3, false) => {
                let value = uses.call(lib::VALUE_F8, format_args!("({word} >> (8u * (i & 3u))) & 0xffu"));
                format!("float load{b}(uint i) {{ return {value}; }}\n")
            }
            // The functions of a block format come from its template and read words.
            (DType::Block(_), _) if self.windows == 1 => self.reader("at", "uint", "b", 4),
            (DType::Block(_), _) => String::new(),
            (DType::F16 | DType::I16 | DType::U8, true) => String::new(),
            (DType::F32 | DType::U32 | DType::I32 | DType::I64 | DType::F64, _) => String::new(),
        };
        text
    }

    fn store_functions(&self, caps: &DeviceCaps, uses: &mut Uses) -> String {
        let (b, ty) = (self.binding, self.value_type());
        if let Some(atomic) = self.atomic {
            let bytes = self.array_bytes(caps);
            let native = caps.atomic_float_add;
            let body = self.by_window("b", bytes, |array, at| {
                atomic.update(self.dtype, native, &format!("{array}[{at}]"))
            });
            return format!("void store{b}(uint i, {ty} x) {{\n{body}}}\n");
        }
        if self.typed(caps) {
            let mut text = String::new();
            if self.windows > 1 {
                let value = self.stored("x", uses);
                let body = self
                    .by_window("b", self.array_bytes(caps), |array, at| format!("{array}[{at}] = {value};"));
                text = format!("void store{b}(uint i, {ty} x) {{\n{body}}}\n");
            }
            if self.has_halves() {
                let body = self.by_window("b", 4, |array, at| {
                    format!("atomicAnd({array}[{at}], ~(0xffffu << s)); atomicOr({array}[{at}], x << s);")
                });
                text += &format!(
                    "void store16_{b}(uint e, uint x) {{\n    uint i = e >> 1, s = 16u * (e & 1u);\n{body}}}\n"
                );
            }
            return text;
        }
        // Word index, shift, mask and bits of element `e`, which is part of a word.
        let halves = ("e >> 1", "16u * (e & 1u)", "0xffffu");
        let bytes = ("e >> 2", "8u * (e & 3u)", "0xffu");
        let ((word, shift, mask), bits) = match self.dtype {
            DType::F16 => (halves, "packHalf2x16(vec2(x, 0.0))".into()),
            DType::BF16 => (halves, uses.call(lib::BITS_BF16, "x")),
            DType::I16 => (halves, "uint(x) & 0xffffu".into()),
            DType::F8E4M3 => (bytes, uses.call(lib::BITS_F8, "x")),
            DType::U8 => (bytes, "(x & 0xffu)".to_string()),
            DType::F32 | DType::U32 | DType::I32 | DType::I64 | DType::F64 | DType::Block(_) => {
                return String::new();
            }
        };
        let body = self.by_window("b", 4, |array, at| {
            format!("atomicAnd({array}[{at}], ~({mask} << s)); atomicOr({array}[{at}], v << s);")
        });
        format!("void store{b}(uint e, {ty} x) {{\n    uint i = {word}, s = {shift}, v = {bits};\n{body}}}\n")
    }

    /// Word (u32) offset of each plane of a block weight, by plane name.
    pub fn planes(&self) -> Vec<(&'static str, usize)> {
        let DType::Block(format) = self.dtype else { return vec![] };
        planes(format, self.elements)
    }
}

fn planes(format: Format, elements: u64) -> Vec<(&'static str, usize)> {
    let offsets = tallow_quant::plane_offsets(format, elements as usize);
    format.spec().planes.iter().map(|p| p.name).zip(offsets).collect()
}
