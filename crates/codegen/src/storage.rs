//! Storage buffers in GLSL: declarations, and functions that load and store one element.
//!
//! 16- and 8-bit elements use typed buffers where the device has them; elsewhere they are parts of 32-bit
//! words, and a store is two atomics on the word: they touch no bit of a neighbour, so invocations that
//! share a word do not disturb each other.

use std::collections::BTreeSet;

use tallow_ir::{DType, DeviceCaps, Format};

/// One declared buffer.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    pub binding: u32,
    pub dtype: DType,
    pub written: bool,
    /// Number of elements (largest), by which the planes of a block format are found.
    pub elements: u64,
    /// Also declared as 16-byte vectors for wide loads.
    pub wide: bool,
}

/// Extensions a shader enables.
pub(crate) type Extensions = BTreeSet<&'static str>;

fn typed(dtype: DType, caps: &DeviceCaps) -> bool {
    match dtype {
        DType::F16 | DType::BF16 => caps.storage_16bit,
        DType::U8 => caps.storage_8bit,
        DType::U32 | DType::I32 | DType::I64 | DType::F32 | DType::F64 | DType::Block(_) => true,
    }
}

impl Buffer {
    fn element(&self, caps: &DeviceCaps, ext: &mut Extensions) -> &'static str {
        match self.dtype {
            DType::F32 => "float",
            DType::U32 | DType::Block(_) => "uint",
            DType::I32 => "int",
            DType::F16 if caps.storage_16bit => {
                ext.insert("GL_EXT_shader_16bit_storage");
                "float16_t"
            }
            DType::BF16 if caps.storage_16bit => {
                ext.insert("GL_EXT_shader_16bit_storage");
                "uint16_t"
            }
            DType::U8 if caps.storage_8bit => {
                ext.insert("GL_EXT_shader_8bit_storage");
                "uint8_t"
            }
            DType::F16 | DType::BF16 | DType::U8 => "uint",
            DType::I64 => "int64_t",
            DType::F64 => "double",
        }
    }

    /// The declaration, with aliases for wide loads.
    pub fn declare(&self, caps: &DeviceCaps, ext: &mut Extensions) -> String {
        let b = self.binding;
        // What a kernel writes it never reads, except through the atomics that write parts of words;
        // saying so lets the validation layer see true hazards only.
        let access = match (self.written, typed(self.dtype, caps)) {
            (false, _) => "readonly ",
            (true, true) => "writeonly ",
            (true, false) => "",
        };
        let element = self.element(caps, ext);
        let mut text =
            format!("layout(set = 0, binding = {b}, std430) {access}buffer B{b} {{ {element} b{b}[]; }};\n");
        if self.wide {
            text += &format!(
                "layout(set = 0, binding = {b}, std430) readonly buffer V{b} {{ uvec4 v{b}[]; }};\n"
            );
        }
        text
    }

    /// The expression that loads element `i`.
    pub fn load(&self, i: &str, caps: &DeviceCaps) -> String {
        let b = self.binding;
        match self.dtype {
            DType::F32 | DType::U32 | DType::I32 | DType::I64 | DType::F64 => format!("b{b}[{i}]"),
            DType::F16 if typed(self.dtype, caps) => format!("float(b{b}[{i}])"),
            DType::U8 if typed(self.dtype, caps) => format!("uint(b{b}[{i}])"),
            DType::F16 | DType::BF16 | DType::U8 | DType::Block(_) => format!("load{b}({i})"),
        }
    }

    /// The statement that stores `value` to element `i`.
    pub fn store(&self, i: &str, value: &str, caps: &DeviceCaps) -> String {
        let b = self.binding;
        match self.dtype {
            DType::F32 | DType::U32 | DType::I32 | DType::I64 | DType::F64 => format!("b{b}[{i}] = {value};"),
            DType::F16 if typed(self.dtype, caps) => format!("b{b}[{i}] = float16_t({value});"),
            DType::BF16 if typed(self.dtype, caps) => format!("b{b}[{i}] = uint16_t(bits_bf16({value}));"),
            DType::U8 if typed(self.dtype, caps) => format!("b{b}[{i}] = uint8_t({value});"),
            DType::F16 | DType::BF16 | DType::U8 | DType::Block(_) => format!("store{b}({i}, {value});"),
        }
    }

    /// Definitions of the functions that `load` and `store` call.
    pub fn functions(&self, caps: &DeviceCaps) -> String {
        let b = self.binding;
        let typed = typed(self.dtype, caps);
        let store = |shift: &str, mask: &str, bits: &str, ty: &str, index: &str| {
            format!(
                "void store{b}(uint i, {ty} x) {{\n    uint s = {shift};\n    atomicAnd(b{b}[{index}], ~({mask} << s));\n    atomicOr(b{b}[{index}], {bits} << s);\n}}\n"
            )
        };
        match (self.dtype, typed, self.written) {
            (DType::BF16, true, false) => {
                format!("float load{b}(uint i) {{ return uintBitsToFloat(uint(b{b}[i]) << 16); }}\n")
            }
            (DType::F16, false, false) => {
                format!(
                    "float load{b}(uint i) {{ return unpackHalf2x16(b{b}[i >> 1] >> (16u * (i & 1u))).x; }}\n"
                )
            }
            (DType::BF16, false, false) => {
                format!(
                    "float load{b}(uint i) {{ return uintBitsToFloat((b{b}[i >> 1] >> (16u * (i & 1u))) << 16); }}\n"
                )
            }
            (DType::U8, false, false) => {
                format!("uint load{b}(uint i) {{ return (b{b}[i >> 2] >> (8u * (i & 3u))) & 0xffu; }}\n")
            }
            (DType::F16, false, true) => {
                store("16u * (i & 1u)", "0xffffu", "packHalf2x16(vec2(x, 0.0))", "float", "i >> 1")
            }
            (DType::BF16, false, true) => {
                store("16u * (i & 1u)", "0xffffu", "bits_bf16(x)", "float", "i >> 1")
            }
            (DType::U8, false, true) => store("8u * (i & 3u)", "0xffu", "(x & 0xffu)", "uint", "i >> 2"),
            (DType::Block(_), _, _) => String::new(),
            (DType::F16 | DType::BF16 | DType::U8, true, _) => String::new(),
            (DType::F32 | DType::U32 | DType::I32 | DType::I64 | DType::F64, _, _) => String::new(),
        }
    }

    /// Word (u32) position of each plane of a block weight, by plane name.
    pub fn planes(&self) -> Vec<(&'static str, usize)> {
        let DType::Block(format) = self.dtype else { return vec![] };
        planes(format, self.elements)
    }
}

fn planes(format: Format, elements: u64) -> Vec<(&'static str, usize)> {
    let offsets = tallow_quant::plane_offsets(format, elements as usize);
    format.spec().planes.iter().zip(offsets).map(|(p, o)| (p.name, o)).collect()
}
