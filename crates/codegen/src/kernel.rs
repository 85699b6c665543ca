//! A kernel as plain data: shader text, bindings, grid. It refers to no device objects.

use std::fmt;
use std::sync::Arc;

use tallow_ir::{Bindings, CustomKernel, DeviceCaps, Dim};

use crate::schedule::Schedule;

/// The Vulkan version that a module targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Target {
    /// Vulkan 1.2: SPIR-V 1.5.
    #[default]
    Vulkan12,
    /// Vulkan 1.3: SPIR-V 1.6.
    Vulkan13,
}

impl Target {
    /// The name used by `spirv-val` and in the cache key.
    pub fn name(self) -> &'static str {
        match self {
            Target::Vulkan12 => "vulkan1.2",
            Target::Vulkan13 => "vulkan1.3",
        }
    }
}

/// A compute shader for one fusion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// A readable name: schedule and last op.
    pub name: String,
    /// The GLSL text. Equal kernels of different layers have equal text and share a pipeline.
    pub glsl: String,
    /// Storage buffers by binding number.
    pub bindings: Vec<Binding>,
    /// Invocations along x, y, z.
    pub workgroup: [u32; 3],
    /// Workgroups along x, y, z.
    pub grid: [Count; 3],
    /// Scratch memory, by the number in its [`Source::Scratch`].
    pub scratch: Vec<Scratch>,
    /// Whether spirv-opt optimizes its SPIR-V. Drivers optimize anyway, so it is skipped where it gains nothing. 150
    /// shaders of the device tests take 12.0 s with it and 0.7 s without.
    pub optimize: bool,
    /// The Vulkan version that its SPIR-V targets.
    pub target: Target,
    /// The user-written kernel, if this is one.
    pub custom: Option<Arc<CustomKernel>>,
    /// The schedule with which it computes its fusion.
    pub schedule: Schedule,
}

impl Kernel {
    /// The shader without the lines that start with `//`. Schedules of a small fusion may differ only in these.
    pub fn code(&self) -> String {
        self.glsl.lines().filter(|line| !line.starts_with("//")).collect::<Vec<_>>().join("\n")
    }

    /// Tells kernels apart whose code differs: SHA-256, in hexadecimal, of [`Kernel::code`] and how it is compiled.
    #[cfg(feature = "spirv")]
    pub fn digest(&self) -> String {
        let how = format!("{:?} {}", self.target, self.optimize);
        crate::cache::key(&[self.code().as_bytes(), how.as_bytes()])
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

/// Global memory through which the workgroups of one dispatch combine partials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scratch {
    /// Size per dispatch, in bytes.
    pub bytes: u64,
    /// The value of every word before the kernel runs, which the kernel restores; `None` if the kernel writes every
    /// word before reading it.
    pub fill: Option<u32>,
}

/// The buffer of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Operand of the fusion node.
    Operand(u32),
    /// Result of the fusion node.
    Result(u32),
    /// The table of symbol expressions.
    Table,
    /// The codebooks of block formats, in the layout of [`tallow_quant::codebooks`].
    Codebooks,
    /// Scratch memory of the kernel, see [`Kernel::scratch`].
    Scratch(u32),
}

/// A storage buffer of a kernel, or one window of a buffer that is larger than a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    /// The buffer.
    pub source: Source,
    /// Whether the kernel writes it.
    pub written: bool,
    /// The byte range of the buffer that the binding covers, start and end; the buffer may end before it.
    pub range: (u64, u64),
}

/// A number of workgroups, `ceil(value / per)` but at most `limit`, or an index expression (`per` 1, no limit).
///
/// Index expressions may be negative, like the stride of a flipped axis. They wrap, like u32 arithmetic in kernels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Count {
    /// Work items.
    pub value: Dim,
    /// Work items per workgroup.
    pub per: u32,
    /// Upper limit; the kernel loops over the rest.
    pub limit: u32,
}

impl Count {
    /// A constant.
    pub fn constant(value: u32) -> Self {
        Count { value: value.into(), per: 1, limit: u32::MAX }
    }

    /// Workgroups along an axis of the grid: one per `per` items, up to the device's limit.
    pub(crate) fn along(caps: &DeviceCaps, axis: usize, value: Dim, per: u32) -> Self {
        Count { value, per, limit: caps.max_workgroup_count[axis] }
    }

    /// A grid along x.
    pub(crate) fn along_x(caps: &DeviceCaps, value: Dim, per: u32) -> [Count; 3] {
        [Count::along(caps, 0, value, per), Count::constant(1), Count::constant(1)]
    }

    /// The value, if it contains no symbol.
    pub fn as_const(&self) -> Option<u32> {
        self.of(self.value.as_const()?)
    }

    /// The largest value over all symbol bindings, before the limit.
    pub fn most(&self) -> u64 {
        u64::try_from(self.value.max_value()).unwrap_or(0).div_ceil(u64::from(self.per))
    }

    /// The value under `bindings`; `None` for an unbound symbol.
    pub fn eval(&self, bindings: &Bindings) -> Option<u32> {
        self.of(self.value.eval(bindings)?)
    }

    fn of(&self, value: i64) -> Option<u32> {
        if value < 0 && self.per == 1 && self.limit == u32::MAX {
            return Some(value as u32);
        }
        let groups = u64::try_from(value).unwrap_or(0).div_ceil(u64::from(self.per));
        Some(u32::try_from(groups).unwrap_or(u32::MAX).min(self.limit))
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.as_const(), self.per) {
            (Some(n), _) => write!(f, "{n}"),
            (None, 1) => write!(f, "{}", self.value),
            (None, per) => write!(f, "ceil(({})/{per})", self.value),
        }
    }
}

/// An entry of the table, 32 bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// A number of workgroups or an index expression.
    Count(Count),
    /// The multiplier for division by an extent, see [`divisor`].
    Multiplier(Dim),
    /// The shifts for division by an extent, see [`divisor`].
    Shifts(Dim),
}

impl Entry {
    /// The value under `bindings`; `None` for an unbound symbol.
    pub fn eval(&self, bindings: &Bindings) -> Option<u32> {
        let divisor = |dim: &Dim| Some(divisor(u32::try_from(dim.eval(bindings)?).unwrap_or(0)));
        match self {
            Entry::Count(count) => count.eval(bindings),
            Entry::Multiplier(dim) => Some(divisor(dim)?.0),
            Entry::Shifts(dim) => Some(divisor(dim)?.1),
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Count(count) => count.fmt(f),
            Entry::Multiplier(dim) => write!(f, "multiplier of 1/({dim})"),
            Entry::Shifts(dim) => write!(f, "shifts of 1/({dim})"),
        }
    }
}

/// The multiplier and shifts that replace division by `d` (Granlund and Montgomery, "Division by Invariant Integers
/// using Multiplication", 1994, figure 4.1).
///
/// With `l = ceil(log2 d)`, the multiplier is `m = floor(2^32 (2^l - d) / d) + 1`. The shifts are `first = min(l, 1)`
/// in bit 0 and `second = max(l - 1, 0)` in the bits above. For every 32-bit `x`, with `h` the upper half of `m x`, `x
/// / d` is `(h + ((x - h) >> first)) >> second`. A `d` of 0 gives the result for 1.
pub fn divisor(d: u32) -> (u32, u32) {
    let d = u64::from(d.max(1));
    let l = d.next_power_of_two().ilog2();
    let multiplier = (((1u64 << l) - d) << 32) / d + 1;
    // Below 2^32, since 2^l < 2 d.
    (multiplier as u32, l.min(1) | l.saturating_sub(1) << 1)
}

/// The ordered table of symbol expressions that the kernels and indirect dispatches of one program read, one u32 each.
/// The CPU fills it before a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    entries: Vec<Entry>,
}

impl Table {
    /// The position of `dim`, added if new.
    pub fn slot(&mut self, dim: &Dim) -> usize {
        self.run(&[expression(dim)], 1)
    }

    /// The position of the multiplier for division by `dim`; the shifts follow it. Added if new.
    pub fn divisor(&mut self, dim: &Dim) -> usize {
        self.run(&[Entry::Multiplier(dim.clone()), Entry::Shifts(dim.clone())], 1)
    }

    /// The byte range of consecutive entries that start at a multiple of `alignment` bytes. Added if new.
    pub fn block(&mut self, values: &[Dim], alignment: u64) -> (u64, u64) {
        let per = usize::try_from(alignment / 4).unwrap_or(1).max(1);
        let at = self.run(&values.iter().map(expression).collect::<Vec<_>>(), per);
        (4 * at as u64, 4 * (at + values.len()) as u64)
    }

    /// The position of the first of three consecutive entries that hold a grid. Added if new.
    pub fn grid(&mut self, grid: &[Count; 3]) -> usize {
        self.run(&grid.clone().map(Entry::Count), 1)
    }

    /// The position of the consecutive entries `wanted`, a multiple of `per`. Added if new.
    fn run(&mut self, wanted: &[Entry], per: usize) -> usize {
        let known = (0..self.entries.len()).step_by(per).find(|at| self.entries[*at..].starts_with(wanted));
        known.unwrap_or_else(|| {
            let at = self.entries.len().next_multiple_of(per);
            self.entries.resize(at, Entry::Count(Count::constant(0)));
            self.entries.extend_from_slice(wanted);
            at
        })
    }

    /// The entries in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The values under `bindings`; `None` for an unbound symbol.
    pub fn eval(&self, bindings: &Bindings) -> Option<Vec<u32>> {
        self.entries.iter().map(|e| e.eval(bindings)).collect()
    }
}

/// The entry of an index expression.
fn expression(dim: &Dim) -> Entry {
    Entry::Count(Count { value: dim.clone(), per: 1, limit: u32::MAX })
}

#[cfg(test)]
mod tests {
    use super::divisor;

    /// The computation in kernels (`div_by` in `templates/math.glsl`).
    fn quotient(x: u32, d: u32) -> u32 {
        let (multiplier, shifts) = divisor(d);
        let high = ((u64::from(x) * u64::from(multiplier)) >> 32) as u32;
        (high + ((x - high) >> (shifts & 1))) >> (shifts >> 1)
    }

    #[test]
    fn division_is_a_multiplication() {
        let near = |x: u32| [x.saturating_sub(1), x, x.saturating_add(1)];
        let mut numbers: Vec<u32> = (0..32).flat_map(|bit| near(1 << bit)).chain(near(u32::MAX)).collect();
        numbers.extend([3, 5, 7, 10, 12, 100, 641, 4095, 65535, 1_000_003, 0x5555_5555, 0xaaaa_aaaa]);
        for d in numbers.iter().copied().filter(|d| *d > 0) {
            let multiples = [1, 2, 3, 1000].map(|k| d.wrapping_mul(k)).into_iter().flat_map(near);
            for x in numbers.iter().copied().chain(multiples) {
                assert_eq!(quotient(x, d), x / d, "{x} / {d}");
            }
        }
        assert_eq!(quotient(7, 0), 7);
    }
}
