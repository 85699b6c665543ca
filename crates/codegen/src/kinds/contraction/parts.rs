//! The packed weights that an invocation unpacks at once, and their integer dot products.

use tallow_ir::NodeId;
use tallow_ir::dot::{self, Packing};
use tallow_ir::form::Segment;

use super::columns::ColumnLoop;
use super::plan::Source;
use crate::emit::Emitter;
use crate::error::CodegenError;

/// Weights of one anchor that are unpacked at once: all that an invocation multiplies at a time, or half of them.
pub(crate) struct Part {
    pub anchor: NodeId,
    /// Index of the anchor in the segment.
    pub number: u32,
    pub packing: Packing,
    /// K index of the first element, as an expression.
    pub k0: String,
    /// Which half of the invocation's elements, if it is not all of them.
    half: Option<u32>,
    /// Index of this part in the segment, and the number of parts.
    at: u32,
    of: u32,
}

impl Part {
    /// The register buffer of its prefetched words, for the column or step that `counter` counts.
    pub fn buffer(&self, counter: &str, slots: u32) -> String {
        match (slots, self.of) {
            (1, _) => format!("next[{}]", self.at),
            (_, 1) if counter == "s" => "next[s]".into(),
            (_, 1) => format!("next[{counter} % {slots}u]"),
            _ => format!("next[{counter} % {slots}u * {}u + {}u]", self.of, self.at),
        }
    }

    /// The type of the scales of the unpacked weights.
    pub fn scales(&self) -> &'static str {
        match self.packing {
            Packing::Quarters => "mat2x4",
            Packing::Pairs | Packing::Halves => "vec4",
            Packing::Offset => "vec2",
            Packing::Scale => "float",
        }
    }

    /// The lines that add the products of the unpacked weights `q` and `w` with a row of activations to `acc`.
    /// `mixed` says that the segment has weights of other packings, too.
    pub fn product(&self, acc: &str, mixed: bool) -> Vec<String> {
        // The components of the activations' scales and sums that belong to this part.
        let (of, both, sum) = match self.half {
            None => ("", "", "sums.x + sums.y"),
            Some(0) => (".x", ".xy", "sums.x + sums.y"),
            Some(_) => (".y", ".zw", "sums.z + sums.w"),
        };
        let at = 2 * self.half.unwrap_or(0);
        let [lo, hi] = [at, at + 1].map(|i| format!("x[{i}]"));
        match self.packing {
            Packing::Scale => {
                vec![format!("{acc} += scale{of} * w * float(dot16(q[0], {lo}) + dot16(q[1], {hi}));")]
            }
            Packing::Offset => vec![format!(
                "{acc} += scale{of} * w.x * float(dot16(q[0], {lo}) + dot16(q[1], {hi})) + w.y * ({sum});"
            )],
            Packing::Halves => vec![format!(
                "{acc} += scale{of} * dot(w.xy, vec2(dot16(q[0], {lo}), dot16(q[1], {hi}))) + dot(w.zw, sums{both});"
            )],
            Packing::Pairs => vec![
                format!(
                    "{acc} += scale.x * w.x * float(dot16(q[0], x[0]) + dot16(q[1], x[1])) + scale.y * w.y * float(dot16(q[2], x[2]) + dot16(q[3], x[3]))"
                ),
                "    + w.z * (sums.x + sums.y) + w.w * (sums.z + sums.w);".into(),
            ],
            Packing::Quarters => {
                let s = if mixed { "2" } else { "" };
                let dots = [0, 1, 2, 3].map(|i| format!("dot16(q[{i}], x{s}[{i}])")).join(", ");
                vec![
                    format!("const vec4 found = vec4({dots});"),
                    format!(
                        "{acc} += scale{s}.x * dot(w[0].xy, found.xy) + scale{s}.y * dot(w[0].zw, found.zw) + dot(w[1], sums{s});"
                    ),
                ]
            }
        }
    }
}

/// The parts of a segment's packed weights. Empty if the weights are floats.
pub(crate) fn parts(
    e: &Emitter<'_>,
    source: Source,
    segment: &Segment,
    column_loop: &ColumnLoop,
) -> Result<Vec<Part>, CodegenError> {
    let mut parts = vec![];
    if !source.is_packed() {
        return Ok(parts);
    }
    let item = column_loop.clamped();
    for (number, anchor) in segment.anchors.iter().enumerate() {
        let refused = || CodegenError::Node(e.body.node_text(*anchor));
        let (_, format) = dot::weights(e.body, *anchor).ok_or_else(refused)?;
        let packing = dot::packing(format).ok_or_else(refused)?;
        let first = match packing {
            Packing::Scale | Packing::Offset | Packing::Halves | Packing::Pairs => {
                format!("{item} * {}u", column_loop.elements)
            }
            Packing::Quarters => format!("{item} / 2u * 128u + {item} % 2u * 32u"),
        };
        let unpacked = packing.elements() as u32;
        for half in 0..column_loop.elements / unpacked {
            let k0 = if half == 0 { first.clone() } else { format!("{first} + {}u", dot::BLOCK) };
            let half = (column_loop.elements > unpacked).then_some(half);
            let (number, at) = (number as u32, parts.len() as u32);
            parts.push(Part { anchor: *anchor, number, packing, k0, half, at, of: 0 });
        }
    }
    let of = parts.len() as u32;
    parts.iter_mut().for_each(|part| part.of = of);
    Ok(parts)
}
