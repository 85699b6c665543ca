//! B operands of matmuls: vector loads of eight adjacent elements straight from the buffer.

use minijinja::{Value as Hole, context};
use std::collections::{BTreeMap, BTreeSet};
use tallow_ir::access::{neighbours, vectors_along_k};
use tallow_ir::index::{AtomId, Index};
use tallow_ir::{DType, Format, Graph, Op, Value, dot};

use super::dequant_f16;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::storage::plain;
use crate::template::render;

/// Elements per vector load.
pub(crate) const WIDE: i64 = 8;

/// Whether eight adjacent elements of this type can be loaded at once.
fn loads_wide(dtype: DType) -> bool {
    match dtype {
        // Plain elements other than 16-bit and 32-bit floats have no vector loads.
        DType::Block(Format::F64 | Format::I16 | Format::I32 | Format::I64) => false,
        DType::Block(_) | DType::F32 | DType::F16 | DType::BF16 => true,
        DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 => false,
        DType::F8E4M3 | DType::F64 => false,
    }
}

/// Whether the B operand is read by [`wide`] loads along the K axis.
pub(crate) fn reads_wide(body: &Graph, rhs: Value) -> bool {
    vectors_along_k(body, rhs, WIDE).is_some_and(|leaf| loads_wide(body.ty(leaf).dtype))
}

/// Whether the B operand is read by vector loads and needs no unpacking, so that its load time is that of its bytes.
pub(crate) fn streams(body: &Graph, rhs: Value) -> bool {
    let plain = |leaf| matches!(plain(body.ty(leaf).dtype), DType::F32 | DType::F16 | DType::BF16);
    vectors_along_k(body, rhs, WIDE).is_some_and(plain)
}

/// The buffer and `base`, a multiple of eight, if element `k` of `value` at `at` is element `base + k` of the buffer.
/// Eight adjacent elements can then be loaded (and dequantized) at once.
pub(crate) fn wide(e: &mut Emitter<'_>, value: Value, at: &[Index], k: AtomId) -> Option<(usize, Index)> {
    let (leaf, base) = neighbours(e.body, value, at, k, WIDE, &mut e.atoms)?;
    let Op::Param { index, ty } = e.body.op(leaf) else { return None };
    if !loads_wide(ty.dtype) {
        return None;
    }
    let buffer = e.param(*index);
    e.buffers[buffer].wide |= !matches!(e.buffers[buffer].dtype, DType::Block(_));
    Some((buffer, base))
}

/// Like [`wide`], but only if the eight elements are one 16-byte load, which `widen8_` converts to f32.
pub(crate) fn one_load(e: &mut Emitter<'_>, value: Value, at: &[Index], k: AtomId) -> Option<(usize, Index)> {
    let (leaf, _) = neighbours(e.body, value, at, k, WIDE, &mut e.atoms)?;
    let narrow = matches!(plain(e.body.ty(leaf).dtype), DType::F16 | DType::BF16);
    if narrow { wide(e, value, at, k) } else { None }
}

/// Elements per vector load along `k`, if they are adjacent. Four for f32, whose functions need no array of eight;
/// eight for other types.
pub(crate) fn vector(e: &mut Emitter<'_>, value: Value, at: &[Index], k: AtomId) -> Option<u32> {
    let (leaf, _) = neighbours(e.body, value, at, k, 4, &mut e.atoms)?;
    let Op::Param { ty, .. } = e.body.op(leaf) else { return None };
    if ty.dtype == DType::F32 {
        return Some(4);
    }
    neighbours(e.body, value, at, k, WIDE, &mut e.atoms)?;
    loads_wide(ty.dtype).then_some(WIDE as u32)
}

/// The buffer and base of a load whose length [`vector`] returned. Loads of four use `wide`, loads of eight use
/// `load8_`.
pub(crate) fn load_vector(
    e: &mut Emitter<'_>,
    value: Value,
    at: &[Index],
    k: AtomId,
    length: u32,
) -> Option<(usize, Index)> {
    if i64::from(length) == WIDE {
        return wide(e, value, at, k);
    }
    let (leaf, base) = neighbours(e.body, value, at, k, length.into(), &mut e.atoms)?;
    let Op::Param { index, .. } = e.body.op(leaf) else { return None };
    let buffer = e.param(*index);
    e.buffers[buffer].wide = true;
    Some((buffer, base))
}

/// The buffer and `base`, if element `k` of `value` at `at` is element `base + k` of blocks of `format`. `base` is a
/// multiple of the format's [granularity](dot::Packing::granularity).
pub(crate) fn packed(
    e: &mut Emitter<'_>,
    value: Value,
    format: Format,
    at: &[Index],
    k: AtomId,
) -> Option<(usize, Index)> {
    let (leaf, base) = neighbours(e.body, value, at, k, dot::packing(format)?.granularity(), &mut e.atoms)?;
    let Op::Param { index, .. } = e.body.op(leaf) else { return None };
    let buffer = e.param(*index);
    e.buffers[buffer].packed = true;
    e.buffers[buffer].wide = true;
    e.buffers[buffer].pairs = packed_row(format).is_some_and(|row| row.pairs);
    Some((buffer, base))
}

/// The binding of a buffer of activations that another kernel quantized. Its functions return whole blocks.
pub(crate) fn activations(e: &mut Emitter<'_>, param: u32) -> u32 {
    let buffer = e.param(param);
    e.buffers[buffer].packed = true;
    e.buffers[buffer].wide = true;
    e.buffers[buffer].binding
}

/// The load functions of block weights with their lookup tables, and the vector loads of plain buffers. Element loads
/// that the kernel does not call are left out.
pub(crate) fn functions(e: &Emitter<'_>) -> Result<String, CodegenError> {
    let mut text = String::new();
    let words = packed_words(e);
    // Functions shared by several formats are rendered once.
    let mut shared = BTreeSet::new();
    for buffer in e.buffers.iter().filter(|b| !b.written) {
        let mut holes: BTreeMap<&str, Hole> =
            buffer.planes().into_iter().map(|(name, bytes)| (name, Hole::from(bytes / 4))).collect();
        holes.insert("b", buffer.binding.into());
        holes.insert("words", words.into());
        let mut own = vec![];
        match buffer.dtype {
            DType::Block(format) => {
                let unknown = |what: &str| {
                    let what = format!("{what} of {} blocks", format.name());
                    CodegenError::Dtype { what, dtype: buffer.dtype }
                };
                let mut needs = vec![];
                if buffer.packed {
                    let row = packed_row(format).ok_or_else(|| unknown("bytes"))?;
                    needs.extend(row.shared);
                    own.push(row.template);
                }
                if buffer.pairs
                    && !buffer.packed
                    && let Some(halves) = dequant_f16::of(format)
                {
                    needs.extend(halves.shared);
                    own.push(halves.template);
                }
                let called = buffer.single || buffer.eights || buffer.group > 0;
                if called || !(buffer.packed || buffer.pairs) {
                    let (template, table) = templates(format).ok_or_else(|| unknown("a weight"))?;
                    needs.extend(table);
                    own.push(template);
                    if let (Some(codebook), Some(all)) = (format.codebook(), e.codebooks)
                        && shared.insert(codebook.name)
                    {
                        let word = format!("{}u + (i >> 1)", codebook.offset() / 4);
                        let word = e.buffers[all].load(&word, e.caps);
                        text += &render("dequant/entry.glsl", context! { name => codebook.name, word })?;
                        text.push('\n');
                    }
                }
                for template in needs.into_iter().filter(|template| shared.insert(*template)) {
                    text += &render(template, context! {})?;
                    text.push('\n');
                }
            }
            _ if buffer.wide => {
                holes.insert("dtype", buffer.dtype.name().into());
                // Elements that an epilogue reads in groups of eight already have this function.
                let is_there = buffer.group_size() == Some(WIDE as u32);
                own.extend((buffer.eights && !is_there).then_some("dequant/plain.glsl"));
                own.extend(buffer.widens.then_some("dequant/widen.glsl"));
            }
            _ => {}
        }
        let holes = Hole::from(holes);
        for template in own {
            text += &render(template, holes.clone())?;
            text.push('\n');
        }
    }
    Ok(text)
}

/// The template of a format's load functions, and the template of the table or function that it shares with other
/// formats, if any. `None` for plain elements, which are loaded as their type.
fn templates(format: Format) -> Option<(&'static str, Option<&'static str>)> {
    let template = match format {
        Format::Q4_0 => "dequant/q4_0.glsl",
        Format::Q4_1 => "dequant/q4_1.glsl",
        Format::Q5_0 => "dequant/q5_0.glsl",
        Format::Q5_1 => "dequant/q5_1.glsl",
        Format::Q8_0 => "dequant/q8_0.glsl",
        Format::Q2_K => "dequant/q2_k.glsl",
        Format::Q3_K => "dequant/q3_k.glsl",
        Format::Q4_K => "dequant/q4_k.glsl",
        Format::Q5_K => "dequant/q5_k.glsl",
        Format::Q6_K => "dequant/q6_k.glsl",
        Format::TQ2_0 => "dequant/tq2_0.glsl",
        Format::TQ1_0 => return Some(("dequant/tq1_0.glsl", Some("dequant/powers_of_3.glsl"))),
        Format::IQ2_XXS => return Some(("dequant/iq2_xxs.glsl", Some("dequant/iq2_value.glsl"))),
        Format::IQ2_XS => return Some(("dequant/iq2_xs.glsl", Some("dequant/iq2_value.glsl"))),
        Format::IQ2_S => return Some(("dequant/iq2_s.glsl", Some("dequant/iq2_value.glsl"))),
        Format::IQ3_XXS => return Some(("dequant/iq3_xxs.glsl", Some("dequant/iq3_xxs_value.glsl"))),
        Format::IQ3_S => return Some(("dequant/iq3_s.glsl", Some("dequant/iq3_s_value.glsl"))),
        Format::IQ1_S => return Some(("dequant/iq1_s.glsl", Some("dequant/iq1_value.glsl"))),
        Format::IQ1_M => return Some(("dequant/iq1_m.glsl", Some("dequant/iq1_value.glsl"))),
        Format::IQ4_NL => return Some(("dequant/iq4_nl.glsl", Some("dequant/iq4_levels.glsl"))),
        Format::IQ4_XS => return Some(("dequant/iq4_xs.glsl", Some("dequant/iq4_levels.glsl"))),
        Format::MXFP4 => return Some(("dequant/mxfp4.glsl", Some("dequant/fp4_levels.glsl"))),
        Format::NVFP4 => return Some(("dequant/nvfp4.glsl", Some("dequant/fp4_levels.glsl"))),
        Format::Q8_1 => "dequant/q8_1.glsl",
        Format::Q8_K => "dequant/q8_k.glsl",
        Format::I8 => "dequant/i8.glsl",
        Format::F16 | Format::BF16 | Format::F32 | Format::F64 => return None,
        Format::I16 | Format::I32 | Format::I64 => return None,
    };
    Some((template, None))
}

/// Words that hold one packed group of any weight that the kernel unpacks to bytes: the maximum over its buffers.
pub(crate) fn packed_words(e: &Emitter<'_>) -> u32 {
    let words = |dtype: DType| match dtype {
        DType::Block(format) => words_of(format),
        _ => 0,
    };
    e.buffers.iter().filter(|b| b.packed).map(|b| words(b.dtype)).max().unwrap_or(0)
}

/// Words that hold one packed group ([`dot::Packing::elements`]) of a format.
pub(crate) fn words_of(format: Format) -> u32 {
    packed_row(format).map_or(0, |row| row.words)
}

/// How elements of a format are unpacked to bytes.
struct PackedRow {
    /// The template of the functions that fetch and unpack a group.
    template: &'static str,
    /// Words of a packed group.
    words: u32,
    /// Whether some words are fetched in pairs; the others are fetched in fours.
    pairs: bool,
    /// Templates of functions shared with other formats.
    shared: &'static [&'static str],
}

/// The row of a format; `None` if [`dot::packing`] does not support it.
fn packed_row(format: Format) -> Option<PackedRow> {
    const IQ4: &[&str] = &["dequant/iq4_levels.glsl", "unpack_i8/iq4_bytes.glsl"];
    const FP4: &[&str] = &["unpack_i8/fp4_bytes.glsl"];
    const SCALES: &[&str] = &["unpack_i8/pair_scales.glsl"];
    const NONE: &[&str] = &[];
    let (template, words, pairs, shared) = match format {
        Format::Q4_0 => ("unpack_i8/q4_0.glsl", 5, false, NONE),
        Format::Q4_1 => ("unpack_i8/q4_1.glsl", 5, false, NONE),
        Format::Q5_0 => ("unpack_i8/q5_0.glsl", 6, false, NONE),
        Format::Q5_1 => ("unpack_i8/q5_1.glsl", 6, false, NONE),
        Format::Q8_0 => ("unpack_i8/q8_0.glsl", 9, false, NONE),
        // A format of activations, which are loaded at their use and not prefetched.
        Format::Q8_1 => ("unpack_i8/q8_1.glsl", 0, false, NONE),
        Format::Q2_K => ("unpack_i8/q2_k.glsl", 7, true, NONE),
        Format::Q3_K => ("unpack_i8/q3_k.glsl", 10, true, NONE),
        Format::Q4_K => ("unpack_i8/q4_k.glsl", 12, false, SCALES),
        Format::Q5_K => ("unpack_i8/q5_k.glsl", 14, true, SCALES),
        Format::Q6_K => ("unpack_i8/q6_k.glsl", 15, true, NONE),
        Format::TQ2_0 => ("unpack_i8/tq2_0.glsl", 5, false, NONE),
        Format::IQ4_NL => ("unpack_i8/iq4_nl.glsl", 5, false, IQ4),
        Format::IQ4_XS => ("unpack_i8/iq4_xs.glsl", 6, false, IQ4),
        Format::MXFP4 => ("unpack_i8/mxfp4.glsl", 5, false, FP4),
        Format::NVFP4 => ("unpack_i8/nvfp4.glsl", 5, false, FP4),
        Format::IQ1_S | Format::IQ1_M | Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S => return None,
        Format::IQ3_XXS | Format::IQ3_S | Format::TQ1_0 | Format::Q8_K => return None,
        Format::F16 | Format::BF16 | Format::F32 | Format::F64 => return None,
        Format::I8 | Format::I16 | Format::I32 | Format::I64 => return None,
    };
    Some(PackedRow { template, words, pairs, shared })
}
