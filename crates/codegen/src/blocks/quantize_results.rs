//! Quantization of results to blocks: the function of each format, and the stores of its words.
//!
//! Each format is one row of [`row`]: a template and its arguments. The function returns the words of the block's
//! planes in order; the format's table gives their offsets. A plane of two bytes per block shares each word with the
//! adjacent block. Atomics store it and leave the other half unchanged (decision 0007).

use std::collections::{BTreeMap, BTreeSet};

use minijinja::{Value as Hole, context};
use tallow_ir::form::{ContractionForm, Segment, output_root};
use tallow_ir::index::Index;
use tallow_ir::{DType, DeviceCaps, Dim, Format, Op, Shape, dot};
use tallow_quant::IQ4_LEVELS;

use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::library::{self as lib, Function, Uses};
use crate::template::render;

/// The function of a format.
struct Row {
    template: &'static str,
    holes: Hole,
    calls: &'static [Function],
    /// The functions of `quantize/pack.glsl` that it calls.
    packs: Packs,
}

/// Functions of `quantize/pack.glsl`; `fifth_bits` is used along with `nibbles_of` only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Packs {
    None,
    Nibbles,
    FifthBits,
}

/// The row of a format; `None` if the format cannot be quantized on the device.
fn row(format: Format) -> Option<Row> {
    const BYTES: &[Function] = &[lib::BYTE_OF, lib::ROUND_F16];
    const LEVELS: &[Function] = &[lib::TO_INT, lib::ROUND_F16];
    let (template, holes, calls, packs) = match format {
        Format::Q8_0 => ("quantize/bytes.glsl", context! { sum => false }, BYTES, Packs::None),
        Format::Q8_1 => ("quantize/bytes.glsl", context! { sum => true }, BYTES, Packs::None),
        Format::Q4_0 => ("quantize/signed.glsl", context! { half => 8 }, LEVELS, Packs::Nibbles),
        Format::Q5_0 => ("quantize/signed.glsl", context! { half => 16 }, LEVELS, Packs::FifthBits),
        Format::Q4_1 => ("quantize/line.glsl", context! { top => 15 }, LEVELS, Packs::Nibbles),
        Format::Q5_1 => ("quantize/line.glsl", context! { top => 31 }, LEVELS, Packs::FifthBits),
        Format::IQ4_NL => ("quantize/iq4_nl.glsl", context! {}, &[lib::ROUND_F16] as _, Packs::Nibbles),
        Format::Q2_K | Format::Q3_K | Format::Q4_K | Format::Q5_K | Format::Q6_K | Format::Q8_K => {
            return None;
        }
        Format::IQ1_S | Format::IQ1_M | Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S => return None,
        Format::IQ3_XXS | Format::IQ3_S | Format::IQ4_XS | Format::TQ1_0 | Format::TQ2_0 => return None,
        Format::MXFP4 | Format::NVFP4 => return None,
        Format::F16 | Format::BF16 | Format::F32 | Format::F64 => return None,
        Format::I8 | Format::I16 | Format::I32 | Format::I64 => return None,
    };
    Some(Row { template, holes, calls, packs })
}

/// Words that the function of a format returns.
pub(crate) fn words(format: Format) -> usize {
    format.spec().planes.iter().map(|plane| plane.bytes_per_block.div_ceil(4)).sum()
}

/// The name of a format's function.
pub(crate) fn function(format: Format) -> String {
    format!("round_{}", format.spec().name)
}

/// The quantization functions that a matvec's epilogue calls.
pub(crate) fn functions_of_results(e: &mut Emitter<'_>) -> Result<String, CodegenError> {
    let all: BTreeSet<Format> = formats(e).into_iter().collect();
    let alone: Vec<Format> = all.iter().copied().filter(|f| By::able(e.caps, *f) == By::One).collect();
    let mut text = functions(&alone, e.uses())?;
    for format in all {
        let by = By::able(e.caps, format);
        if by == By::One {
            continue;
        }
        e.extensions.insert("GL_KHR_shader_subgroup_shuffle");
        e.uses().subgroups = true;
        [lib::IS_NAN, lib::BYTE_OF, lib::ROUND_F16].into_iter().for_each(|function| e.uses().add(function));
        let own = if by == By::All { 1 } else { dot::BLOCK as u32 / dot::LANES };
        let (name, sum) = (by.function(format), format == Format::Q8_1);
        let holes =
            context! { name, format => format.spec().name, sum, own, neighbours => dot::BLOCK as u32 / own };
        text += &render("quantize/bytes_together.glsl", holes)?;
        text.push('\n');
    }
    Ok(text)
}

/// The functions `round_..` of `formats`, each once, with their helper functions.
pub(crate) fn functions(formats: &[Format], uses: &mut Uses) -> Result<String, CodegenError> {
    let mut rendered: BTreeMap<Format, String> = BTreeMap::new();
    let mut all_packs = Packs::None;
    for format in formats {
        let dtype = DType::Block(*format);
        let unknown = || CodegenError::Dtype { what: format!("rounding to {}", format.name()), dtype };
        let Row { template, holes, calls, packs } = row(*format).ok_or_else(unknown)?;
        calls.iter().for_each(|function| uses.add(*function));
        all_packs = all_packs.max(packs);
        let borders: Vec<(f64, f64)> = IQ4_LEVELS
            .windows(2)
            .map(|w| (f64::from(w[0]) / 2.0 + f64::from(w[1]) / 2.0, f64::from(w[1]) - f64::from(w[0])))
            .collect();
        let gap = borders[0].1;
        let own =
            context! { name => format.spec().name, words => words(*format), borders => borders, gap => gap };
        rendered.insert(*format, render(template, context! { ..holes, ..own })?);
    }
    let mut text: String = rendered.into_values().map(|function| function + "\n").collect();
    if all_packs != Packs::None {
        let fifth = all_packs == Packs::FifthBits;
        text = render("quantize/pack.glsl", context! { fifth => fifth })? + "\n" + &text;
    }
    Ok(text)
}

/// Which invocations quantize a block of a matvec's results.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// One invocation.
    One,
    /// Eight adjacent invocations, four elements each, read from shared memory.
    Eight,
    /// The 32 adjacent invocations that compute the block's elements.
    All,
}

impl By {
    /// The widest cooperation that the device supports.
    fn able(caps: &DeviceCaps, format: Format) -> By {
        let neighbours = |count| {
            caps.subgroup_shuffle
                && caps.has_fixed_subgroup_size()
                && caps.scheduled_subgroup_size().is_multiple_of(count)
        };
        match format {
            Format::Q8_0 | Format::Q8_1 if neighbours(dot::BLOCK as u32) => By::All,
            Format::Q8_0 | Format::Q8_1 if neighbours(dot::LANES) => By::Eight,
            _ => By::One,
        }
    }

    /// The guard and word index for the store of a word of quants, and the guard for the rest of the block. `None` for
    /// one invocation per block.
    fn own(self) -> Option<((&'static str, &'static str), &'static str)> {
        match self {
            By::One => None,
            By::Eight => Some((("", "part"), "if (part == 0u) ")),
            By::All => Some((("if (n % 4u == 0u) ", "n / 4u % 8u"), "if (n % 32u == 0u) ")),
        }
    }

    /// The name of a format's function.
    fn function(self, format: Format) -> String {
        match self {
            By::One => function(format),
            By::Eight | By::All => function(format) + "_together",
        }
    }
}

/// Whether the invocations that compute results also quantize them with shuffles. Those of one block must then be
/// adjacent.
pub(crate) fn neighbours(e: &Emitter<'_>, segment: &Segment) -> bool {
    let all = |output: &usize| format_of(e, *output).is_some_and(|f| By::able(e.caps, f) == By::All);
    segment.outputs.iter().any(all)
}

/// Emits the lines that quantize `x`, element `linear` of output `output`, together with the other elements of its
/// block, and store the block. Returns `false` and emits nothing unless adjacent invocations compute the elements of a
/// block.
pub(crate) fn each(
    e: &mut Emitter<'_>,
    output: usize,
    buffer: usize,
    linear: &Index,
    x: &str,
) -> Result<bool, CodegenError> {
    let Some(format) = format_of(e, output).filter(|format| By::able(e.caps, *format) == By::All) else {
        return Ok(false);
    };
    let words = e.fresh_name("words");
    e.line(format!("uint {words}[2];"));
    e.line(format!("{}({x}, {words});", By::All.function(format)));
    store(e, output, buffer, linear, By::All, &words)?;
    Ok(true)
}

/// The format that an output is quantized to, if any.
pub(crate) fn format_of(e: &Emitter<'_>, output: usize) -> Option<Format> {
    match e.body.op(output_root(e.body, output)) {
        Op::Quantize(format) => Some(*format),
        _ => None,
    }
}

/// Emits the lines that store `words` as one block of output `output` (a tensor of blocks, or a state of them). `first`
/// is the linear index of the block's first element before quantization.
pub(crate) fn store(
    e: &mut Emitter<'_>,
    output: usize,
    buffer: usize,
    first: &Index,
    by: By,
    words: &str,
) -> Result<(), CodegenError> {
    let root = output_root(e.body, output);
    let DType::Block(format) = e.body.ty(root).dtype else {
        return Err(CodegenError::Node(e.body.node_text(root.node)));
    };
    let at = e.atoms.unflatten(first, &e.body.ty(root).shape);
    let written = e.written(output as u32, &at)?;
    let to = e.index(&written.to)?.text;
    let name = e.fresh_name("to");
    let to = if to.contains(' ') { format!("({to})") } else { to };
    e.line(format!("const uint {name} = {to} / {}u;", dot::BLOCK));
    let planes: Vec<usize> = e.buffers[buffer].planes().iter().map(|(_, at)| *at).collect();
    let mut word = 0;
    for (plane, start) in format.spec().planes.iter().zip(planes) {
        let (count, start) = (plane.bytes_per_block / 4, start / 4);
        let half = format!("{}u + {name}", 2 * start);
        let mut store = |at: &str, word: &str| {
            e.store_element(buffer, &format!("{start}u + {name}{at}"), &format!("{words}[{word}]"))
        };
        let line = match (count, word, by.own()) {
            // Each cooperating invocation holds one word of the quants; the first also holds what follows.
            (_, 0, Some(((guard, at), _))) => {
                format!("{guard}{}", store(&format!(" * {count}u + {at}"), "0"))
            }
            (0, _, Some((_, first))) => {
                format!("{first}{{ {} }}", e.buffers[buffer].store_half(&half, &format!("{words}[1]")))
            }
            (1, _, Some((_, first))) => format!("{first}{}", store("", "1")),
            (0, _, None) => e.buffers[buffer].store_half(&half, &format!("{words}[{word}]")),
            (1, _, None) => store("", &word.to_string()),
            (_, 0, None) => {
                let store = store(&format!(" * {count}u + word"), "word");
                format!("[[unroll]] for (uint word = 0u; word < {count}u; ++word) {store}")
            }
            (_, _, _) => return Err(CodegenError::Node(e.body.node_text(root.node))),
        };
        e.line(written.guarded(&line));
        word += count.max(1);
    }
    Ok(())
}

/// What a matvec's template needs to quantize the results of a segment: the function and the store lines of each block
/// output. Outputs that the epilogue quantizes by itself ([`each`]) are left out.
pub(crate) fn of_segment(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    segment: &Segment,
    batch: &Index,
    buffers: &[usize],
) -> Result<Vec<Hole>, CodegenError> {
    let mut found = vec![];
    for output in &segment.outputs {
        let Some(format) = format_of(e, *output) else { continue };
        let by = By::able(e.caps, format);
        if by == By::All {
            continue;
        }
        let lines = e.scoped_lines(|e| {
            let (row, column) = (e.atom(&form.m, "m"), e.atom(&segment.n, "n0"));
            let all = Shape::new(vec![form.batch.numel(), form.m.clone(), segment.n.clone()]);
            let first = e.atoms.flatten(&[batch.clone(), row, column], &all);
            store(e, *output, buffers[*output], &first, by, "words")
        })?;
        found.push(context! {
            words => words(format), function => by.function(format), store => lines.join("\n"),
            by_eight => by == By::Eight,
        });
    }
    Ok(found)
}

/// Floats of shared memory that stage a tile's results for quantization, for each quantized output of a segment.
pub(crate) fn waiting(e: &Emitter<'_>, form: &ContractionForm, m: u32, tiles: &[u32]) -> Vec<u32> {
    let mut floats: Vec<u32> = vec![];
    for (segment, tile) in form.segments.iter().zip(tiles) {
        let waits = |o: &&usize| format_of(e, **o).is_some_and(|format| By::able(e.caps, format) != By::All);
        let count = segment.outputs.iter().filter(waits).count();
        floats.resize(floats.len().max(count), 0);
        floats[..count].iter_mut().for_each(|floats| *floats = (*floats).max(m * tile));
    }
    floats
}

/// The formats that the kernel's outputs are quantized to.
pub(crate) fn formats(e: &Emitter<'_>) -> Vec<Format> {
    (0..e.body.outputs().len()).filter_map(|output| format_of(e, output)).collect()
}

/// Blocks in a tensor of `numel` elements; `None` if they do not fill whole blocks.
pub(crate) fn blocks(numel: &Dim) -> Option<Dim> {
    numel.div_exact(&dot::BLOCK.into())
}
