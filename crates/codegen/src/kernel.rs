//! A kernel as plain data: shader text, bindings, grid. No device in sight.

use std::fmt;
use std::sync::Arc;

use tallow_ir::{Bindings, CustomKernel, Dim};

use crate::schedule::Schedule;

/// Which Vulkan a module is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Target {
    /// Vulkan 1.2: SPIR-V 1.5.
    #[default]
    Vulkan12,
    /// Vulkan 1.3: SPIR-V 1.6.
    Vulkan13,
}

impl Target {
    /// The name by which `spirv-val` and the cache know it.
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
    /// Schedule and last op, for people.
    pub name: String,
    /// The shader; equal kernels of different layers have equal text and so share a pipeline.
    pub glsl: String,
    /// Storage buffers by binding number.
    pub bindings: Vec<Binding>,
    /// Invocations along x, y, z.
    pub workgroup: [u32; 3],
    /// Workgroups along x, y, z.
    pub grid: [Count; 3],
    /// Memory of its own, by the number of its [`Source::Scratch`].
    pub scratch: Vec<Scratch>,
    /// Whether spirv-opt works on its SPIR-V. Drivers optimize by themselves, so that it is left out where it gains nothing: with
    /// it 150 shaders of the device tests take 12.0 s, without 0.7 s.
    pub optimize: bool,
    /// Which Vulkan its SPIR-V is for.
    pub target: Target,
    /// The user's kernel that this is, if it is one.
    pub custom: Option<Arc<CustomKernel>>,
    /// How it computes its fusion.
    pub schedule: Schedule,
}

impl Kernel {
    /// The shader without the comments in front of its lines. Two schedules of a small fusion may differ in nothing else.
    pub fn code(&self) -> String {
        self.glsl.lines().filter(|line| !line.starts_with("//")).collect::<Vec<_>>().join("\n")
    }
}

/// Memory through which the workgroups of one dispatch combine their partials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scratch {
    /// What each dispatch needs.
    pub bytes: u64,
    /// What every word holds before the kernel runs, which restores it; `None` if it writes all that it reads.
    pub fill: Option<u32>,
}

/// Which buffer a binding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Operand of the fusion node.
    Operand(u32),
    /// Result of the fusion node.
    Result(u32),
    /// The table of symbol expressions.
    Table,
    /// The codebooks of block formats, as [`tallow_quant::codebooks`] has them.
    Codebooks,
    /// Memory of the kernel's own, see [`Kernel::scratch`].
    Scratch(u32),
}

/// A storage buffer of a kernel, or a window of one that is larger than a binding may span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    /// Which buffer.
    pub source: Source,
    /// Whether the kernel writes it.
    pub written: bool,
    /// The first byte of the buffer that the binding sees, and the byte after the last at most (the buffer may
    /// end before).
    pub range: (u64, u64),
}

/// A number of workgroups, `ceil(value / per)` but at most `limit`, or an index expression (`per` 1, no limit).
///
/// Index expressions may be negative, like the stride of a flipped axis; they wrap, as the u32 arithmetic
/// of kernels does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Count {
    /// Work items.
    pub value: Dim,
    /// Items of one workgroup.
    pub per: u32,
    /// Upper limit; the kernel loops over the rest.
    pub limit: u32,
}

impl Count {
    /// A constant.
    pub fn constant(value: u32) -> Self {
        Count { value: value.into(), per: 1, limit: u32::MAX }
    }

    /// The value, if no symbol occurs in it.
    pub fn as_const(&self) -> Option<u32> {
        self.of(self.value.as_const()?)
    }

    /// The largest value of all runs, before the limit.
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

/// A number of the table, 32 bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// A number of workgroups or an index expression.
    Count(Count),
    /// What division by an extent multiplies by, see [`divisor`].
    Multiplier(Dim),
    /// By how much division by an extent shifts, see [`divisor`].
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

/// Division by `d` as a multiplication (Granlund and Montgomery, "Division by Invariant Integers using
/// Multiplication", 1994, figure 4.1): with `l = ceil(log2 d)` the multiplier `m = floor(2^32 (2^l - d) / d) + 1`, and
/// the shifts `min(l, 1)` in bit 0 and `max(l - 1, 0)` above. For every `x` of 32 bits, with `h` the upper half of `m x`,
/// `x / d` is `(h + ((x - h) >> first)) >> second`. Nothing is divided by 0; it gets what 1 has.
pub fn divisor(d: u32) -> (u32, u32) {
    let d = u64::from(d.max(1));
    let l = d.next_power_of_two().ilog2();
    let multiplier = (((1u64 << l) - d) << 32) / d + 1;
    // Below 2^32, since 2^l < 2 d.
    (multiplier as u32, l.min(1) | l.saturating_sub(1) << 1)
}

/// The ordered table of symbol expressions that kernels and indirect dispatches of one program read, one
/// u32 each. The CPU fills it before a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    entries: Vec<Entry>,
}

impl Table {
    /// The position of `dim`, added if new.
    pub fn slot(&mut self, dim: &Dim) -> usize {
        self.run(&[expression(dim)], 1)
    }

    /// The position of the multiplier and the shifts by which to divide by `dim`.
    pub fn divisor(&mut self, dim: &Dim) -> usize {
        self.run(&[Entry::Multiplier(dim.clone()), Entry::Shifts(dim.clone())], 1)
    }

    /// Consecutive entries that start at a multiple of `alignment` bytes; the bytes that they take.
    pub fn block(&mut self, values: &[Dim], alignment: u64) -> (u64, u64) {
        let per = usize::try_from(alignment / 4).unwrap_or(1).max(1);
        let at = self.run(&values.iter().map(expression).collect::<Vec<_>>(), per);
        (4 * at as u64, 4 * (at + values.len()) as u64)
    }

    /// Three consecutive entries that hold a grid; the position of the first.
    pub fn grid(&mut self, grid: &[Count; 3]) -> usize {
        self.run(&grid.clone().map(Entry::Count), 1)
    }

    /// The position of consecutive entries, a multiple of `per`, added if new.
    fn run(&mut self, wanted: &[Entry], per: usize) -> usize {
        let known = (0..self.entries.len()).step_by(per).find(|at| self.entries[*at..].starts_with(wanted));
        known.unwrap_or_else(|| {
            let at = self.entries.len().next_multiple_of(per);
            self.entries.resize(at, Entry::Count(Count::constant(0)));
            self.entries.extend_from_slice(wanted);
            at
        })
    }

    /// The expressions.
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

/// Why no kernel could be made.
#[derive(Debug, thiserror::Error)]
pub enum CodegenError {
    /// A dtype that shaders for this device cannot compute in.
    #[error("{what}: dtype {dtype} is not supported by kernels on this device")]
    Dtype {
        /// The node.
        what: String,
        /// Its dtype.
        dtype: tallow_ir::DType,
    },
    /// The body does not have the form that its kind needs: a bug in the fuser.
    #[error("bug in fusion: {0}")]
    Form(#[from] tallow_ir::form::Reason),
    /// A template did not render: a bug in the template.
    #[error("bug in template {name}: {source}")]
    Template {
        /// File name.
        name: &'static str,
        /// What the engine said.
        source: minijinja::Error,
    },
    /// A node that must not occur in a kernel.
    #[error("bug in fusion: {0} cannot be computed in a kernel")]
    Node(String),
    /// A resource that the device has too little of.
    #[error("{what} needs {needs} bytes of shared memory, the device has {has}")]
    SharedMemory {
        /// The kernel.
        what: String,
        /// Bytes.
        needs: u32,
        /// Bytes.
        has: u32,
    },
    /// More workgroups than the device dispatches at once, in a kernel that does not loop over the rest.
    #[error("{what} needs {needs} workgroups along one axis, the device has {has}")]
    Grid {
        /// The kernel.
        what: &'static str,
        /// Workgroups, at most.
        needs: u64,
        /// Workgroups.
        has: u32,
    },
    /// A user's kernel that is not what it was registered as, or that the device cannot run.
    #[error("custom kernel '{name}': {why}")]
    Custom {
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// A schedule that is not among the fusion's candidates.
    #[error("{kind} fusion: '{schedule}' is not one of its schedules")]
    NoSuchSchedule {
        /// The fusion's kind.
        kind: &'static str,
        /// The schedule that was asked for.
        schedule: String,
    },
    /// A pass or the verifier failed.
    #[error(transparent)]
    Pass(#[from] tallow_ir::passes::PassError),
    /// Building a graph failed.
    #[error(transparent)]
    Graph(#[from] tallow_ir::GraphError),
    /// The schedule could not be made.
    #[error("{0}")]
    Schedule(String),
    /// shaderc rejected a shader: a bug in code generation.
    #[error("bug in code generation: kernel {name} does not compile:\n{log}")]
    Shader {
        /// The kernel.
        name: String,
        /// Compiler messages.
        log: String,
    },
}

#[cfg(test)]
mod tests {
    use super::divisor;

    /// What kernels compute (`div_by` in `templates/math.glsl`).
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
