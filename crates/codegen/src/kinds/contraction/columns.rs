//! The loop nest of a matvec: over the columns of the workgroup's tile, and over steps along K.

use crate::lines::block;

/// How the columns of a tile and the K axis are divided among the invocations of a workgroup.
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
    /// Maximum number of columns that are computed together, in registers.
    pub at_once: u32,
    /// Maximum prefetch distance of the weights, in columns; 0 if they are loaded where they are used.
    pub depth: u32,
    /// Maximum number of passes to unroll if they cannot be computed together. Unrolled passes have separate registers
    /// for the next column's weights.
    pub passes: u32,
}

/// The loop of a [`Team`] over its columns in one segment. It computes `together` columns at a time while it steps along
/// K, so that each read of activations serves all of them.
pub(crate) struct ColumnLoop {
    /// Columns of the tile.
    pub tile: u32,
    /// Contiguous elements of K that an invocation multiplies at a time: an item.
    pub elements: u32,
    pub at_once: u32,
    /// Passes over the tile, of one column each, and whether they are unrolled.
    passes: u32,
    unrolled: bool,
    /// Steps of an invocation along K; 0 if a workgroup strides over it.
    pub steps: u32,
    /// Prefetch distance of the weights, in columns; in steps if there is one column.
    pub depth: u32,
    /// Register buffers for prefetched weights. One more than `depth` if the next loads are issued before the current
    /// weights are unpacked. Then no loop iteration ends with a wait for one of these registers.
    pub slots: u32,
    /// Items per row, and whether the steps cover them exactly.
    pub items: u32,
    pub whole: bool,
    team: Team,
}

/// The position of the weights that are prefetched while others are multiplied.
pub(crate) struct NextWeights {
    /// Lines that compute it.
    pub lines: Vec<String>,
    /// The test that it exists.
    pub guard: String,
    /// Its pass and its step, if they differ from the current ones.
    pub pass: Option<&'static str>,
    pub step: Option<&'static str>,
}

/// The code inside a column loop.
pub(crate) struct Body {
    /// GLSL type of the accumulators, and their initial value.
    pub ty: &'static str,
    pub zero: String,
    /// Accumulators per column.
    pub accs: u32,
    /// What depends on the item but not on the column.
    pub item: Vec<String>,
    /// Multiplies the item of column `n`.
    pub column: Vec<String>,
    /// Last column of the result, as an expression.
    pub last: String,
    /// The reduction over the team: the expression of the sum of `acc`, after lines that may change `sum`.
    pub reduce: Reduce,
}

/// How the accumulators of a team are summed and stored.
pub(crate) struct Reduce {
    /// Lines that reduce the variable `sum` over the subgroup, or the call that reduces it over the workgroup.
    pub lines: Vec<String>,
    /// The invocation that stores the sum.
    pub first: &'static str,
    /// Offset in the shared tile, as a GLSL prefix to the index of a sum.
    pub at: String,
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
        // The number that leaves the fewest unused passes; the largest of equals.
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
            whole: items == steps * invocations,
            team,
        };
        (nest.depth, nest.slots) = nest.prefetch(unroll.depth);
        nest
    }

    /// The prefetch distance, at most `most`, and the number of register buffers. Both divide what they index, so that
    /// indices into the buffers are constants.
    fn prefetch(&self, most: u32) -> (u32, u32) {
        let (at_once, once) = (self.at_once, self.once());
        if most == 0 {
            return (0, 0);
        }
        if self.along() {
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

    /// Whether all columns are computed together.
    pub fn once(&self) -> bool {
        self.at_once == self.passes
    }

    /// Whether a subgroup has one column in several steps. It then prefetches and unrolls steps instead of columns.
    pub fn along(&self) -> bool {
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
        if self.whole { "item".into() } else { format!("min(item, {}u)", self.items - 1) }
    }

    /// Lines that multiply, guarded if the last step has invocations without an item.
    pub fn within_row(&self, lines: Vec<String>) -> Vec<String> {
        if self.whole { lines } else { block(&format!("if (item < {}u)", self.items), lines) }
    }

    /// The index of the current column among those computed together; `None` if there is one.
    fn index(&self) -> Option<&'static str> {
        match (self.at_once, self.once()) {
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

    /// The register buffer of the current weights: a variable that counts columns or steps.
    pub fn counter(&self) -> &'static str {
        match (self.along(), self.once() || self.unrolled) {
            (true, _) => "s",
            (_, true) => "pass",
            (_, false) => "u",
        }
    }

    /// The weights to prefetch `depth` columns (or steps) ahead; `None` if there are no others.
    pub fn next_weights(&self) -> Option<NextWeights> {
        let (depth, at_once) = (self.depth, self.at_once);
        let (pass, step) = (Some("ahead"), Some("then"));
        if self.along() {
            let lines = vec![format!("const uint then = along + {depth}u;")];
            return Some(NextWeights { lines, guard: format!("then < {}u", self.steps), pass: None, step });
        }
        if self.steps == 1 {
            let lines = vec![format!("const uint ahead = pass + {depth}u;")];
            let guard = if self.once() { format!("ahead < {at_once}u") } else { "ahead < passes".into() };
            return (!(at_once == 1 && self.once())).then_some(NextWeights {
                lines,
                guard,
                pass,
                step: None,
            });
        }
        if at_once == 1 {
            let lines = vec!["const uint ahead = next_pass, then = next_along;".into()];
            return Some(NextWeights { lines, guard: "ahead < passes".into(), pass, step });
        }
        let u = if self.once() { "pass" } else { "u" };
        let mut lines = vec![format!("const bool here = {u} + {depth}u < {at_once}u;")];
        let current = format!("here ? pass + {depth}u");
        if self.once() {
            lines.push(format!("const uint ahead = {current} : pass + {depth}u - {at_once}u, then = here ? along : along + 1u;"));
            return Some(NextWeights { lines, guard: format!("then < {}u", self.steps), pass, step });
        }
        lines.push(format!("const uint ahead = {current} : next_pass + u + {depth}u - {at_once}u, then = here ? along : next_along;"));
        Some(NextWeights { lines, guard: "ahead < passes".into(), pass, step })
    }

    /// The loop over columns that are computed together, around `lines`.
    fn each_column(&self, lines: Vec<String>) -> Vec<String> {
        let Some(u) = self.index() else { return lines };
        let pass = (!self.once()).then(|| "const uint pass = pass0 + u;".to_string());
        let lines = pass.into_iter().chain(lines).collect();
        block(&format!("[[unroll]] for (uint {u} = 0u; {u} < {}u; ++{u})", self.at_once), lines)
    }

    /// The loop along K around `item`, which sets up an item, and `columns`.
    fn each_step(&self, item: Vec<String>, columns: Vec<String>) -> Vec<String> {
        let (steps, depth, elements) = (self.steps, self.depth, self.elements);
        let mut lines = vec![];
        if let Team::Workgroup { size, end } = &self.team {
            lines.extend(item.into_iter().chain(columns));
            let stride = elements * size;
            return block(&format!("for (uint k0 = lane * {elements}u; k0 < {end}; k0 += {stride}u)"), lines);
        }
        if self.along() && depth > 1 {
            lines.push(format!("const uint along = along0 + s, item = {};", self.item("along")));
            lines.extend(item.into_iter().chain(columns));
            let lines = block(&format!("[[unroll]] for (uint s = 0u; s < {depth}u; ++s)"), lines);
            return block(&format!("for (uint along0 = 0u; along0 < {steps}u; along0 += {depth}u)"), lines);
        }
        lines.push(format!("const uint item = {};", self.item("along")));
        lines.extend(item);
        if !self.once() && depth > 0 {
            let (current, next) = match self.at_once {
                1 => ("pass", "pass + 1u".to_string()),
                at_once => ("pass0", format!("pass0 + {at_once}u")),
            };
            lines.push(format!("const uint next_along = along + 1u < {steps}u ? along + 1u : 0u, next_pass = next_along == 0u ? {next} : {current};"));
        }
        lines.extend(columns);
        block(&format!("for (uint along = 0u; along < {steps}u; ++along)"), lines)
    }

    /// The whole loop nest. `item_known` says that the item was set up before all segments.
    pub fn nest(&self, body: Body, item_known: bool) -> Vec<String> {
        let Body { ty, zero, accs, item, column, last, reduce } = body;
        let n = format!("const uint n = min(column0 + {}, {last});", self.column("pass"));
        let columns = self.each_column([vec![n], column].concat());
        let all = self.at_once * accs;
        let mut pass = vec![
            format!("{ty} acc[{all}];"),
            format!("[[unroll]] for (uint j = 0u; j < {all}u; ++j) acc[j] = {zero};"),
        ];
        let mut lines = vec![];
        if self.steps == 1 {
            if !item_known {
                lines.push(format!("const uint item = {};", self.item("")));
                lines.extend(item);
            }
            pass.extend(columns);
        } else {
            pass.extend(self.each_step(item, columns));
        }
        pass.extend(self.each_column(self.reduce(ty, accs, &reduce)));
        if self.once() {
            lines.extend(pass);
            return lines;
        }
        lines.push(format!("const uint passes = {}u;", self.passes));
        let unroll = if self.unrolled { "[[unroll]] " } else { "" };
        lines.extend(match self.at_once {
            1 => block(&format!("{unroll}for (uint pass = 0u; pass < passes; ++pass)"), pass),
            n => block(&format!("for (uint pass0 = 0u; pass0 < passes; pass0 += {n}u)"), pass),
        });
        lines
    }

    /// Sums the accumulators of one column over the team and stores the sums.
    fn reduce(&self, ty: &str, accs: u32, reduce: &Reduce) -> Vec<String> {
        let acc = match self.index() {
            None => "j".to_string(),
            Some(u) if accs == 1 => u.into(),
            Some(u) => format!("{u} * {accs}u + j"),
        };
        let lanes = match self.team {
            Team::Subgroup { slices, subgroups, .. } => subgroups / slices,
            Team::Workgroup { .. } => 1,
        };
        let even = self.tile.is_multiple_of(lanes) && self.passes.is_multiple_of(self.at_once);
        let inside = if even { String::new() } else { format!(" && c < {}u", self.tile) };
        let mut lines = vec![format!("{ty} sum = acc[{acc}];")];
        lines.extend(reduce.lines.iter().cloned());
        lines.push(format!("if ({}{inside}) tile[{}j * {}u + c] = sum;", reduce.first, reduce.at, self.tile));
        let each = block(&format!("[[unroll]] for (uint j = 0u; j < {accs}u; ++j)"), lines);
        [vec![format!("const uint c = {};", self.column("pass"))], each].concat()
    }

    /// A description of the loop, for a comment in the kernel.
    pub fn comment(&self) -> String {
        let who = match self.team {
            Team::Workgroup { .. } => "The workgroup reduces".to_string(),
            Team::Subgroup { slices: 1, .. } => "Each subgroup reduces".into(),
            Team::Subgroup { slices, .. } => format!("Each group of {slices} subgroups reduces"),
        };
        let columns = match (self.at_once, self.once()) {
            (1, _) => "a column at a time".to_string(),
            (_, true) => format!("{} columns", self.at_once),
            (_, false) => format!("{} columns at a time", self.at_once),
        };
        let steps = if self.steps > 1 { format!(" in {} steps", self.steps) } else { String::new() };
        format!("// {who} {columns}{steps}.")
    }
}
