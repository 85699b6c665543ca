//! A fusion: a node that stands for one kernel and holds what it computes as a nested graph.

use crate::graph::Graph;

/// Which kernel template computes a fusion. The kind is chosen by the fuser from the ops in the body and
/// checked by the verifier (see `form`); it is not a pattern name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FusionKind {
    /// One invocation per element; no op in it needs more than one element of another.
    Map,
    /// Values rounded to blocks of a quantized format, one invocation for one or two blocks.
    Quantize,
    /// Reductions over the same rows, one workgroup a row or several.
    Row,
    /// Matmuls of few rows (M <= 8) that share their left operand.
    Matvec,
    /// Tiled matmuls that share their left operand.
    Matmul,
    /// Softmax attention with online normalization.
    Attention,
    /// Gradients of softmax attention, of one side.
    AttentionGrad,
    /// Running sums or products along an axis, one workgroup a row.
    Scan,
    /// The order of the elements along an axis, each element's place counted by its invocation.
    Sort,
    /// Values combined into elements at computed positions: a map that fills the result, then atomics.
    Scatter,
    /// Rows added at the places that indices name, in the order of the indices: one workgroup a tile of the result.
    IndexAdd,
    /// A kernel that the user wrote.
    Custom,
}

impl FusionKind {
    /// Every kind.
    pub const ALL: [FusionKind; 12] = [
        FusionKind::Map,
        FusionKind::Quantize,
        FusionKind::Row,
        FusionKind::Matvec,
        FusionKind::Matmul,
        FusionKind::Attention,
        FusionKind::AttentionGrad,
        FusionKind::Scan,
        FusionKind::Sort,
        FusionKind::Scatter,
        FusionKind::IndexAdd,
        FusionKind::Custom,
    ];

    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            FusionKind::Map => "map",
            FusionKind::Quantize => "quantize",
            FusionKind::Row => "row",
            FusionKind::Matvec => "matvec",
            FusionKind::Matmul => "matmul",
            FusionKind::Attention => "attention",
            FusionKind::AttentionGrad => "attention_grad",
            FusionKind::Scan => "scan",
            FusionKind::Sort => "sort",
            FusionKind::Scatter => "scatter",
            FusionKind::IndexAdd => "index_add",
            FusionKind::Custom => "custom",
        }
    }

    /// The kind called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.name() == name)
    }
}

/// One kernel: its kind and what it computes, as a graph whose leaves are [`crate::Op::Param`]s.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fusion {
    /// Template.
    pub kind: FusionKind,
    /// Meaning: evaluating the body on the operands gives the results.
    pub body: Graph,
    /// Tells the runs of one kernel on equal operands apart: a kernel that runs again, so that its results need not stay
    /// in memory until their last reader, has a number from 1 on. All others have 0.
    pub run: u32,
}

impl Fusion {
    /// A kernel that runs once.
    pub fn new(kind: FusionKind, body: Graph) -> Fusion {
        Fusion { kind, body, run: 0 }
    }
}
