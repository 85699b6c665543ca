//! B operands of matmuls: vector loads of eight adjacent elements straight from the buffer.

use minijinja::{Value as Hole, context};
use std::collections::{BTreeMap, BTreeSet};
use tallow_ir::access::{
    Gathered, Run, gathered_neighbours, groups_along_k, neighbours, padded_neighbours, vectors_along_k,
};
use tallow_ir::index::{AtomId, Index};
use tallow_ir::{DType, Format, Graph, Op, Value, dot};

use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::storage::plain;
use crate::template::{of_format, render};

/// Elements per vector load.
pub(crate) const WIDE: i64 = 8;

/// Functions to load one or eight elements of a block format.
const DEQUANT: &str = "dequant";

/// Functions to fetch a packed group of a format and unpack it to bytes, for the formats of [`dot::packing`].
const UNPACK_I8: &str = "unpack_i8";

/// Functions to dequantize eight elements to f16, for cooperative matrices: the type `Raw`, the function `raw` that loads
/// it, and `halves` that unpacks it when the loads have completed, so that many loads are in flight. Formats without
/// them are dequantized at the load.
///
/// Every result equals rounding to f32 and then to f16. Where a weight is `d * q` and the product is exact in f32,
/// pairs are multiplied in f16, which rounds once. Sums of two terms are computed in f32.
const DEQUANT_F16: &str = "dequant_f16";

/// Formats whose codebooks have digits of 2 bits, and those whose elements have signs of their own.
const DIGITS_OF_2: &[Format] =
    &[Format::IQ1_S, Format::IQ1_M, Format::IQ2_XXS, Format::IQ2_XS, Format::IQ2_S];
const SIGNED: &[Format] = &[Format::IQ2_XXS, Format::IQ2_XS, Format::IQ2_S, Format::IQ3_XXS, Format::IQ3_S];

/// Formats whose bytes are multiplied in f16 by a scale that is an f16, and those with signed bytes and a scale in f32.
const SCALED_F16: &[Format] = &[Format::Q4_0, Format::Q5_0, Format::Q8_0, Format::IQ4_NL, Format::TQ1_0];
const SIGNED_BYTES: &[Format] = &[
    Format::Q3_K,
    Format::IQ4_XS,
    Format::MXFP4,
    Format::NVFP4,
    Format::IQ1_S,
    Format::IQ1_M,
    Format::IQ2_XXS,
    Format::IQ2_XS,
    Format::IQ2_S,
    Format::IQ3_XXS,
    Format::IQ3_S,
];

/// Templates that several formats share, in the order in which they call each other: the folder of the functions that call them, and the formats.
const SHARED: [(&str, &str, &[Format]); 37] = [
    (DEQUANT, "dequant/powers_of_3.glsl", &[Format::TQ1_0]),
    (DEQUANT, "dequant/iq2_value.glsl", &[Format::IQ2_XXS, Format::IQ2_XS, Format::IQ2_S]),
    (DEQUANT, "dequant/iq3_xxs_value.glsl", &[Format::IQ3_XXS]),
    (DEQUANT, "dequant/iq3_s_value.glsl", &[Format::IQ3_S]),
    (DEQUANT, "dequant/iq1_value.glsl", &[Format::IQ1_S, Format::IQ1_M]),
    (DEQUANT, "dequant/iq4_levels.glsl", &[Format::IQ4_NL, Format::IQ4_XS]),
    (DEQUANT, "dequant/iq4_bytes.glsl", &[Format::IQ4_NL, Format::IQ4_XS]),
    (DEQUANT, "dequant/fp4_levels.glsl", &[Format::MXFP4, Format::NVFP4]),
    (UNPACK_I8, "dequant/iq4_bytes.glsl", &[Format::IQ4_NL, Format::IQ4_XS]),
    (UNPACK_I8, "unpack_i8/fp4_bytes.glsl", &[Format::MXFP4, Format::NVFP4]),
    (UNPACK_I8, "unpack_i8/pair_scales.glsl", &[Format::Q4_K, Format::Q5_K]),
    (UNPACK_I8, "unpack_i8/signed_bytes.glsl", SIGNED),
    (UNPACK_I8, "unpack_i8/even_signs.glsl", &[Format::IQ2_XXS, Format::IQ2_XS, Format::IQ3_XXS]),
    (UNPACK_I8, "unpack_i8/digits_of_2.glsl", DIGITS_OF_2),
    (UNPACK_I8, "unpack_i8/digits_of_3.glsl", &[Format::IQ3_XXS, Format::IQ3_S]),
    (UNPACK_I8, "unpack_i8/iq1_bytes.glsl", &[Format::IQ1_S, Format::IQ1_M]),
    (UNPACK_I8, "unpack_i8/iq2_bytes.glsl", &[Format::IQ2_XXS, Format::IQ2_XS, Format::IQ2_S]),
    (UNPACK_I8, "unpack_i8/iq3_xxs_bytes.glsl", &[Format::IQ3_XXS]),
    (UNPACK_I8, "unpack_i8/iq3_s_bytes.glsl", &[Format::IQ3_S]),
    (UNPACK_I8, "unpack_i8/tq1_bytes.glsl", &[Format::TQ1_0]),
    (DEQUANT_F16, "dequant/iq4_bytes.glsl", &[Format::IQ4_NL, Format::IQ4_XS]),
    (DEQUANT_F16, "unpack_i8/fp4_bytes.glsl", &[Format::MXFP4, Format::NVFP4]),
    (DEQUANT_F16, "unpack_i8/signed_bytes.glsl", SIGNED),
    (DEQUANT_F16, "unpack_i8/even_signs.glsl", &[Format::IQ2_XXS, Format::IQ2_XS, Format::IQ3_XXS]),
    (DEQUANT_F16, "unpack_i8/digits_of_2.glsl", DIGITS_OF_2),
    (DEQUANT_F16, "unpack_i8/digits_of_3.glsl", &[Format::IQ3_XXS, Format::IQ3_S]),
    (DEQUANT_F16, "unpack_i8/iq1_bytes.glsl", &[Format::IQ1_S, Format::IQ1_M]),
    (DEQUANT_F16, "unpack_i8/iq2_bytes.glsl", &[Format::IQ2_XXS, Format::IQ2_XS, Format::IQ2_S]),
    (DEQUANT_F16, "unpack_i8/iq3_xxs_bytes.glsl", &[Format::IQ3_XXS]),
    (DEQUANT_F16, "unpack_i8/iq3_s_bytes.glsl", &[Format::IQ3_S]),
    (DEQUANT_F16, "unpack_i8/tq1_bytes.glsl", &[Format::TQ1_0]),
    (DEQUANT_F16, "dequant_f16/signed.glsl", SIGNED_BYTES),
    (DEQUANT_F16, "dequant_f16/nvfp4_scale.glsl", &[Format::NVFP4]),
    (DEQUANT_F16, "dequant_f16/scaled.glsl", SCALED_F16),
    (DEQUANT_F16, "dequant_f16/shifted.glsl", &[Format::Q4_1, Format::Q5_1, Format::Q4_K, Format::Q5_K]),
    (DEQUANT_F16, "dequant_f16/fifth_bits.glsl", &[Format::Q5_0, Format::Q5_1]),
    (DEQUANT_F16, "dequant_f16/scales_k.glsl", &[Format::Q4_K, Format::Q5_K]),
];

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

/// Whether the B operand is read by [`wide`] loads along the K axis: it is contiguous, at least in groups.
pub(crate) fn reads_groups(body: &Graph, rhs: Value) -> bool {
    groups_along_k(body, rhs, WIDE).is_some_and(|leaf| loads_wide(body.ty(leaf).dtype))
}

/// Whether the B operand is read by vector loads and needs no unpacking, so that its load time is that of its bytes.
pub(crate) fn streams(body: &Graph, rhs: Value) -> bool {
    let plain = |leaf| matches!(plain(body.ty(leaf).dtype), DType::F32 | DType::F16 | DType::BF16);
    vectors_along_k(body, rhs, WIDE).is_some_and(plain)
}

/// The buffer and `base`, a multiple of eight, if element `k` of `value` at `at` is element `base + k` of the buffer, possibly
/// through a gather. Eight adjacent elements can then be loaded (and dequantized) at once.
pub(crate) fn wide(e: &mut Emitter<'_>, value: Value, at: &[Index], k: AtomId) -> Option<(usize, Index)> {
    let (buffer, base) = run(e, value, (at, k), (WIDE, loads_wide))?;
    e.buffers[buffer].wide |= !matches!(e.buffers[buffer].dtype, DType::Block(_));
    Some((buffer, base))
}

/// The buffer and `base`, a multiple of `multiple`, if element `k` of `value` at `at` is element `base + k` of the buffer,
/// possibly through a gather, and the buffer's type fits.
fn run(
    e: &mut Emitter<'_>,
    value: Value,
    (at, k): (&[Index], AtomId),
    (multiple, fits): (i64, impl Fn(DType) -> bool),
) -> Option<(usize, Index)> {
    let run = gathered_neighbours(e.body, value, at, (k, multiple), &mut e.atoms)?;
    let Op::Param { index, ty } = e.body.op(run.leaf) else { return None };
    if !fits(ty.dtype) {
        return None;
    }
    for Gathered { atom, node, at } in &run.gathers {
        e.read_index(*node, *atom, at).ok()?;
    }
    Some((e.param(*index), run.base))
}

/// Like [`wide`], for eight elements that may be padding instead, and only if they have this type in memory.
pub(crate) fn wide_or_padding(
    e: &mut Emitter<'_>,
    value: Value,
    (at, k): (&[Index], AtomId),
    dtype: DType,
) -> Option<(usize, Run)> {
    let run = padded_neighbours(e.body, value, at, (k, WIDE), &mut e.atoms)?;
    let Op::Param { index, ty } = e.body.op(run.leaf) else { return None };
    if plain(ty.dtype) != dtype {
        return None;
    }
    let buffer = e.param(*index);
    e.buffers[buffer].wide = true;
    Some((buffer, run))
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

/// The buffer and `base`, if element `k` of `value` at `at` is element `base + k` of blocks of `format`, possibly
/// through a gather. `base` is a multiple of the format's [granularity](dot::Packing::granularity).
pub(crate) fn packed(
    e: &mut Emitter<'_>,
    value: Value,
    format: Format,
    (at, k): (&[Index], AtomId),
) -> Option<(usize, Index)> {
    let multiple = dot::packing(format)?.granularity();
    let (buffer, base) = run(e, value, (at, k), (multiple, |_| true))?;
    e.buffers[buffer].packed = true;
    e.buffers[buffer].wide = true;
    // The others fetch single words and fours.
    let regrouped = matches!(format, Format::Q2_K | Format::Q3_K | Format::Q5_K | Format::Q6_K);
    let points = matches!(format, Format::IQ2_XXS | Format::IQ2_XS | Format::IQ3_XXS | Format::IQ3_S);
    e.buffers[buffer].pairs = regrouped || points;
    Some((buffer, base))
}

/// Sets that a buffer is dequantized to f16 by the functions `raw` and `halves`. `false` if it has none.
pub(crate) fn dequantizes_to_f16(e: &mut Emitter<'_>, buffer: usize) -> bool {
    let DType::Block(format) = e.buffers[buffer].dtype else { return false };
    let found = of_format(DEQUANT_F16, format).is_some();
    e.buffers[buffer].pairs |= found;
    // The others load at most eight bytes at once.
    e.buffers[buffer].wide |= found && matches!(format, Format::Q4_K | Format::Q5_K);
    found
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
                let called = buffer.single || buffer.eights || buffer.group > 0;
                let folders = [
                    buffer.packed.then_some(UNPACK_I8),
                    (buffer.pairs && !buffer.packed).then_some(DEQUANT_F16),
                    (called || !(buffer.packed || buffer.pairs)).then_some(DEQUANT),
                ];
                let mut needs = vec![];
                for folder in folders.into_iter().flatten() {
                    let what = || format!("{folder} of {} blocks", format.name());
                    let unknown = || CodegenError::Dtype { what: what(), dtype: buffer.dtype };
                    own.push(of_format(folder, format).ok_or_else(unknown)?);
                    let of_this = SHARED.iter().filter(|row| row.0 == folder && row.2.contains(&format));
                    needs.extend(of_this.map(|row| row.1));
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

/// Words that hold one packed group of any weight that the kernel unpacks to bytes: the maximum over its buffers.
pub(crate) fn packed_words(e: &Emitter<'_>) -> u32 {
    let words = |dtype: DType| match dtype {
        DType::Block(format) => words_of(format),
        _ => 0,
    };
    e.buffers.iter().filter(|b| b.packed).map(|b| words(b.dtype)).max().unwrap_or(0)
}

/// Words that hold one packed group of a format; 0 if it is not unpacked to bytes or never prefetched, like activations.
pub(crate) fn words_of(format: Format) -> u32 {
    match format {
        Format::IQ1_S | Format::IQ2_XXS => 3,
        Format::IQ1_M | Format::IQ2_XS | Format::IQ3_XXS => 4,
        Format::Q4_0 | Format::Q4_1 | Format::TQ2_0 | Format::IQ4_NL | Format::MXFP4 | Format::NVFP4 => 5,
        Format::IQ2_S => 5,
        Format::Q5_0 | Format::Q5_1 | Format::IQ4_XS | Format::IQ3_S => 6,
        Format::Q2_K => 7,
        Format::Q8_0 => 9,
        Format::Q3_K | Format::TQ1_0 => 10,
        Format::Q4_K => 12,
        Format::Q5_K => 14,
        Format::Q6_K => 15,
        Format::Q8_1 | Format::Q8_K => 0,
        Format::F16 | Format::BF16 | Format::F32 | Format::F64 => 0,
        Format::I8 | Format::I16 | Format::I32 | Format::I64 => 0,
    }
}
