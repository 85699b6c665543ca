//! Matvec of quantized weights with integer dot products. Each workgroup quantizes the activations to 8 bits in shared
//! memory, unless another kernel has done so. Its subgroups then loop over columns; an invocation multiplies 32 or 64
//! weights of several columns at a time.

use minijinja::{Value as Hole, context};
use tallow_ir::dot::{self, Packing};
use tallow_ir::form::{ContractionForm, Segment, passes};
use tallow_ir::index::{AtomDef, Index};
use tallow_ir::{Dim, NodeId, Value};

use super::column_groups;
use super::epilogue;
use super::epilogue_prefetch;
use super::grid::{columns_grid, segment_groups};
use super::operands::{batch_at, left_at};
use super::partition::{ColumnLoop, Partition, Products, Unroll};
use super::prologue::{QUAD, keep, prologue};
use super::sums::{self, DeferredReduction, EpilogueInputs, Sums};
use crate::assemble::{Parts, finish, whole};
use crate::blocks::{operand, quantize_results, reduction, row_loop};
use crate::emit::Emitter;
use crate::kernel::{CodegenError, Count, Kernel};
use crate::schedule::{Instruction, Schedule};
use crate::template::render;

/// Prefetch distance in weights per anchor: two columns for formats that are unpacked 32 at a time, one for 64 at a
/// time. In a loop over columns, the distance is one column. (H200 with a barrier, 4096 x 4096: Q8_0 with a distance of
/// two 7.5 us, of one 8.0; Q4_K 7.2 and 6.2.)
const AHEAD: u32 = 64;

/// Columns that an invocation computes together, while its part of the activations stays in registers. Unrolling more
/// costs more in instruction fetch than it saves (H200, 14336 x 4096 of Q4_0 back to back: seven columns 9.9 us, one
/// 8.4).
const TOGETHER: u32 = 2;

/// Maximum registers for weight words per invocation, of the 64 at which two workgroups of 512 fit on an SM.
const MOST_WORDS: u32 = 40;

/// Maximum number of passes that are unrolled if two columns at a time do not divide them. Only weights of few words
/// gain (H200, 14336 x 4096, seven passes, unrolled and not: Q2_K, 7 words, 6.6 and 7.8 us; Q3_K, 10 words, 8.6 and
/// 9.1; Q4_K, 12 words, 9.4 and 8.3; Q6_K, 15 words, 12.6 and 11.8). Formats that are unpacked 32 at a time take the
/// same either way: Q4_0 7.9, Q8_0 14.6.
const WRITTEN: u32 = 8;
const SHORT_WORDS: u32 = 10;

pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &ContractionForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let lhs = dot::rounding(e.body, form.lhs).map(|id| e.body.node(id).operands[0]);
    let refused = || CodegenError::Node(e.body.node_text(form.lhs.node));
    let (Some(m), Some(k)) = (form.m.as_const(), form.k.as_const()) else {
        return Err(refused());
    };
    if !dot::supported(e.body, form, e.caps) {
        return Err(refused());
    }
    let (m, blocks) = (m as u32, (k / dot::BLOCK) as u32);
    let workgroup = schedule.workgroup;
    let partition = Partition::new(&e, k as u32, schedule);
    let mut used = reduction::Used::default();
    let batch = e.atom(&form.batch.numel(), "0u");
    let buffers: Vec<usize> = (0..e.body.outputs().len()).map(|o| e.result(o as u32)).collect();
    let in_memory = match (lhs, dot::blocks(e.body, form.lhs)) {
        (None, Some(param)) => Some(operand::activations(&mut e, param)),
        (None, None) => return Err(refused()),
        (Some(_), _) => None,
    };
    let tiles = partition.tiles(&e, form);
    let most = e.caps.max_workgroup_count[0];
    let grid = [columns_grid(form, &tiles, most), Count::constant(1), Count::constant(1)];
    whole("matvec", &grid)?;
    let run = run(m * blocks, workgroup);
    let kept = keep(&mut e, form, lhs, &batch, (workgroup, run))?;
    let early = epilogue_prefetch::issue(&mut e, form, &batch, (m, &tiles, workgroup))?;
    let (mut loops, mut ahead, mut slots, mut before) = (vec![], vec![], 0, vec![]);
    for (segment, &tile) in form.segments.iter().zip(&tiles) {
        let groups = segment_groups(&mut e, segment, tile);
        let elements = elements(&e, segment);
        let walk = partition.column_loop(
            tile,
            elements,
            unroll(elements, words(&e, segment), segment, m),
            &before,
            &groups,
        );
        before.push(groups);
        e.open(); // the segment
        let parts = parts(&e, segment, &walk)?;
        slots = slots.max(walk.slots * parts.len() as u32);
        let mut fetches = vec![];
        for part in &parts {
            let lines = fetch(&mut e, form, part.anchor, &batch)?;
            let slot = part.slot(if walk.along { "along" } else { "pass" }, walk.slots);
            fetches.push(context! { lines, k0 => &part.k0, slot });
        }
        let prelude = e.close().join("\n");
        let last = e.dim(&(&segment.n - &Dim::one()));
        ahead.push(context! {
            here => &walk.here, column0 => &walk.column0, ahead_prelude => prelude, depth => walk.depth,
            item => &walk.item, column => &walk.column, last, fetches, along => walk.along,
        });
        loops.push((walk, parts));
    }
    let first = in_memory.is_some() && m == 1 && of_one_place(&loops);
    let text = render(
        "matvec_prefetch.glsl",
        context! { slots, segments => ahead, words => operand::packed_words(&e) },
    )?;
    e.line(text.trim_end());
    // If the products do not depend on the prologue, and it needs one pass over register-cached inputs, its partials
    // are combined after the products.
    let once = passes(e.body, &form.prologue).into_iter().all(|pass| pass == 1);
    let late = match &kept {
        Some(walk) if in_memory.is_some() && once => {
            let reduces: Vec<_> = form.prologue.iter().collect();
            let own = walk.in_groups(&mut e, |e| reduction::accumulate(e, &reduces, walk))?;
            Some(DeferredReduction { own, walk })
        }
        _ => {
            prologue(&mut e, &mut used, form, m, (workgroup, run), kept.as_ref())?;
            None
        }
    };
    let (x_lines, m_lines) = match (lhs, &kept) {
        (None, _) => Default::default(),
        (Some(lhs), Some(kept)) => (kept_activations(&mut e, form, lhs, &batch, kept)?, String::new()),
        (Some(lhs), None) => activations(&mut e, form, lhs, &batch, run)?,
    };
    let lanes = dot::BLOCK as u32 / run;
    let rounds = (m * blocks * lanes).div_ceil(workgroup);
    // With an epilogue prefetch, an invocation uses more than 32 registers, so that only one workgroup of 1024 fits on
    // an SM. More registers then do not reduce occupancy. Without the prefetch, two workgroups fit, and overlap if no
    // barrier is between kernels. H200, Q4_0: 4096 x 14336 back to back takes 8.1 us, and 9.4 with more registers; a
    // greedy step of the 8B shape takes 17 us less with them. The quantized bytes are the same either way.
    let spends = early.is_some() && rounds <= 2;
    let functions = match lhs {
        None => "",
        Some(_) if spends => "low_byte( round_f16( ",
        Some(_) => "is_nan( byte_of( round_f16( ",
    };
    let mut text = format!("{functions}subgroup {x_lines}{m_lines}");
    let mut segments = vec![];
    let waiting = quantize_results::waiting(&e, form, m, &tiles);
    let (reduced, reduced_bytes) = column_groups::declarations(&e, form, &tiles)?;
    let part_floats = sums::part_floats(form, m, &tiles);
    let around = EpilogueInputs { late: late.as_ref(), early: early.as_ref() };
    for (segment, (walk, parts)) in form.segments.iter().zip(&loops) {
        segments.push(segment_holes(
            &mut e,
            form,
            segment,
            &batch,
            (&partition, walk, parts, m, part_floats, around),
            &buffers,
            (&mut used, &mut text),
        )?);
    }
    let rounded = lhs.map_or(0, |_| dot::shared_bytes(m.into(), (blocks * 32).into()) as u32);
    let tile_floats = part_floats * partition.parts;
    let needs = rounded
        + 4 * (tile_floats + waiting.iter().sum::<u32>())
        + reduced_bytes
        + used.shared_bytes(workgroup);
    if needs > e.caps.shared_memory_bytes {
        return Err(CodegenError::SharedMemory {
            what: "matvec".into(),
            needs,
            has: e.caps.shared_memory_bytes,
        });
    }
    for extension in
        ["GL_EXT_integer_dot_product", "GL_KHR_shader_subgroup_shuffle", "GL_KHR_shader_subgroup_vote"]
    {
        e.extensions.insert(extension);
    }
    let functions =
        used.render(workgroup, e.caps)? + &quantize_results::functions_of_results(&mut e)? + &reduced;
    let parts = Parts {
        schedule,
        template: "matvec_dot.comp",
        grid,
        functions,
        text,
        holes: context! {
            segments => segments, m => m, blocks => blocks, tile_floats => tile_floats, part_floats => part_floats,
            parts => partition.parts, m_lines => m_lines, x_lines => x_lines, size => format!("{}u", e.caps.scheduled_subgroup_size()), rounded => waiting, kept => kept.is_some(),
            elements => run, words => run / 4, lanes => lanes, masks => masks(lanes), sum_masks => masks(lanes / 2), upper => dot::upper(m.into(), blocks.into()),
            in_memory, first, rounds, spends,
        },
    };
    finish(e, parts)
}

/// Elements that an invocation multiplies at a time: the most that any of the segment's formats unpacks at once.
fn elements(e: &Emitter<'_>, segment: &Segment) -> u32 {
    let packing = |id: &NodeId| dot::packing(dot::weights(e.body, *id)?.1);
    segment.anchors.iter().filter_map(packing).map(|p| p.elements()).max().unwrap_or(dot::BLOCK) as u32
}

/// Registers (32-bit words) for the weights of one column that an invocation multiplies at a time, over all anchors.
fn words(e: &Emitter<'_>, segment: &Segment) -> u32 {
    let elements = elements(e, segment);
    let words = |id: &NodeId| {
        let (_, format) = dot::weights(e.body, *id)?;
        Some(operand::words_of(format) * elements / dot::packing(format)?.elements() as u32)
    };
    segment.anchors.iter().filter_map(words).sum()
}

/// The multiply instruction and the elements per invocation and step, taken from the segment with the most columns.
pub(crate) fn products(e: &Emitter<'_>, form: &ContractionForm) -> Products {
    let widest = form.segments.iter().max_by_key(|s| s.n.max_value());
    let elements = widest.map_or(dot::BLOCK, |s| elements(e, s).into());
    Products { instruction: Instruction::Dot4, elements }
}

/// How many columns are computed together, prefetched and unrolled, given the elements and weight words per column.
fn unroll(elements: u32, words: u32, segment: &Segment, m: u32) -> Unroll {
    let sums = segment.anchors.len() as u32 * m;
    // Two columns at a time need registers for the weights of both.
    let fits = m == 1 && 2 * words <= MOST_WORDS;
    let together = if fits { TOGETHER } else { (TOGETHER / sums.max(1)).max(1) };
    let short = sums == 1 && i64::from(elements) > dot::BLOCK && words <= SHORT_WORDS;
    Unroll { together, depth: (AHEAD / elements).max(1), written: if short { WRITTEN } else { 0 } }
}

/// Weights of one anchor that are unpacked at once: all that an invocation multiplies at a time, or half of them.
struct Part {
    anchor: NodeId,
    /// Index of the anchor in the segment.
    number: u32,
    packing: Packing,
    /// K index of the first element, as a GLSL expression.
    k0: String,
    /// Which half of the invocation's elements, if it is not all of them.
    half: Option<u32>,
    /// Index of this part in the segment, and the number of parts.
    at: u32,
    of: u32,
}

impl Part {
    /// The index in `next` of its prefetched words, for the column or step that `pass` counts.
    fn slot(&self, pass: &str, slots: u32) -> String {
        match (slots, self.of) {
            (1, _) => format!("{}", self.at),
            (_, 1) if pass == "s" => pass.into(),
            (_, 1) => format!("{pass} % {slots}u"),
            _ => format!("{pass} % {slots}u * {}u + {}u", self.of, self.at),
        }
    }
}

fn parts(e: &Emitter<'_>, segment: &Segment, walk: &ColumnLoop) -> Result<Vec<Part>, CodegenError> {
    let mut parts = vec![];
    let item = walk.clamped();
    for (number, anchor) in segment.anchors.iter().enumerate() {
        let refused = || CodegenError::Node(e.body.node_text(*anchor));
        let (_, format) = dot::weights(e.body, *anchor).ok_or_else(refused)?;
        let packing = dot::packing(format).ok_or_else(refused)?;
        let first = match packing {
            Packing::Scale | Packing::Offset | Packing::Halves | Packing::Pairs => {
                format!("{item} * {}u", walk.elements)
            }
            Packing::Quarters => format!("{item} / 2u * 128u + {item} % 2u * 32u"),
        };
        for half in 0..walk.elements / packing.elements() as u32 {
            let k0 = if half == 0 { first.clone() } else { format!("{first} + {}u", dot::BLOCK) };
            let half = (i64::from(walk.elements) > packing.elements()).then_some(half);
            parts.push(Part {
                anchor: *anchor,
                number: number as u32,
                packing,
                k0,
                half,
                at: parts.len() as u32,
                of: 0,
            });
        }
    }
    let of = parts.len() as u32;
    parts.iter_mut().for_each(|part| part.of = of);
    Ok(parts)
}

/// The sets of activation blocks that an invocation needs: adjacent blocks, and blocks two apart.
fn sets(walk: &ColumnLoop, parts: &[Part], m: u32, blocks: u32) -> Vec<Hole> {
    let row = if m == 1 { String::new() } else { format!("m * {blocks}u + ") };
    let item = walk.clamped();
    let quarters = |part: &&Part| part.packing == Packing::Quarters;
    let mut sets = vec![];
    if parts.iter().any(|part| !quarters(&part)) {
        sets.push(match walk.elements {
            32 => context! { name => "", first => format!("{row}{item}"), stride => 0 },
            _ => context! { name => "", first => format!("{row}{item} * 2u"), stride => 1 },
        });
    }
    if parts.iter().any(|part| quarters(&part)) {
        let first = format!("{row}{item} / 2u * 4u + {item} % 2u");
        sets.push(context! { name => if sets.is_empty() { "" } else { "2" }, first, stride => 2 });
    }
    sets
}

/// Whether an invocation uses the same activations for all columns of all segments.
fn of_one_place(loops: &[(ColumnLoop, Vec<Part>)]) -> bool {
    let place = |(walk, parts): &(ColumnLoop, Vec<Part>)| {
        let quarters = parts.iter().filter(|part| part.packing == Packing::Quarters).count();
        (walk.item.clone(), walk.elements, quarters > 0, quarters < parts.len())
    };
    let once = |(walk, _): &(ColumnLoop, Vec<Part>)| !walk.along && walk.steps.is_none();
    loops.iter().all(once) && loops.windows(2).all(|pair| place(&pair[0]) == place(&pair[1]))
}

/// Contiguous activations that an invocation quantizes at a time: four if that covers all rows in one pass, else eight.
fn run(blocks: u32, workgroup: u32) -> u32 {
    if blocks * 8 <= workgroup { QUAD } else { 2 * QUAD }
}

/// The lines that set `x` to group `g` of `run` activations of a row, with a vector load if they are contiguous. Also
/// returns the lines that are hoisted to the row.
pub(crate) fn activations(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    lhs: Value,
    batch: &Index,
    run: u32,
) -> Result<(String, String), CodegenError> {
    e.open(); // one row
    let row = e.atom(&form.m, "m");
    e.open(); // one group
    let g = e.atom(&Dim::constant(form.k.max_value() / i64::from(run)), "g");
    let j = e.set_group(run);
    e.open(); // one element
    let j = e.bind_atom(j, "j");
    let inner = e.atoms.add(&g.scale(&Dim::constant(run.into())), &j);
    let at = left_at(e, form, batch, &row, &inner);
    let x = e.value(lhs, &at)?;
    e.line(format!("x[j] = {};", x.text));
    e.close_block(&format!("[[unroll]] for (uint j = 0u; j < {run}u; ++j)"));
    e.group = None;
    Ok((e.close().join("\n"), e.close().join("\n")))
}

/// The lines that set `x` to a group of register-cached activations.
pub(crate) fn kept_activations(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    lhs: Value,
    batch: &Index,
    walk: &row_loop::RowLoop,
) -> Result<String, CodegenError> {
    walk.in_groups(e, |e| {
        e.open(); // the row
        walk.open_steps(e);
        walk.open_group(e);
        let at = left_at(e, form, batch, &walk.row, &walk.i);
        let x = e.value(lhs, &at)?;
        e.line(format!("x[j] = {};", x.text));
        walk.close_group(e, vec![]);
        let lines = e.close();
        Ok([e.close(), lines].concat().join("\n"))
    })
}

/// Shuffle-xor masks of a butterfly reduction over this many neighbouring invocations.
fn masks(neighbours: u32) -> Vec<u32> {
    (0..neighbours.ilog2()).map(|bit| 1 << bit).collect()
}

fn segment_holes(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    segment: &Segment,
    batch: &Index,
    (partition, walk, parts, m, part_floats, around): (
        &Partition,
        &ColumnLoop,
        &[Part],
        u32,
        u32,
        EpilogueInputs<'_>,
    ),
    buffers: &[usize],
    (used, text): (&mut reduction::Used, &mut String),
) -> Result<Hole, CodegenError> {
    let tile = walk.tile;
    e.open(); // the segment
    let pass = if walk.once || walk.written { "pass" } else { "u" };
    let accs = segment.anchors.len() as u32 * m;
    let blocks = (form.k.max_value() / dot::BLOCK) as u32;
    let sets = sets(walk, parts, m, blocks);
    let apart = if sets.len() > 1 { "2" } else { "" };
    let mut anchors = vec![];
    for part in parts {
        let next = format!("next[{}]", part.slot(if walk.along { "s" } else { pass }, walk.slots));
        let ahead = match walk.depth < walk.slots {
            true => format!("next[{}]", part.slot(&format!("({pass} + {}u)", walk.depth), walk.slots)),
            false => next.clone(),
        };
        let unpack = unpack(e, form, part, batch, &next)?;
        let fetch = fetch(e, form, part.anchor, batch)?;
        text.push_str(&unpack);
        text.push_str(&fetch);
        let comment = format!("%{} = {}", part.anchor.0, e.body.node_text(part.anchor));
        let acc = walk.acc(accs, m, part.number);
        // The components of the activations' scales and sums that belong to this part.
        let (of, both, sums) = match part.half {
            None => ("", "", "sums.x + sums.y"),
            Some(0) => (".x", ".xy", "sums.x + sums.y"),
            Some(_) => (".y", ".zw", "sums.z + sums.w"),
        };
        let packing = match part.packing {
            Packing::Scale => "scale",
            Packing::Offset => "offset",
            Packing::Halves => "halves",
            Packing::Pairs => "pairs",
            Packing::Quarters => "quarters",
        };
        anchors.push(context! {
            unpack, fetch, comment, ahead, packing, of, both, sum => sums, k0 => &part.k0, acc,
            set => apart, at => 2 * part.half.unwrap_or(0), halves => part.packing.elements() / 16,
        });
    }
    let sums = Sums { m, tile, workgroup: partition.workgroup, parts: partition.parts, part_floats, around };
    let (prelude, end) = epilogue::end(e, used, form, segment, batch, buffers, &sums)?;
    let last = e.dim(&(&segment.n - &Dim::one()));
    text.push_str(&prelude);
    text.push_str(&end);
    Ok(context! {
        accs, anchors, sets, prelude, last, end, part_at => partition.part_at(part_floats), ..walk.holes()
    })
}

/// The call, up to its last argument, that issues the loads of the weights from element `k0` of column `n`.
fn fetch(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    id: NodeId,
    batch: &Index,
) -> Result<String, CodegenError> {
    e.open(); // one column
    let (b, base, _) = weights(e, form, id, batch)?;
    e.line(format!("fetch{b}({base} + k0, "));
    Ok(e.close().join("\n"))
}

/// The line that unpacks the prefetched words `next` of the weights from element `k0` of column `n`.
fn unpack(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    part: &Part,
    batch: &Index,
    next: &str,
) -> Result<String, CodegenError> {
    e.open(); // one column
    let (b, base, packing) = weights(e, form, part.anchor, batch)?;
    let ty = match packing {
        Packing::Quarters => "mat2x4",
        Packing::Pairs | Packing::Halves => "vec4",
        Packing::Offset => "vec2",
        Packing::Scale => "float",
    };
    e.line(format!("const {ty} w = packed{b}({base} + k0, {next}, q);"));
    Ok(e.close().join("\n"))
}

/// The binding of a matmul's weights, the index of the first element of column `n`, and the packing.
fn weights(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    id: NodeId,
    batch: &Index,
) -> Result<(u32, String, Packing), CodegenError> {
    let refused = |e: &Emitter<'_>| CodegenError::Node(e.body.node_text(id));
    let rhs = e.body.node(id).operands[1];
    let shape = e.body.ty(rhs).shape.clone();
    let column = e.atom(&shape.dims()[shape.rank() - 1].clone(), "n");
    let probe = e.atoms.fresh(&form.k, AtomDef::Free);
    let mut at = batch_at(e, &form.batch, &shape, batch);
    at.extend([e.atoms.index(probe), column]);
    let Some((_, format)) = dot::weights(e.body, id) else { return Err(refused(e)) };
    let Some((buffer, base)) = operand::packed(e, rhs, format, &at, probe) else { return Err(refused(e)) };
    let base = e.index(&base)?;
    let Some(packing) = dot::packing(format) else { return Err(refused(e)) };
    Ok((e.buffers[buffer].binding, base.text, packing))
}
