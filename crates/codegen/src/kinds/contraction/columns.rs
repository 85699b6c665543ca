//! The loop nest of a matvec: over the columns of the workgroup's tile, and over steps along K.

use minijinja::{Value as Hole, context};

use crate::error::CodegenError;
use crate::lines::block;
use crate::template::render;

/// The invocations that reduce one column together.
pub(crate) enum Team {
    /// Each subgroup of `size` invocations reduces one column at a time, or one of `slices` K slices of it. A workgroup
    /// has `subgroups`.
    Subgroup { size: u32, slices: u32, subgroups: u32 },
    /// All `size` invocations of a workgroup reduce the same columns. They stride to the `end` of K, an expression that
    /// may be known only at run time.
    Workgroup { size: u32, end: String },
}

/// Limits for unrolling a column loop.
#[derive(Clone, Copy)]
pub(crate) struct Unroll {
    /// Maximum number of columns that are accumulated at once, in registers.
    pub at_once: u32,
    /// Maximum prefetch distance of the weights, in columns; 0 if they are loaded where they are used.
    pub depth: u32,
    /// Maximum number of passes to unroll if columns are accumulated one at a time. Unrolled passes have separate
    /// registers for the next column's weights.
    pub passes: u32,
}

/// The loop of a [`Team`] over its columns in one segment. It accumulates `at_once` columns while it steps along K, so
/// that each read of activations serves all of them.
pub(crate) struct ColumnLoop {
    /// Columns of the tile.
    pub tile: u32,
    /// Contiguous elements of K that an invocation multiplies at a time: an item.
    pub elements: u32,
    /// Columns that a team accumulates at once.
    pub at_once: u32,
    /// Columns per team: a pass computes one column of each team. Whether passes are unrolled.
    passes: u32,
    unrolled: bool,
    /// Steps of an invocation along K; 0 if a workgroup strides over it.
    pub steps: u32,
    /// Prefetch distance of the weights, in columns; in steps if there is one column.
    pub depth: u32,
    /// Register buffers for prefetched weights. One more than `depth` if the next loads are issued before the current
    /// weights are unpacked, so that no iteration ends with a wait for one of these registers.
    pub slots: u32,
    /// Items per row of K, and whether the steps cover them exactly.
    pub items: u32,
    pub is_exact: bool,
    team: Team,
}

impl ColumnLoop {
    /// The loop for a tile of `tile` columns and rows of `k` elements; 0 if a workgroup strides over them.
    pub fn new(team: Team, (tile, k): (u32, u32), elements: u32, unroll: Unroll) -> ColumnLoop {
        let items = k.div_ceil(elements);
        let (lanes, invocations) = match team {
            Team::Subgroup { size, slices, subgroups } => (subgroups / slices, size * slices),
            Team::Workgroup { size, .. } => (1, size),
        };
        let (steps, passes) = (items.div_ceil(invocations), tile.div_ceil(lanes));
        // The number of columns that leaves the fewest idle passes; of equals, the largest.
        let fewest = |t: &u32| (passes.next_multiple_of(*t), u32::MAX - t);
        let at_once = (1..=unroll.at_once.clamp(1, passes)).min_by_key(fewest).unwrap_or(1);
        let unrolled = at_once == 1 && steps == 1 && (2..=unroll.passes).contains(&passes);
        let mut nest = ColumnLoop {
            tile,
            elements,
            at_once,
            passes,
            unrolled,
            steps,
            depth: 0,
            slots: 0,
            items,
            is_exact: items == steps * invocations,
            team,
        };
        (nest.depth, nest.slots) = nest.prefetch(unroll.depth);
        nest
    }

    /// The prefetch distance, at most `most`, and the number of register buffers. Both divide what they index, so that
    /// indices into the buffers are constants.
    fn prefetch(&self, most: u32) -> (u32, u32) {
        let (at_once, once) = (self.at_once, self.all_at_once());
        if most == 0 {
            return (0, 0);
        }
        if self.prefetches_steps() {
            let depth = (1..=most).rev().find(|depth| self.steps.is_multiple_of(*depth)).unwrap_or(1);
            return (depth, depth);
        }
        let in_loop = (2..=(most + 1).min(at_once)).rev().find(|n| at_once.is_multiple_of(*n));
        match in_loop.filter(|_| !once) {
            Some(slots) => (slots - 1, slots),
            None if self.unrolled => (1, 2),
            None => {
                let divides = |depth: &u32| (once && self.steps == 1) || at_once.is_multiple_of(*depth);
                let depth = (1..=most.min(at_once)).rev().find(divides).unwrap_or(1);
                (depth, depth)
            }
        }
    }

    /// Whether a team accumulates all of its columns at once.
    pub fn all_at_once(&self) -> bool {
        self.at_once == self.passes
    }

    /// Whether a team has one column and several steps. It then prefetches and unrolls steps instead of columns.
    pub fn prefetches_steps(&self) -> bool {
        self.passes == 1 && self.steps > 1
    }

    /// The column of a pass, relative to the tile's first.
    pub fn column(&self, pass: &str) -> String {
        let (slot, lanes) = match self.team {
            Team::Workgroup { .. } => return if self.passes == 1 { "0u".into() } else { pass.into() },
            Team::Subgroup { slices: 1, subgroups, .. } => ("gl_SubgroupID".to_string(), subgroups),
            Team::Subgroup { slices, subgroups, .. } => {
                (format!("gl_SubgroupID / {slices}u"), subgroups / slices)
            }
        };
        if self.passes == 1 { slot } else { format!("{slot} + {pass} * {lanes}u") }
    }

    /// The item of step `along`.
    pub fn item(&self, along: &str) -> String {
        let (size, offset) = match self.team {
            Team::Workgroup { size, .. } => return format!("{along} * {size}u + lane"),
            Team::Subgroup { size, slices: 1, .. } => (size, String::new()),
            Team::Subgroup { size, slices, .. } if self.steps == 1 => {
                (size, format!("gl_SubgroupID % {slices}u"))
            }
            Team::Subgroup { size, slices, .. } => {
                (size, format!("gl_SubgroupID % {slices}u * {}u", self.steps))
            }
        };
        let step = if self.steps == 1 { "" } else { along };
        match (offset.as_str(), step) {
            ("", "") => "gl_SubgroupInvocationID".into(),
            ("", one) | (one, "") => format!("{one} * {size}u + gl_SubgroupInvocationID"),
            _ => format!("({offset} + {along}) * {size}u + gl_SubgroupInvocationID"),
        }
    }

    /// The item, clamped to the last of the row.
    pub fn clamped(&self) -> String {
        if self.is_exact { "item".into() } else { format!("min(item, {}u)", self.items - 1) }
    }

    /// Lines that multiply, guarded if the last step has invocations without an item.
    pub fn within_row(&self, lines: Vec<String>) -> Vec<String> {
        if self.is_exact { lines } else { block(&format!("if (item < {}u)", self.items), lines) }
    }

    /// The loop variable over the columns that are accumulated at once; `None` if there is one column.
    pub fn index(&self) -> Option<&'static str> {
        match (self.at_once, self.all_at_once()) {
            (1, _) => None,
            (_, true) => Some("pass"),
            (_, false) => Some("u"),
        }
    }

    /// The accumulator of anchor `number`, one of `accs` per column, with `m` rows.
    pub fn acc(&self, accs: u32, m: u32, number: u32) -> String {
        let row = match (accs, m) {
            (1, _) => None,
            (_, 1) => Some(number.to_string()),
            (_, _) if number == 0 => Some("m".into()),
            _ => Some(format!("{}u + m", number * m)),
        };
        match (self.index(), row) {
            (None, row) => format!("acc[{}]", row.unwrap_or("0".into())),
            (Some(column), None) => format!("acc[{column}]"),
            (Some(column), Some(row)) => format!("acc[{column} * {accs}u + {row}]"),
        }
    }

    /// The variable that numbers the register buffer of the current weights: it counts columns or steps.
    pub fn counter(&self) -> &'static str {
        match (self.prefetches_steps(), self.all_at_once() || self.unrolled) {
            (true, _) => "s",
            (_, true) => "pass",
            (_, false) => "u",
        }
    }

    /// The pass `ahead` and the step `then` of the weights to prefetch, `depth` columns (or steps) ahead: the lines that
    /// compute what differs from the current ones, and the condition that they exist. `None` if there are no others.
    pub fn next_weights(&self) -> Option<(Vec<String>, String)> {
        let (depth, at_once, steps) = (self.depth, self.at_once, self.steps);
        if self.prefetches_steps() {
            return Some((vec![format!("const uint then = along + {depth}u;")], format!("then < {steps}u")));
        }
        let passes = || "ahead < passes".to_string();
        Some(match (steps, at_once, self.all_at_once()) {
            (1, 1, true) => return None,
            (1, _, once) => {
                let guard = if once { format!("ahead < {at_once}u") } else { passes() };
                (vec![format!("const uint ahead = pass + {depth}u;")], guard)
            }
            (_, 1, _) => (vec!["const uint ahead = next_pass, then = next_along;".into()], passes()),
            (_, _, once) => {
                let (u, next_pass, next_along, guard) = match once {
                    true => ("pass", "pass", "along + 1u", format!("then < {steps}u")),
                    false => ("u", "next_pass + u", "next_along", passes()),
                };
                let pass = format!("here ? pass + {depth}u : {next_pass} + {depth}u - {at_once}u");
                let lines = vec![
                    format!("const bool here = {u} + {depth}u < {at_once}u;"),
                    format!("const uint ahead = {pass}, then = here ? along : {next_along};"),
                ];
                (lines, guard)
            }
        })
    }

    /// The whole loop nest. `holes` are those of `matvec_columns.glsl` that the loop does not know. There are `accs`
    /// accumulators per column. `by_rows` says that each row is multiplied with several columns.
    pub fn nest(&self, accs: u32, by_rows: bool, holes: Hole) -> Result<String, CodegenError> {
        let (slices, lanes, end, stride, subgroup) = match &self.team {
            Team::Subgroup { slices, subgroups, size } => (*slices, subgroups / slices, None, 0, *size),
            Team::Workgroup { size, end } => (1, 1, Some(end), self.elements * size, 0),
        };
        // Sums that the invocations of a subgroup add at once.
        let sums = if by_rows { (self.at_once * accs).next_power_of_two().min(subgroup) } else { 0 };
        let halves: Vec<u32> = (0..sums.max(1).ilog2()).rev().map(|bit| 1 << bit).collect();
        let even = self.tile.is_multiple_of(lanes) && self.passes.is_multiple_of(self.at_once);
        let own = context! {
            item => self.item("along"), column => self.column("pass"), prefetches_steps => self.prefetches_steps(),
            all_at_once => self.all_at_once(), u => self.index(), tile => self.tile,
            elements => self.elements, at_once => self.at_once, passes => self.passes, unrolled => self.unrolled,
            steps => self.steps, depth => self.depth, accs, slices, end, stride, sums, halves, subgroup,
            inside => if even { String::new() } else { format!(" && c < {}u", self.tile) },
        };
        render("matvec_columns.glsl", context! { ..own, ..holes })
    }
}
