//! What a driver says of the machine code that it made of kernels.

use serde::Serialize;

/// Which kernels of graphs are compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coverage {
    /// Those that the cost model chooses.
    #[default]
    Chosen,
    /// The tuner's other candidates, too.
    Candidates,
}

/// What became of one distinct kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelReport {
    /// Schedule and last op. Kernels of different shapes may share a name.
    pub name: String,
    /// Whether it is a tuning candidate that no graph runs by default.
    pub candidate: bool,
    /// Which of the graphs run it, or could, by their names.
    pub graphs: Vec<String>,
    /// Dispatches of it in all those graphs.
    pub dispatches: usize,
    /// Invocations of a workgroup along x, y and z.
    pub workgroup: [u32; 3],
    /// What the driver says of it, or why it does not compile.
    pub outcome: Result<PipelineStatistics, String>,
}

/// The statistics of one compute pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PipelineStatistics {
    /// The figures that all drivers have under names of their own.
    pub resources: Resources,
    /// All that the driver said; empty where it has no `VK_KHR_pipeline_executable_properties`.
    pub executables: Vec<ExecutableStatistics>,
}

/// One piece of machine code. A compute pipeline has one with most drivers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExecutableStatistics {
    /// The driver's name for it.
    pub name: String,
    /// What the driver says it is.
    pub description: String,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
    /// What was counted.
    pub statistics: Vec<Statistic>,
}

/// One figure of a piece of machine code.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Statistic {
    /// The driver's name for it.
    pub name: String,
    /// What it means, with its unit.
    pub description: String,
    /// The figure.
    pub value: StatisticValue,
}

/// The value of a [`Statistic`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum StatisticValue {
    /// Yes or no.
    Bool(bool),
    /// A number that may be negative.
    Signed(i64),
    /// A number.
    Unsigned(u64),
    /// A fraction.
    Float(f64),
}

impl StatisticValue {
    /// The value as a count, if it is one.
    fn count(self) -> Option<u64> {
        match self {
            StatisticValue::Unsigned(value) => Some(value),
            StatisticValue::Signed(value) => u64::try_from(value).ok(),
            StatisticValue::Bool(_) | StatisticValue::Float(_) => None,
        }
    }
}

/// What a kernel takes of the hardware; `None` where the driver does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resources {
    /// Vector registers: 32-bit registers of each invocation.
    pub vgprs: Option<u64>,
    /// Scalar registers: 32-bit registers that a subgroup shares.
    pub sgprs: Option<u64>,
    /// Vector registers that did not fit, and lie in memory.
    pub spilled_vgprs: Option<u64>,
    /// Scalar registers that did not fit, and lie in vector registers or in memory.
    pub spilled_sgprs: Option<u64>,
    /// Private memory in bytes, of a subgroup (AMD, Intel) or an invocation (NVIDIA): spilled registers, and arrays that are
    /// indexed by what the compiler does not know.
    pub scratch_bytes: Option<u64>,
    /// Shared memory of a workgroup, in bytes.
    pub shared_memory_bytes: Option<u64>,
    /// Machine code, in bytes.
    pub code_bytes: Option<u64>,
    /// Subgroups that a SIMD unit holds at once, at most (AMD's occupancy).
    pub waves: Option<u64>,
    /// Invocations of a subgroup.
    pub subgroup_size: Option<u64>,
}

/// The names of a figure with several drivers.
type Names = &'static [&'static str];

// Sources: Mesa 22.3, radv_GetPipelineExecutableStatisticsKHR in src/amd/vulkan/radv_pipeline.c,
// anv_GetPipelineExecutableStatisticsKHR in src/intel/vulkan/anv_pipeline.c; what NVIDIA's driver 570 returns. Each row here has
// AMD's name first. Intel counts spill instructions, not registers: 0 means the same.
const VGPRS: Names = &["VGPRs", "Register Count"];
const SGPRS: Names = &["SGPRs"];
const SPILLED_VGPRS: Names = &["Spilled VGPRs", "Spill Count"];
const SPILLED_SGPRS: Names = &["Spilled SGPRs"];
const SCRATCH: Names = &["Scratch size", "Scratch Memory Size", "Local Memory Size"];
const SHARED: Names = &["LDS size", "Workgroup Memory Size", "Shared Memory Size"];
const CODE: Names = &["Code size", "Binary Size"];
const WAVES: Names = &["Subgroups per SIMD"];

impl PipelineStatistics {
    /// With the resources found among what the driver said.
    pub fn new(executables: Vec<ExecutableStatistics>) -> PipelineStatistics {
        let figure = |names: Names| {
            let all = executables.iter().flat_map(|executable| &executable.statistics);
            let counts = all.filter(|figure| names.contains(&figure.name.as_str()));
            counts.filter_map(|figure| figure.value.count())
        };
        // Of several pieces of code any may run: the worst counts.
        let most = |names: Names| figure(names).max();
        let sizes = executables.iter().map(|executable| u64::from(executable.subgroup_size));
        let resources = Resources {
            vgprs: most(VGPRS),
            sgprs: most(SGPRS),
            spilled_vgprs: most(SPILLED_VGPRS),
            spilled_sgprs: most(SPILLED_SGPRS),
            scratch_bytes: most(SCRATCH),
            shared_memory_bytes: most(SHARED),
            code_bytes: most(CODE),
            waves: figure(WAVES).min(),
            subgroup_size: sizes.max(),
        };
        PipelineStatistics { resources, executables }
    }
}

impl Resources {
    /// Registers that did not fit, vector and scalar together; 0 where the driver does not say.
    pub fn spilled(&self) -> u64 {
        self.spilled_vgprs.unwrap_or(0) + self.spilled_sgprs.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executable(figures: &[(&str, StatisticValue)]) -> ExecutableStatistics {
        let statistic = |(name, value): &(&str, StatisticValue)| Statistic {
            name: name.to_string(),
            description: String::new(),
            value: *value,
        };
        ExecutableStatistics {
            name: "main".into(),
            description: String::new(),
            subgroup_size: 32,
            statistics: figures.iter().map(statistic).collect(),
        }
    }

    #[test]
    fn figures_are_found_under_the_names_of_each_driver() {
        use StatisticValue::{Signed, Unsigned};
        let amd = executable(&[
            ("VGPRs", Unsigned(48)),
            ("SGPRs", Unsigned(128)),
            ("Spilled VGPRs", Unsigned(3)),
            ("Spilled SGPRs", Unsigned(2)),
            ("Subgroups per SIMD", Unsigned(16)),
        ]);
        let amd = PipelineStatistics::new(vec![amd]).resources;
        assert_eq!((amd.vgprs, amd.sgprs, amd.waves), (Some(48), Some(128), Some(16)));
        assert_eq!((amd.spilled(), amd.scratch_bytes, amd.subgroup_size), (5, None, Some(32)));
        let nvidia = executable(&[("Register Count", Unsigned(40)), ("Binary Size", Signed(1024))]);
        let nvidia = PipelineStatistics::new(vec![nvidia]).resources;
        assert_eq!((nvidia.vgprs, nvidia.code_bytes, nvidia.spilled()), (Some(40), Some(1024), 0));
    }

    #[test]
    fn the_worst_of_several_pieces_of_code_counts() {
        let piece = |registers, waves| {
            executable(&[
                ("VGPRs", StatisticValue::Unsigned(registers)),
                ("Subgroups per SIMD", StatisticValue::Unsigned(waves)),
            ])
        };
        let found = PipelineStatistics::new(vec![piece(24, 16), piece(96, 8)]).resources;
        assert_eq!((found.vgprs, found.waves), (Some(96), Some(8)));
        assert_eq!(PipelineStatistics::new(vec![]), PipelineStatistics::default());
    }
}
