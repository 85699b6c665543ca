//! What kinds of kernels leave open: extents that decide how fast a kernel is. Each is right with every choice; results
//! differ in the order of sums alone.
//!
//! [`choices`](crate::choices) lists what is worth trying for a fusion, and begins with what the cost model takes:
//! that is what [`kernel`](crate::kernel) generates, on every machine alike. A caller that has measured the others hands what it
//! found to [`compile_chosen`](crate::compile_chosen).

use std::collections::HashMap;
use std::fmt;

use sha2::{Digest, Sha256};
use tallow_ir::{DeviceCaps, Dim, Fusion, Op, TensorType};

use crate::template;

/// How a kernel's work is cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Choice {
    /// A matvec whose workgroups share the inner extent of a few columns.
    Matvec(Matvec),
    /// A matvec whose workgroups prepare the activations in shared memory.
    Sharing(Sharing),
    /// A matmul by multiply-adds: rows and columns of a tile.
    Tile([u32; 2]),
    /// Reductions over rows.
    Rows(Rows),
    /// Attention of one query, its keys shared among workgroups.
    Keys(Keys),
    /// A matmul by matrix hardware: rows and columns of a tile, which are as many.
    Side(u32),
    /// The same by matrices of the workgroup.
    Whole(u32),
    /// Attention of many queries by matrix hardware.
    Scores(Scores),
}

/// Where attention of many queries keeps the scores of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scores {
    /// In shared memory.
    Shared,
    /// In the registers of the matrices that the products gave.
    Registers,
}

/// How a matvec is cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Matvec {
    /// Invocations of a workgroup, which share the inner extent.
    pub workgroup: u32,
    /// Columns of a workgroup, unless an epilogue needs more together.
    pub columns: u32,
}

/// How a matvec that prepares its activations is cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sharing {
    /// Invocations of a workgroup.
    pub workgroup: u32,
    /// Workgroups that the columns are shared out to, about.
    pub workgroups: u32,
    /// Parts of the inner extent, for each of which a subgroup of its own sums up a column.
    pub parts: u32,
}

/// How reductions over rows are cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rows {
    /// Invocations of a workgroup.
    pub workgroup: u32,
    /// Groups of rows side by side that a workgroup takes, each shared by slices of it; 0 if it takes one row at a time.
    pub side_by_side: u32,
}

/// How the keys of one query are cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Keys {
    /// Invocations of a workgroup.
    pub workgroup: u32,
    /// Parts of the keys, at most.
    pub splits: u32,
    /// Up to how many keys are one workgroup's.
    pub least: u32,
}

impl Choice {
    /// What is cut up: all choices of a fusion have the same.
    pub fn kind(&self) -> &'static str {
        match self {
            Choice::Matvec(_) => "matvec",
            Choice::Sharing(_) => "matvec of prepared activations",
            Choice::Tile(_) => "matmul",
            Choice::Rows(Rows { side_by_side: 0, .. }) => "rows",
            Choice::Rows(_) => "rows side by side",
            Choice::Keys(_) => "keys of one query",
            Choice::Side(_) | Choice::Whole(_) => "matmul by matrix hardware",
            Choice::Scores(_) => "attention by matrix hardware",
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Matvec(Matvec { workgroup, columns }) => {
                write!(f, "workgroups of {workgroup}, {columns} columns each")
            }
            Choice::Sharing(Sharing { workgroup, workgroups, parts: 1 }) => {
                write!(f, "{workgroups} workgroups of {workgroup}, whole columns")
            }
            Choice::Sharing(Sharing { workgroup, workgroups, parts }) => {
                write!(f, "{workgroups} workgroups of {workgroup}, columns in {parts} parts")
            }
            Choice::Tile([rows, columns]) => write!(f, "tiles of {rows} x {columns}"),
            Choice::Rows(Rows { workgroup, side_by_side: 0 }) => write!(f, "workgroups of {workgroup}"),
            Choice::Rows(Rows { workgroup, side_by_side }) => {
                write!(f, "workgroups of {workgroup}, {side_by_side} groups of rows each")
            }
            Choice::Keys(Keys { workgroup, splits, least }) => {
                write!(f, "{splits} workgroups of {workgroup} for more than {least} keys")
            }
            Choice::Side(side) => write!(f, "tiles of {side} x {side} by matrix hardware"),
            Choice::Whole(side) => write!(f, "tiles of {side} x {side} as matrices of the workgroup"),
            Choice::Scores(Scores::Shared) => write!(f, "scores in shared memory"),
            Choice::Scores(Scores::Registers) => write!(f, "scores in registers"),
        }
    }
}

/// What was chosen for the fusions of a graph; others get what the cost model takes.
pub type Choices = HashMap<Fusion, Choice>;

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

/// A number for all fusions that this version of the crate generates alike on a device, but for extents of one class: the same
/// ops on operands of the same types, whose kernels are cut up by the same kind of `choice`. What was measured for one of them serves
/// the others.
pub fn class_of(fusion: &Fusion, choice: &Choice, caps: &DeviceCaps) -> String {
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
    add(choice.kind());
    hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}
