//! Few rows times quantized weights by integer dot products: each workgroup rounds the rows to 8 bits in shared
//! memory, then its subgroups take columns in turn, an invocation 32 weights at a time.

use minijinja::{Value as Hole, context};
use tallow_ir::caps::DeviceType;
use tallow_ir::dot::{self, Packing};
use tallow_ir::form::{ContractionForm, Segment};
use tallow_ir::index::{AtomDef, Index};
use tallow_ir::{DType, NodeId};

use super::matvec::{batch_at, columns_grid, left_at, prologue, segment_groups, stores};
use super::{Parts, finish, floor_pow2, operand, reduction, rounding, whole};
use crate::emit::{Anchor, Emitter};
use crate::kernel::{CodegenError, Count, Kernel};

/// Invocations of a workgroup, at most and at least: as many as round the rows in two steps of four elements. Rounding
/// is repeated in each workgroup, so the more share it the better (on an H200, 14336 elements times 4096 columns of Q4_0
/// take 14.4 us in workgroups of 256, 9.9 us of 512, 8.4 us of 1024).
const MAX_WORKGROUP: u32 = 1024;
const MIN_WORKGROUP: u32 = 128;

/// Widest tile, unless an epilogue needs more columns together: wider ones save no more rounding that can be measured.
const MAX_TILE: u32 = 64;

/// Widest tile, for results wider than the grid.
const MAX_COLUMNS: u32 = 256;

/// Workgroups that a tile should leave: about as many as large devices have multiprocessors.
const WANTED_WORKGROUPS: i64 = 128;

/// Columns that a subgroup takes at a time, for one matmul: then each read of shared memory serves two. Not of formats
/// with blocks of 256, whose unpacking takes too many registers (Q4_K, 4096 x 14336: 9.0 us by one, 11.0 us by two).
const COLUMNS: u32 = 2;

pub(crate) fn kernel(mut e: Emitter<'_>, form: &ContractionForm) -> Result<Kernel, CodegenError> {
    let rounding = dot::rounding(e.body, form.lhs);
    let lhs = rounding.map(|id| e.body.node(id).operands[0]);
    let refused = || CodegenError::Node(e.body.node_text(form.lhs.node));
    let (Some(lhs), Some(m), Some(k)) = (lhs, form.m.as_const(), form.k.as_const()) else {
        return Err(refused());
    };
    if !dot::supported(e.body, form, e.caps) {
        return Err(refused());
    }
    let (m, blocks) = (m as u32, (k / dot::BLOCK) as u32);
    let least = match e.caps.device_type {
        // A tile of whole blocks has many columns: then a subgroup each, or they would wait for each other.
        DeviceType::Discrete | DeviceType::Integrated | DeviceType::Virtual | DeviceType::Other
            if !rounding::formats(&e).is_empty() =>
        {
            MAX_WORKGROUP
        }
        DeviceType::Cpu
        | DeviceType::Discrete
        | DeviceType::Integrated
        | DeviceType::Virtual
        | DeviceType::Other => MIN_WORKGROUP,
    };
    let workgroup = floor_pow2((m * blocks * 4).clamp(least, MAX_WORKGROUP));
    let workgroup = workgroup.min(floor_pow2(e.caps.max_workgroup_invocations)).max(e.caps.subgroup_size);
    let mut used = reduction::Used::default();
    let batch = e.atom(&form.batch.numel(), "0u");
    prologue(&mut e, &mut used, form, m, workgroup)?;
    let buffers: Vec<usize> = (0..e.body.outputs().len()).map(|o| e.result(o as u32)).collect();
    let limits = e.caps.max_workgroup_count;
    let columns: i64 = form.segments.iter().map(|s| s.n.max_value()).sum();
    let tile = floor_pow2((columns / WANTED_WORKGROUPS).clamp(1, MAX_TILE.into()) as u32);
    let tile = tile.max(workgroup / e.caps.subgroup_size);
    let mut tiles: Vec<u32> = form.segments.iter().map(|s| s.tile.max(tile)).collect();
    // More columns than workgroups: wider tiles.
    while columns_grid(form, &tiles, limits[0]).most() > u64::from(limits[0]) && tiles[0] < MAX_COLUMNS {
        tiles.iter_mut().for_each(|t| *t *= 2);
    }
    let grid = [columns_grid(form, &tiles, limits[0]), Count::constant(1), Count::constant(1)];
    whole("matvec", &grid)?;
    e.open(); // a row
    let row = e.atom(&form.m, "m");
    e.open(); // an element
    let inner = e.atom(&form.k, "k");
    let at = left_at(&mut e, form, &batch, &row, &inner);
    let x = e.value(lhs, &at)?;
    let x_lines = e.close().join("\n");
    let m_lines = e.close().join("\n");
    let mut text = format!("to_int( round_of( round_f16( subgroup {x_lines}{m_lines}{}", x.text);
    let mut segments = vec![];
    let mut tile_floats = 0;
    let waiting = rounding::waiting(&e, form, m, &tiles);
    for (segment, &tile) in form.segments.iter().zip(&tiles) {
        tile_floats = tile_floats.max(segment.anchors.len() as u32 * m * tile);
        segments.push(segment_holes(
            &mut e,
            form,
            segment,
            &batch,
            (m, tile, workgroup),
            &buffers,
            &mut text,
        )?);
    }
    let rounded = dot::shared_bytes(m.into(), k) as u32;
    let needs = rounded + 4 * (tile_floats + waiting.iter().sum::<u32>()) + used.shared_bytes(workgroup);
    if needs > e.caps.shared_memory_bytes {
        return Err(CodegenError::SharedMemory {
            what: "matvec".into(),
            needs,
            has: e.caps.shared_memory_bytes,
        });
    }
    // Where all subgroups have one size, loops have known lengths. (Writing them out costs registers: 9.5 us become 10.7.)
    let fixed = e.caps.subgroup_size_min == e.caps.subgroup_size_max;
    let (size, subgroups) = if fixed {
        (format!("{}u", e.caps.subgroup_size), format!("{}u", workgroup / e.caps.subgroup_size))
    } else {
        ("gl_SubgroupSize".into(), "gl_NumSubgroups".into())
    };
    let count = blocks.div_ceil(e.caps.subgroup_size);
    let steps = if fixed { format!("{count}u") } else { format!("({blocks}u + {size} - 1u) / {size}") };
    let whole = fixed && blocks % e.caps.subgroup_size == 0;
    for extension in ["GL_EXT_integer_dot_product", "GL_KHR_shader_subgroup_shuffle"] {
        e.extensions.insert(extension);
    }
    let functions = used.render(workgroup, e.caps)? + &rounding::functions(&rounding::formats(&e))?;
    let parts = Parts {
        kind: "matvec",
        template: "matvec_dot.comp",
        workgroup,
        grid,
        functions,
        text,
        holes: context! {
            segments => segments, m => m, blocks => blocks, tile_floats => tile_floats, m_lines => m_lines,
            x_lines => x_lines, x => x.text, size => size, subgroups => subgroups,
            steps => steps, whole => whole, rounded => waiting, block => dot::BLOCK,
        },
    };
    finish(e, parts)
}

fn segment_holes(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    segment: &Segment,
    batch: &Index,
    (m, tile, workgroup): (u32, u32, u32),
    buffers: &[usize],
    text: &mut String,
) -> Result<Hole, CodegenError> {
    // Several matmuls are several streams of weights already.
    let small = segment.anchors.iter().all(|id| small_blocks(e, *id));
    let most = if segment.anchors.len() == 1 && small { COLUMNS } else { 1 };
    let columns = (tile * e.caps.subgroup_size / workgroup).clamp(1, most);
    let groups = segment_groups(e, segment, tile);
    e.open(); // the segment
    let mut anchors = vec![];
    for (i, id) in segment.anchors.iter().enumerate() {
        e.open(); // a column
        let weight = format!("w{i}");
        let (load, packing) = weights(e, form, *id, batch, &weight)?;
        e.line(load);
        let load = e.close().join("\n");
        text.push_str(&load);
        let comment = format!("%{} = {}", id.0, e.body.node_text(*id));
        let acc = format!("acc[({}u + m) * {columns}u + r]", i as u32 * m);
        anchors.push(context! {
            load => load, comment => comment, acc => acc, weight => weight,
            halves => packing == Packing::Halves, offset => packing == Packing::Offset,
        });
    }
    e.open(); // the epilogue
    let depth = e.depth();
    let row = e.atom(&form.m, "m");
    let column = e.atom(&segment.n, "n");
    for (i, id) in segment.anchors.iter().enumerate() {
        let row = format!("{}u + m * {tile}u", i as u32 * m * tile);
        let anchor = Anchor::Tile { array: "tile".into(), row, base: "column0".into(), depth, call: false };
        e.anchors.insert(*id, anchor);
    }
    stores(e, form, segment, [batch, &row, &column], buffers)?;
    let store = e.close().join("\n");
    let blocks = rounding::of_segment(e, form, segment, batch, buffers)?;
    let prelude = e.close().join("\n");
    let last = e.dim(&(&segment.n - &tallow_ir::Dim::one()));
    let n = e.dim(&segment.n);
    text.push_str(&store);
    text.push_str(&prelude);
    Ok(context! {
        groups => groups, tile => tile, columns => columns, accs => segment.anchors.len() as u32 * m * columns,
        anchors => anchors, store => store, prelude => prelude, last => last, n => n, blocks => blocks,
    })
}

/// Whether a matmul's weights have a scale of their own for each 32.
fn small_blocks(e: &Emitter<'_>, matmul: NodeId) -> bool {
    dot::weights(e.body, matmul).is_some_and(|(_, format)| format.block_elements() as i64 == dot::BLOCK)
}

/// The line that unpacks 32 weights from element `k0` of column `n` on, and what it gives.
fn weights(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    id: NodeId,
    batch: &Index,
    name: &str,
) -> Result<(String, Packing), CodegenError> {
    let refused = |e: &Emitter<'_>| CodegenError::Node(e.body.node_text(id));
    let rhs = e.body.node(id).operands[1];
    let shape = e.body.ty(rhs).shape.clone();
    let column = e.atom(&shape.dims()[shape.rank() - 1].clone(), "n");
    let probe = e.atoms.fresh(&form.k, AtomDef::Free);
    let mut at = batch_at(e, &form.batch, &shape, batch);
    at.extend([e.atoms.index(probe), column]);
    let Some((buffer, base)) = operand::packed(e, rhs, &at, probe) else { return Err(refused(e)) };
    let base = e.index(&base)?;
    let DType::Block(format) = e.buffers[buffer].dtype else { return Err(refused(e)) };
    let Some(packing) = dot::packing(format) else { return Err(refused(e)) };
    let ty = match packing {
        Packing::Halves => "vec4",
        Packing::Offset => "vec2",
        Packing::Scale => "float",
    };
    let b = e.buffers[buffer].binding;
    Ok((format!("const {ty} {name} = packed{b}({} + k0, q);", base.text), packing))
}
