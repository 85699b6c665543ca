//! A device that compiles pipelines and runs nothing: no queue is used, no memory is allocated, no semaphore created.
//!
//! It exists for drivers without hardware. Mesa's RADV makes one up where `RADV_FORCE_FAMILY` is set, and compiles for it
//! what it would compile for the real one.

use std::ffi::CStr;
use std::sync::Arc;

use ash::{khr, vk};
use tallow_ir::caps::DeviceCaps;

use super::caps;
use super::device::{create_device, reduced};
use super::error::vulkan;
use super::instance::Instance;
use super::physical_device;
use super::pipeline_handles::{PipelineDesc, PipelineDevice, PipelineHandles};
use crate::error::{Error, Result};
use crate::options::RuntimeOptions;
use crate::statistics::{ExecutableStatistics, PipelineStatistics, Statistic, StatisticValue};

/// An open device that compiles pipelines only. It may be shared between threads.
pub struct CompileOnly {
    raw: ash::Device,
    caps: DeviceCaps,
    full_subgroups: bool,
    pipeline_robustness: bool,
    /// The functions that tell of pipelines, where the driver has them.
    executables: Option<khr::pipeline_executable_properties::Device>,
    instance: Arc<Instance>,
}

impl CompileOnly {
    /// Opens the device that the options name. Without a name that is a device without hardware, if the driver was told to
    /// make one up, else the best there is.
    ///
    /// # Errors
    /// When there is no such device, or it cannot be opened.
    pub fn new(options: &RuntimeOptions) -> Result<CompileOnly> {
        let instance = Instance::open(options)?;
        let found = physical_device::candidates(&instance)?;
        let chosen = physical_device::choose_to_compile(found, options.device.as_deref())?;
        let (queried, compute) = chosen.answers()?;
        // Not asked: `coopmat_fragment_layout`, which only a kernel that runs can tell.
        let caps = reduced(queried, options);
        let enabled = caps::enable(queried, &caps);
        let mut enabled = enabled.with_statistics(&instance, chosen.physical)?;
        let raw = create_device(&instance, chosen.physical, compute.family, &mut enabled)?;
        let functions = || khr::pipeline_executable_properties::Device::new(&instance.raw, &raw);
        Ok(CompileOnly {
            caps,
            full_subgroups: enabled.full_subgroups,
            pipeline_robustness: enabled.pipeline_robustness,
            executables: enabled.statistics.then(functions),
            raw,
            instance,
        })
    }

    /// What the device can do, less what the options disabled.
    pub fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    /// Whether the driver tells of its machine code: if not, [`CompileOnly::compile`] gives empty statistics.
    pub fn has_statistics(&self) -> bool {
        self.executables.is_some()
    }

    /// Creates a pipeline as a device that runs it would, asks what became of it and destroys it.
    ///
    /// # Errors
    /// When the description exceeds the device's limits, or the driver or the validation layer refuses it.
    pub fn compile(&self, desc: &PipelineDesc<'_>) -> Result<PipelineStatistics> {
        let device = PipelineDevice {
            raw: &self.raw,
            caps: &self.caps,
            full_subgroups: self.full_subgroups,
            pipeline_robustness: self.pipeline_robustness,
            capture_statistics: self.executables.is_some(),
            rolled_loops: false,
        };
        let handles = PipelineHandles::create(device, vk::PipelineCache::null(), desc);
        let asked = handles.and_then(|handles| {
            let asked = self.statistics(handles.pipeline);
            // SAFETY: the objects belong to this device, and nothing else knows of them.
            unsafe { handles.destroy(&self.raw) };
            asked
        });
        // What the layer says of a module explains a refusal better than the driver does.
        match self.instance.take_validation_errors() {
            errors if errors.is_empty() => asked,
            errors => Err(Error::Validation(errors)),
        }
    }

    fn statistics(&self, pipeline: vk::Pipeline) -> Result<PipelineStatistics> {
        let Some(functions) = &self.executables else { return Ok(PipelineStatistics::default()) };
        let info = vk::PipelineInfoKHR::default().pipeline(pipeline);
        // SAFETY: the feature is enabled, and the pipeline is live and belongs to this device.
        let found = unsafe { functions.get_pipeline_executable_properties(&info) }
            .map_err(|code| vulkan("vkGetPipelineExecutablePropertiesKHR", code))?;
        let mut executables = Vec::new();
        for (index, executable) in (0..).zip(&found) {
            let info = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline).executable_index(index);
            // SAFETY: as above; the pipeline was created to capture statistics, and has this many executables.
            let figures = unsafe { functions.get_pipeline_executable_statistics(&info) }
                .map_err(|code| vulkan("vkGetPipelineExecutableStatisticsKHR", code))?;
            executables.push(ExecutableStatistics {
                name: text(executable.name_as_c_str().ok()),
                description: text(executable.description_as_c_str().ok()),
                subgroup_size: executable.subgroup_size,
                statistics: figures.iter().filter_map(statistic).collect(),
            });
        }
        Ok(PipelineStatistics::new(executables))
    }
}

fn statistic(figure: &vk::PipelineExecutableStatisticKHR<'_>) -> Option<Statistic> {
    use vk::PipelineExecutableStatisticFormatKHR as Format;
    // SAFETY: the driver says which of the four the value is; all of them are valid for any bits.
    let value = unsafe {
        match figure.format {
            Format::BOOL32 => StatisticValue::Bool(figure.value.b32 != vk::FALSE),
            Format::INT64 => StatisticValue::Signed(figure.value.i64),
            Format::UINT64 => StatisticValue::Unsigned(figure.value.u64),
            Format::FLOAT64 => StatisticValue::Float(figure.value.f64),
            // Vulkan's enumerations are open: what this version does not know cannot be shown.
            _ => return None,
        }
    };
    let (name, description) = (text(figure.name_as_c_str().ok()), text(figure.description_as_c_str().ok()));
    Some(Statistic { name, description, value })
}

fn text(text: Option<&CStr>) -> String {
    text.map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

impl std::fmt::Debug for CompileOnly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CompileOnly({})", self.caps.name)
    }
}

impl Drop for CompileOnly {
    fn drop(&mut self) {
        // SAFETY: every pipeline was destroyed by the call that created it.
        unsafe { self.raw.destroy_device(None) };
    }
}
