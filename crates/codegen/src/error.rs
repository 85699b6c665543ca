//! Errors of code generation.

/// Why kernel generation failed.
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
    /// The body does not have the form that its kind requires: a bug in the fuser.
    #[error("bug in fusion: {0}")]
    Form(#[from] tallow_ir::form::Reason),
    /// A template did not render: a bug in the template.
    #[error("bug in template {name}: {source}")]
    Template {
        /// File name.
        name: &'static str,
        /// The template engine's error.
        source: minijinja::Error,
    },
    /// A node that must not occur in a kernel.
    #[error("bug in fusion: {0} cannot be computed in a kernel")]
    Node(String),
    /// A kernel needs more shared memory than the device has.
    #[error("{what} needs {needs} bytes of shared memory, the device has {has}")]
    SharedMemory {
        /// The kernel.
        what: String,
        /// Bytes that the kernel needs.
        needs: u32,
        /// Bytes that the device has.
        has: u32,
    },
    /// A grid exceeds the device's limit, in a kernel that does not loop over the remainder.
    #[error("{what} needs {needs} workgroups along one axis, the device has {has}")]
    Grid {
        /// The kernel.
        what: &'static str,
        /// The largest number of workgroups that the kernel needs.
        needs: u64,
        /// Workgroups.
        has: u32,
    },
    /// A user-written kernel that differs from its registration, or that the device cannot run.
    #[error("custom kernel '{name}': {why}")]
    Custom {
        /// Its name.
        name: String,
        /// The reason.
        why: String,
    },
    /// A schedule that is not among the fusion's candidates.
    #[error("{kind} fusion: '{schedule}' is not one of its schedules")]
    NoSuchSchedule {
        /// The fusion's kind.
        kind: &'static str,
        /// The requested schedule.
        schedule: String,
    },
    /// A pass or the verifier failed.
    #[error(transparent)]
    Pass(#[from] tallow_ir::passes::PassError),
    /// Building a graph failed.
    #[error(transparent)]
    Graph(#[from] tallow_ir::GraphError),
    /// A budget for intermediate values that is too small.
    #[error(
        "intermediate values take {bytes} bytes, and {least} if kernels run again to free memory: {} more than the \
         budget of {budget}",
        least.saturating_sub(*budget)
    )]
    Memory {
        /// What they take if each kernel runs once.
        bytes: u64,
        /// The budget.
        budget: u64,
        /// The least that was found.
        least: u64,
    },
    /// A stage that only arranges kernels changed what they compute.
    #[error("bug in {0}: the graph computes something else")]
    Rebuilt(&'static str),
    /// Scheduling failed.
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
