//! Groups of adjacent elements: functions that load or store several at once, in 16-byte accesses.
//!
//! A group has a power of two of elements and starts at a multiple of its size. It is one or more whole vectors of
//! 32-bit words.

use tallow_ir::{DType, DeviceCaps};

use super::Buffer;
use crate::library::{self as lib, Uses};

/// Bytes per element of a plain type; 0 for blocks.
pub(crate) fn bytes(dtype: DType) -> u32 {
    match dtype {
        DType::U8 | DType::F8E4M3 => 1,
        DType::F16 | DType::BF16 | DType::I16 => 2,
        DType::F32 | DType::U32 | DType::I32 => 4,
        DType::I64 | DType::F64 => 8,
        DType::Block(_) => 0,
    }
}

impl Buffer {
    /// The vector type of a group, and vectors per group. `None` if elements are not accessed in groups, or are blocks,
    /// whose templates define the functions.
    pub(super) fn group_vector(&self) -> Option<(&'static str, u32)> {
        match self.group * bytes(self.dtype) {
            0 => None,
            4 => Some(("uint", 1)),
            8 => Some(("uvec2", 1)),
            all => Some(("uvec4", all / 16)),
        }
    }

    /// Elements per group access; `None` if there is no group function.
    pub fn group_size(&self) -> Option<u32> {
        self.group_vector().map(|_| self.group)
    }

    /// Whether elements of `dtype` can be accessed in groups of `size`.
    pub fn groups(dtype: DType, size: u32) -> bool {
        match dtype {
            // The dequantization functions of all block formats unpack eight elements.
            DType::Block(_) => size == 8,
            DType::U8 | DType::F8E4M3 | DType::F16 | DType::BF16 | DType::I16 => size * bytes(dtype) >= 4,
            DType::F32 | DType::U32 | DType::I32 | DType::I64 | DType::F64 => size * bytes(dtype) >= 8,
        }
    }

    /// The function that loads or stores a group.
    pub(super) fn group_functions(&self, caps: &DeviceCaps, uses: &mut Uses) -> String {
        let Some((vector, count)) = self.group_vector() else { return String::new() };
        match self.written {
            true => self.group_store(vector, count, caps, uses),
            false => self.group_load(vector, count, uses),
        }
    }

    /// The index of vector `v` of the group that starts at element `e`.
    fn vector_at(&self, count: u32, v: u32) -> String {
        let per = self.group / count;
        if v == 0 { format!("e / {per}u") } else { format!("e / {per}u + {v}u") }
    }

    fn group_load(&self, vector: &str, count: u32, uses: &mut Uses) -> String {
        let (b, n, ty) = (self.binding, self.group, self.value_type());
        let width = if vector == "uvec4" { 16 } else { u64::from(self.group * bytes(self.dtype)) };
        let mut text = String::new();
        if self.windows > 1 {
            text += &self.reader("vector", vector, "v", width);
        }
        text += &format!("void load{n}_{b}(uint e, out {ty} x[{n}]) {{\n");
        for v in 0..count {
            let at = self.vector_at(count, v);
            let read = if self.windows == 1 { format!("v{b}[{at}]") } else { format!("vector{b}({at})") };
            text += &format!("    {vector} p{v} = {read};\n");
        }
        let elements: Vec<String> = (0..n).map(|i| self.element_of(i, vector, uses)).collect();
        text + &format!("    x = {ty}[{n}]({});\n}}\n", elements.join(", "))
    }

    /// Element `i` of a group whose vectors are `p0`, `p1`, and so on.
    fn element_of(&self, i: u32, vector: &str, uses: &mut Uses) -> String {
        let first = i * bytes(self.dtype) / 4;
        let word = |w: u32| match vector {
            "uint" => "p0".to_string(),
            _ => format!("p{}.{}", w / 4, ["x", "y", "z", "w"][w as usize % 4]),
        };
        let (w, half) = (word(first), i % 2);
        match self.dtype {
            DType::F32 => format!("uintBitsToFloat({w})"),
            DType::U32 | DType::Block(_) => w,
            DType::I32 => format!("int({w})"),
            DType::F16 => format!("unpackHalf2x16({w}).{}", ["x", "y"][half as usize]),
            DType::BF16 if half == 0 => format!("uintBitsToFloat({w} << 16)"),
            DType::BF16 => format!("uintBitsToFloat({w} & 0xffff0000u)"),
            DType::I16 => format!("bitfieldExtract(int({w}), {}, 16)", 16 * half),
            DType::U8 => format!("bitfieldExtract({w}, {}, 8)", 8 * (i % 4)),
            DType::F8E4M3 => {
                uses.call(lib::VALUE_F8, format_args!("bitfieldExtract({w}, {}, 8)", 8 * (i % 4)))
            }
            DType::I64 => format!("int64_t(packUint2x32(uvec2({w}, {})))", word(first + 1)),
            DType::F64 => format!("packDouble2x32(uvec2({w}, {}))", word(first + 1)),
        }
    }

    /// The statement that stores `value`, 16 bytes of packed narrow elements, as the group at element `i`. All groups
    /// of the buffer must then be stored this way.
    pub fn store_words(&mut self, i: &str, value: &str) -> String {
        let per = 16 / bytes(self.dtype).max(1);
        (self.group, self.as_words) = (per, true);
        // Uses a function, because a local variable of the kernel may have the array's name.
        format!("put{}(({i}) / {per}u, {value});", self.binding)
    }

    fn group_store(&self, vector: &str, count: u32, caps: &DeviceCaps, uses: &mut Uses) -> String {
        let (b, n, ty) = (self.binding, self.group, self.value_type());
        let mut text = String::new();
        if self.windows > 1 || self.as_words {
            let width = if vector == "uvec4" { 16 } else { u64::from(self.group * bytes(self.dtype)) };
            let body = self.by_window("v", width, |array, at| format!("{array}[{at}] = x;"));
            text += &format!("void put{b}(uint i, {vector} x) {{\n{body}}}\n");
        }
        if self.as_words {
            return text;
        }
        text += &format!("void store{n}_{b}(uint e, {ty} x[{n}]) {{\n");
        let words = n * bytes(self.dtype) / 4 / count;
        for v in 0..count {
            let at = self.vector_at(count, v);
            let parts: Vec<String> =
                (v * words..(v + 1) * words).map(|w| self.word_of(w, caps, uses)).collect();
            let value = match parts.as_slice() {
                [word] => word.clone(),
                parts => format!("{vector}({})", parts.join(", ")),
            };
            text += &match self.windows {
                1 => format!("    v{b}[{at}] = {value};\n"),
                _ => format!("    put{b}({at}, {value});\n"),
            };
        }
        text + "}\n"
    }

    /// Word `w` of a group whose elements are `x[0]`, `x[1]`, and so on.
    fn word_of(&self, w: u32, caps: &DeviceCaps, uses: &mut Uses) -> String {
        let two = (2 * w, 2 * w + 1);
        let four = |part: &mut dyn FnMut(u32) -> String| {
            let parts = (0..4).map(|i| match i {
                0 => part(4 * w),
                _ => format!("{} << {}", part(4 * w + i), 8 * i),
            });
            parts.collect::<Vec<_>>().join(" | ")
        };
        match self.dtype {
            DType::F32 => format!("floatBitsToUint(x[{w}])"),
            DType::U32 | DType::Block(_) => format!("x[{w}]"),
            DType::I32 => format!("uint(x[{w}])"),
            // Single-element stores round the same way.
            DType::F16 if self.typed(caps) => {
                format!("packFloat2x16(f16vec2(x[{}], x[{}]))", two.0, two.1)
            }
            DType::F16 => format!("packHalf2x16(vec2(x[{}], x[{}]))", two.0, two.1),
            DType::BF16 => {
                let [low, high] = [two.0, two.1].map(|i| uses.call(lib::BITS_BF16, format_args!("x[{i}]")));
                format!("{low} | {high} << 16")
            }
            DType::I16 => format!("(uint(x[{}]) & 0xffffu) | uint(x[{}]) << 16", two.0, two.1),
            DType::U8 => four(&mut |i| format!("(x[{i}] & 0xffu)")),
            DType::F8E4M3 => four(&mut |i| uses.call(lib::BITS_F8, format_args!("x[{i}]"))),
            DType::I64 => format!("unpackUint2x32(uint64_t(x[{}])).{}", w / 2, ["x", "y"][w as usize % 2]),
            DType::F64 => format!("unpackDouble2x32(x[{}]).{}", w / 2, ["x", "y"][w as usize % 2]),
        }
    }
}
