//! Schedules: what is open in a kernel. Every schedule of a fusion computes the same results, up to the order of sums; how
//! fast it does so differs.
//!
//! [`schedules`](crate::schedules) lists the candidates for a fusion, the cost model's default first. The default is what
//! [`kernel`](crate::kernel) generates, on every machine alike. A caller that has measured the candidates hands what it
//! found to [`compile_scheduled`](crate::compile_scheduled).

use std::collections::HashMap;
use std::fmt;

use sha2::{Digest, Sha256};
use tallow_ir::{DeviceCaps, Dim, Fusion, Op, TensorType};

use crate::template;

/// How a kernel computes its fusion. Prints in the field's notation: `matmul coopmat 128x128x32 split2 wg128`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The instruction that multiplies, for contractions and attention.
    pub instruction: Option<Instruction>,
    /// The output tile of a workgroup.
    pub tile: Tile,
    /// How the reduced extent is divided among workgroups or subgroups.
    pub split: Split,
    /// Output tiles that a workgroup computes one after the other.
    pub tiles_per_workgroup: u32,
    /// Where the epilogue reads the products' results; for attention, where softmax reads the scores.
    pub epilogue: Epilogue,
    /// Invocations of a workgroup.
    pub workgroup: u32,
    /// The subgroup size that the pipeline requests. `None` where the algorithm takes any, or the device has one size only
    /// and no control over it.
    pub subgroup: Option<u32>,
}

/// The algorithm of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// One invocation per element or per group of neighbouring elements.
    Map,
    /// One workgroup per row.
    Row,
    /// One invocation per row.
    ShortRows,
    /// Several rows per workgroup, whose elements are neighbours in memory across rows.
    Columns,
    /// Few rows of activations times weights. Invocations of a workgroup share the K extent of a tile of columns.
    Matvec,
    /// The same with activations staged in shared memory, or quantized in memory. Each subgroup reduces whole columns or
    /// K slices of them.
    StagedMatvec,
    /// A tiled product.
    Matmul,
    /// Attention, one workgroup per head and query.
    Attention,
    /// Attention of one query, a workgroup for several heads and a slice of the keys.
    DecodeAttention,
    /// Attention of many queries, a workgroup for a tile of them.
    FlashAttention,
    /// Rounding to block formats.
    Quantize,
    /// Running sums and products.
    Scan,
    /// Ranks along an axis.
    Sort,
    /// Atomic updates at computed positions.
    Scatter,
    /// A user's shader.
    Custom,
}

/// The instruction that multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Instruction {
    /// Multiply-add of scalars.
    Fma,
    /// Dot product of four packed 8-bit integers.
    Dot4,
    /// Cooperative matrices of a subgroup (`VK_KHR_cooperative_matrix`).
    Coopmat,
    /// Cooperative matrices of a workgroup (`VK_NV_cooperative_matrix2`).
    Coopmat2,
}

/// The output tile of a workgroup. An extent of 0 is not tiled or does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Rows. Matvecs: rows of activations. [`Algorithm::Columns`]: groups of neighbouring rows. Attention: queries.
    pub m: u32,
    /// Columns; of all matrices together where siblings share a tile. Attention: keys.
    pub n: u32,
    /// The K tile: elements of the reduced extent that are staged at a time.
    pub k: u32,
}

/// How the reduced extent is divided. The parts are combined by the last workgroup that ends, or in shared memory where
/// subgroups of one workgroup share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    /// Slices; 1 is no split.
    pub slices: u32,
    /// The extent up to which a run uses one slice all the same. 0 where the extent is known at compile time.
    pub above: u32,
}

/// Where the epilogue reads results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// Where the kernel has always put them, as there is one way only.
    Fixed,
    /// In registers, as cooperative matrices left them.
    Registers,
    /// In shared memory.
    Shared,
}

impl Algorithm {
    /// The word that is printed for it.
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
            Algorithm::Quantize => "quantize",
            Algorithm::Scan => "scan",
            Algorithm::Sort => "sort",
            Algorithm::Scatter => "scatter",
            Algorithm::Custom => "custom",
        }
    }

    /// The instruction that it multiplies with if nothing else is said.
    fn instruction(self) -> Option<Instruction> {
        match self {
            Algorithm::Matvec
            | Algorithm::StagedMatvec
            | Algorithm::Matmul
            | Algorithm::Attention
            | Algorithm::DecodeAttention => Some(Instruction::Fma),
            Algorithm::FlashAttention => Some(Instruction::Coopmat),
            Algorithm::Map
            | Algorithm::Row
            | Algorithm::ShortRows
            | Algorithm::Columns
            | Algorithm::Quantize
            | Algorithm::Scan
            | Algorithm::Sort
            | Algorithm::Scatter
            | Algorithm::Custom => None,
        }
    }
}

impl Instruction {
    /// The word that is printed for it.
    pub fn name(self) -> &'static str {
        match self {
            Instruction::Fma => "fma",
            Instruction::Dot4 => "dot4",
            Instruction::Coopmat => "coopmat",
            Instruction::Coopmat2 => "coopmat2",
        }
    }
}

impl Schedule {
    /// A schedule of an algorithm with workgroups of this many invocations, and nothing tiled or split.
    pub fn new(algorithm: Algorithm, workgroup: u32) -> Schedule {
        Schedule {
            algorithm,
            instruction: algorithm.instruction(),
            tile: Tile::default(),
            split: Split { slices: 1, above: 0 },
            tiles_per_workgroup: 1,
            epilogue: Epilogue::Fixed,
            workgroup,
            subgroup: None,
        }
    }

    /// The same with the subgroup size requested that kernels are written for, if they work by subgroups.
    pub(crate) fn with_subgroups(self, caps: &DeviceCaps) -> Schedule {
        let able = caps.subgroup_arithmetic || caps.subgroup_shuffle;
        let lanes = caps.scheduled_subgroup_size();
        // Beyond, only a device of one size is left, which need not be requested.
        let allowed = u64::from(self.workgroup) <= u64::from(lanes) * u64::from(caps.max_workgroup_subgroups);
        let requested = able && allowed && caps.subgroup_size_control && self.works_by_subgroups();
        Schedule { subgroup: requested.then_some(lanes), ..self }
    }

    fn works_by_subgroups(&self) -> bool {
        match (self.algorithm, self.instruction) {
            (Algorithm::Matmul, Some(Instruction::Coopmat | Instruction::Coopmat2)) => true,
            (Algorithm::Matmul, Some(Instruction::Fma | Instruction::Dot4) | None) => false,
            (
                Algorithm::Row
                | Algorithm::Columns
                | Algorithm::Matvec
                | Algorithm::StagedMatvec
                | Algorithm::Attention
                | Algorithm::DecodeAttention
                | Algorithm::FlashAttention,
                _,
            ) => true,
            (
                Algorithm::Map
                | Algorithm::ShortRows
                | Algorithm::Quantize
                | Algorithm::Scan
                | Algorithm::Sort
                | Algorithm::Scatter
                | Algorithm::Custom,
                _,
            ) => false,
        }
    }

    /// The tuning family; all candidates of one fusion share it.
    pub fn family(&self) -> String {
        match self.instruction {
            None => self.algorithm.name().into(),
            // Candidates of one product.
            Some(Instruction::Coopmat | Instruction::Coopmat2) => {
                format!("{} coopmat", self.algorithm.name())
            }
            Some(other) => format!("{} {}", self.algorithm.name(), other.name()),
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

/// Schedules for fusions of a graph; the others get the cost model's default.
pub type Schedules = HashMap<Fusion, Schedule>;

/// The extents of a type, in classes: few as they are, more than eight rounded up to a power of two, with the power of two that divides
/// them up to 64, on which loads and tiles depend.
fn class(ty: &TensorType) -> String {
    let of = |dim: &Dim| match (dim.as_const(), dim.max_value().unsigned_abs()) {
        (Some(n), _) if n <= 8 => n.to_string(),
        (Some(_), n) => format!("{}/{}", n.next_power_of_two(), 1 << n.trailing_zeros().min(6)),
        (None, most) => format!("..{}", most.next_power_of_two()),
    };
    let dims: Vec<String> = ty.shape.dims().iter().map(of).collect();
    format!("{}[{}]", ty.dtype, dims.join(","))
}

/// The key under which a measured schedule is kept. Fusions share it that have the same ops on operands of the same types,
/// extents of one class, and the tuning family of `schedule`, on one device and in one version of this crate.
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
        // Which axes: another order of elements is another kernel.
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
