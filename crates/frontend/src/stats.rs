//! Figures of compiled graphs.

/// Figures of a compiled graph. Those of commands and memory are 0 on the interpreter, which has neither.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExecStats {
    /// Kernels launched in one run.
    pub dispatches: usize,
    /// Groups of dispatches that need no order among themselves.
    pub levels: usize,
    /// Barriers between the dispatches of one run.
    pub barriers: usize,
    /// The fewest barriers that any order could do with: the longest chain of dependent dispatches less one.
    pub barriers_lower_bound: usize,
    /// Size of the memory arena for intermediate values, in bytes.
    pub arena_bytes: u64,
    /// The largest set of intermediate values that live at one level, in bytes.
    pub arena_lower_bound_bytes: u64,
    /// Size of the weights as the device holds them, in bytes.
    pub weight_bytes: u64,
    /// Command buffers recorded so far.
    pub recordings: usize,
    /// Pipelines created so far.
    pub pipelines: usize,
    /// Time that compiling took, in milliseconds.
    pub compile_ms: f64,
    /// Kernels whose SPIR-V came from the cache on disk.
    pub spirv_cache_hits: usize,
}
