//! Schedules: the tunable parameters of a kernel. All schedules of a fusion compute the same results, up to the
//! summation order; only their speed differs.
//!
//! [`schedules`](crate::schedules) lists the candidates for a fusion, the cost model's default first.
//! [`kernel`](crate::kernel) generates the default, which depends only on the fusion and the device's capabilities. A
//! caller that has measured the candidates passes its choice to [`compile_scheduled`](crate::compile_scheduled).

use std::collections::HashMap;
use std::fmt;

use sha2::{Digest, Sha256};
use tallow_ir::{DeviceCaps, Dim, Fusion, Op, TensorType};

use crate::instruction::Instruction;
use crate::template;

/// How a kernel computes its fusion. The printed form is compact: `matmul coopmat 128x128x32 split2 wg128`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The multiply instruction of contractions and attention.
    pub instruction: Option<Instruction>,
    /// The output tile of a workgroup.
    pub tile: Tile,
    /// Split-K: how the reduced extent is divided among workgroups or subgroups.
    pub split: Split,
    /// Persistent tiles: output tiles that a workgroup computes one after another.
    pub tiles_per_workgroup: u32,
    /// Prefetch distance: K tiles of a matmul, or columns of weights of a matvec, whose loads are in flight beside those
    /// that are multiplied. Indexed additions: terms of an invocation that are loaded together.
    pub prefetch: u32,
    /// Where the epilogue reads the accumulators. For attention: where softmax reads the scores.
    pub epilogue: Epilogue,
    /// Invocations per workgroup.
    pub workgroup: u32,
    /// The subgroup size that the pipeline requests. `None` if the algorithm works with any size, or if the device
    /// cannot control it.
    pub subgroup: Option<u32>,
}

/// The algorithm of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// One invocation per element, or per vector of contiguous elements.
    Map,
    /// One workgroup per row.
    Row,
    /// One invocation per row, or per several rows.
    ShortRows,
    /// Several rows per workgroup, where memory is contiguous across rows instead of along them.
    Columns,
    /// Few rows of activations times weights. The invocations of a workgroup split K for each column of a tile.
    Matvec,
    /// A matvec with activations staged in shared memory or already quantized in memory. Each subgroup reduces whole
    /// columns, or K slices of them.
    StagedMatvec,
    /// A tiled matmul.
    Matmul,
    /// Attention with one workgroup per head and query.
    Attention,
    /// Attention of one query. A workgroup handles several heads and one slice of the keys (split-KV).
    DecodeAttention,
    /// Attention of several queries by cooperative matrices (FlashAttention). A workgroup handles one tile of the queries of
    /// a head, or of heads that share keys, and all keys or one slice of them.
    FlashAttention,
    /// Attention of several queries by multiply-adds. A workgroup handles one tile of the queries of heads that share
    /// keys, and all keys or one slice of them.
    TiledAttention,
    /// Gradients of attention with one workgroup per query, or per key of a head.
    AttentionGrad,
    /// Gradients of attention by cooperative matrices. A workgroup handles one tile of the queries of a head, or of the
    /// keys of a key head.
    FlashAttentionGrad,
    /// Quantization to block formats.
    Quantize,
    /// Prefix sums and products.
    Scan,
    /// Sort along an axis. A workgroup sorts a tile of rows, or of runs of a row, in shared memory.
    Sort,
    /// Sort along a short axis. Each invocation counts the elements that come before its own.
    RankSort,
    /// The first positions of sorted rows.
    TopK,
    /// Merge of adjacent sorted runs.
    Merge,
    /// Atomic updates at computed indices.
    Scatter,
    /// Rows added at computed indices, in order. A workgroup owns a tile of the result.
    IndexAdd,
    /// A custom shader of the user.
    Custom,
}

/// The output tile of a workgroup. An extent of 0 means that the axis is not tiled or does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Rows. Matvecs: rows of activations. [`Algorithm::Columns`]: vectors of contiguous rows. Attention: queries.
    /// [`Algorithm::Sort`]: runs. Scatters: copies of a workgroup. Scans: rows of a workgroup if several.
    /// [`Algorithm::ShortRows`]: rows of an invocation if several.
    pub m: u32,
    /// Columns, summed over all matrices if sibling matmuls share a tile. Attention: keys. Sorts: elements. Transposed
    /// maps: outputs. Scatters: elements of the target that a copy holds, 0 without copies. Scans: elements of an
    /// invocation.
    pub n: u32,
    /// The K tile: elements of the reduced extent that are staged per iteration.
    pub k: u32,
}

/// How the reduced extent is divided. The last workgroup to finish combines the partials, or they are combined in
/// shared memory if subgroups of one workgroup hold them. Scatters with copies: how the source is divided among
/// workgroups, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    /// Number of slices; 1 means no split.
    pub slices: u32,
    /// The extent up to which the kernel still uses one slice at run time. 0 if the extent is known at compile time.
    pub above: u32,
}

/// Where the epilogue reads its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// The algorithm has only one place for them.
    Fixed,
    /// In registers, as cooperative matrix accumulators.
    Registers,
    /// In shared memory.
    Shared,
}

impl Algorithm {
    /// The name in the printed form.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Map => "map",
            Algorithm::Row => "row",
            Algorithm::ShortRows => "short_rows",
            Algorithm::Columns => "columns",
            Algorithm::Matvec => "matvec",
            Algorithm::StagedMatvec => "staged_matvec",
            Algorithm::Matmul => "matmul",
            Algorithm::Attention => "attention",
            Algorithm::DecodeAttention => "decode_attention",
            Algorithm::FlashAttention => "flash_attention",
            Algorithm::TiledAttention => "tiled_attention",
            Algorithm::AttentionGrad => "attention_grad",
            Algorithm::FlashAttentionGrad => "flash_attention_grad",
            Algorithm::Quantize => "quantize",
            Algorithm::Scan => "scan",
            Algorithm::Sort => "sort",
            Algorithm::RankSort => "rank_sort",
            Algorithm::TopK => "top_k",
            Algorithm::Merge => "merge",
            Algorithm::Scatter => "scatter",
            Algorithm::IndexAdd => "index_add",
            Algorithm::Custom => "custom",
        }
    }

    /// The default multiply instruction.
    fn instruction(self) -> Option<Instruction> {
        match self {
            Algorithm::Matvec
            | Algorithm::StagedMatvec
            | Algorithm::Matmul
            | Algorithm::Attention
            | Algorithm::DecodeAttention
            | Algorithm::TiledAttention
            | Algorithm::AttentionGrad => Some(Instruction::Fma),
            Algorithm::FlashAttention | Algorithm::FlashAttentionGrad => Some(Instruction::Coopmat),
            Algorithm::Map
            | Algorithm::Row
            | Algorithm::ShortRows
            | Algorithm::Columns
            | Algorithm::Quantize
            | Algorithm::Scan
            | Algorithm::Sort
            | Algorithm::RankSort
            | Algorithm::TopK
            | Algorithm::Merge
            | Algorithm::Scatter
            | Algorithm::IndexAdd
            | Algorithm::Custom => None,
        }
    }
}

impl Schedule {
    /// An untiled schedule without split-K, with workgroups of `workgroup` invocations.
    pub fn new(algorithm: Algorithm, workgroup: u32) -> Schedule {
        Schedule {
            algorithm,
            instruction: algorithm.instruction(),
            tile: Tile::default(),
            split: Split { slices: 1, above: 0 },
            tiles_per_workgroup: 1,
            prefetch: 0,
            epilogue: Epilogue::Fixed,
            workgroup,
            subgroup: None,
        }
    }

    /// The same schedule, requesting the subgroup size that kernels are generated for if the algorithm uses subgroups.
    pub(crate) fn with_subgroups(self, caps: &DeviceCaps) -> Schedule {
        let able = caps.subgroup_arithmetic || caps.subgroup_shuffle;
        let lanes = caps.scheduled_subgroup_size();
        // A workgroup exceeds this limit only if the device has a single subgroup size, which need not be requested.
        let allowed = u64::from(self.workgroup) <= u64::from(lanes) * u64::from(caps.max_workgroup_subgroups);
        let requested = able && allowed && caps.subgroup_size_control && self.works_by_subgroups();
        Schedule { subgroup: requested.then_some(lanes), ..self }
    }

    fn works_by_subgroups(&self) -> bool {
        match (self.algorithm, self.instruction) {
            (Algorithm::Matmul, instruction) => instruction.is_some_and(Instruction::is_cooperative),
            (
                Algorithm::Row
                | Algorithm::Columns
                | Algorithm::Matvec
                | Algorithm::StagedMatvec
                | Algorithm::Attention
                | Algorithm::DecodeAttention
                | Algorithm::FlashAttention
                | Algorithm::AttentionGrad
                | Algorithm::FlashAttentionGrad
                | Algorithm::Scan
                | Algorithm::IndexAdd,
                _,
            ) => true,
            (
                Algorithm::Map
                | Algorithm::ShortRows
                | Algorithm::TiledAttention
                | Algorithm::Quantize
                | Algorithm::Sort
                | Algorithm::RankSort
                | Algorithm::TopK
                | Algorithm::Merge
                | Algorithm::Scatter
                | Algorithm::Custom,
                _,
            ) => false,
        }
    }

    /// The tuning family; all candidates of one fusion share it.
    pub fn family(&self) -> String {
        // Tiles are candidates for what a workgroup per query computes.
        let tiled = self.algorithm == Algorithm::TiledAttention;
        let name = if tiled { Algorithm::Attention } else { self.algorithm }.name();
        match self.instruction {
            None => name.into(),
            Some(instruction) => format!("{name} {}", instruction.family()),
        }
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extents = [self.m, self.n, self.k].into_iter().filter(|extent| *extent > 0);
        f.write_str(&extents.map(|extent| extent.to_string()).collect::<Vec<_>>().join("x"))
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.algorithm.name())?;
        if let Some(instruction) = self.instruction {
            write!(f, " {}", instruction.name())?;
        }
        if self.tile != Tile::default() {
            write!(f, " {}", self.tile)?;
        }
        if self.split.slices > 1 {
            write!(f, " split{}", self.split.slices)?;
        }
        if self.split.above > 0 {
            write!(f, " above{}", self.split.above)?;
        }
        if self.tiles_per_workgroup > 1 {
            write!(f, " tiles{}", self.tiles_per_workgroup)?;
        }
        if self.prefetch > 1 {
            write!(f, " prefetch{}", self.prefetch)?;
        }
        match self.epilogue {
            Epilogue::Fixed => {}
            Epilogue::Registers => f.write_str(" registers")?,
            Epilogue::Shared => f.write_str(" shared")?,
        }
        write!(f, " wg{}", self.workgroup)?;
        match self.subgroup {
            Some(lanes) => write!(f, " sg{lanes}"),
            None => Ok(()),
        }
    }
}

/// Schedules by fusion; fusions that are not listed use the cost model's default.
pub type Schedules = HashMap<Fusion, Schedule>;

/// The size class of a type. Extents up to 8 are exact; larger ones are rounded up to a power of two. The power of two
/// that divides an extent, up to 64, is included because vector loads and tiles depend on it.
fn class(ty: &TensorType) -> String {
    let of = |dim: &Dim| match (dim.as_const(), dim.max_value().unsigned_abs()) {
        (Some(n), _) if n <= 8 => n.to_string(),
        (Some(_), n) => format!("{}/{}", n.next_power_of_two(), 1 << n.trailing_zeros().min(6)),
        (None, most) => format!("..{}", most.next_power_of_two()),
    };
    let dims: Vec<String> = ty.shape.dims().iter().map(of).collect();
    format!("{}[{}]", ty.dtype, dims.join(","))
}

/// The cache key of a measured schedule, for one device and one version of this crate. Fusions share a key if they have
/// the same ops, operand types, size classes and the tuning family of `schedule`.
pub fn class_of(fusion: &Fusion, schedule: &Schedule, caps: &DeviceCaps) -> String {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    };
    add(env!("CARGO_PKG_VERSION"));
    template::texts().for_each(&mut add);
    add(&format!("{caps:?}"));
    add(fusion.kind.name());
    for (_, node) in fusion.body.nodes() {
        add(node.op.name());
        // The axes matter: a different element order is a different kernel.
        if let Op::Permute(axes) | Op::Reduce { axes, .. } = &node.op {
            add(&format!("{axes:?}"));
        }
        node.operands.iter().for_each(|v| add(&format!("%{}.{}", v.node.0, v.result)));
        node.types.iter().for_each(|ty| add(&class(ty)));
    }
    fusion.body.outputs().iter().for_each(|o| add(&format!("return %{}.{}", o.value.node.0, o.value.result)));
    add(&schedule.family());
    hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use tallow_ir::caps::{self, OptionalFeature};

    use super::*;

    fn requested(caps: &DeviceCaps, algorithm: Algorithm, workgroup: u32) -> Option<u32> {
        Schedule::new(algorithm, workgroup).with_subgroups(caps).subgroup
    }

    #[test]
    fn a_subgroup_size_is_requested_where_it_matters_and_is_allowed() {
        let row = Algorithm::Row;
        assert_eq!(requested(&caps::rdna3(), row, 256), Some(32));
        assert_eq!(requested(&caps::adreno(), row, 1024), Some(64));
        assert_eq!(requested(&caps::rdna3(), Algorithm::Map, 256), None);
        assert_eq!(requested(&caps::minimum(), row, 64), None);
        // 32 subgroups of 8 at most, if the size is required.
        assert_eq!(requested(&caps::lavapipe(), row, 256), Some(8));
        assert_eq!(requested(&caps::lavapipe(), row, 512), None);
        let mut without = caps::rdna3();
        without.without(OptionalFeature::SubgroupSize);
        assert_eq!(requested(&without, row, 256), None);
    }

    #[test]
    fn a_schedule_prints_what_differs_from_the_plain_one() {
        let plain = Schedule::new(Algorithm::Matmul, 128);
        assert_eq!(plain.to_string(), "matmul fma wg128");
        let split = Schedule {
            instruction: Some(Instruction::Coopmat),
            tile: Tile { m: 128, n: 128, k: 32 },
            split: Split { slices: 2, above: 0 },
            subgroup: Some(32),
            ..plain
        };
        assert_eq!(split.to_string(), "matmul coopmat 128x128x32 split2 wg128 sg32");
        assert_eq!(split.family(), "matmul coopmat");
        assert_eq!(Schedule { instruction: Some(Instruction::Coopmat2), ..split }.family(), split.family());
        assert_ne!(plain.family(), split.family());
    }
}
