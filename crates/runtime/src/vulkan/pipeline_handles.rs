//! The Vulkan objects of one compute pipeline, made alike for devices that run work and for devices that only compile.

use std::borrow::Cow;

use ash::vk;
use tallow_codegen::Kernel;
use tallow_ir::caps::DeviceCaps;

use super::error::vulkan;
use super::spirv;
use crate::error::{Error, Result};

/// What a pipeline is made of.
#[derive(Clone, Copy, Debug)]
pub struct PipelineDesc<'a> {
    /// Name for errors and timings.
    pub name: &'a str,
    /// A valid SPIR-V module with one compute entry point `main`.
    pub spirv: &'a [u32],
    /// Storage buffers: bindings 0 to `bindings - 1` of set 0.
    pub bindings: u32,
    /// Bytes of push constants, a multiple of 4.
    pub push_bytes: u32,
    /// Subgroup size that the kernel is written for, if it is written for one.
    pub required_subgroup_size: Option<u32>,
}

impl<'a> PipelineDesc<'a> {
    /// The pipeline of a generated kernel, of which `spirv` is the module.
    pub fn of(kernel: &'a Kernel, spirv: &'a [u32]) -> PipelineDesc<'a> {
        let bindings = kernel.bindings.len() as u32;
        let required_subgroup_size = kernel.schedule.subgroup;
        PipelineDesc { name: &kernel.name, spirv, bindings, push_bytes: 0, required_subgroup_size }
    }
}

/// What creating a pipeline needs to know of an open device.
#[derive(Clone, Copy)]
pub(super) struct PipelineDevice<'a> {
    pub(super) raw: &'a ash::Device,
    pub(super) caps: &'a DeviceCaps,
    /// Pipelines that ask for a subgroup size also ask for full subgroups.
    pub(super) full_subgroups: bool,
    /// Pipelines say that no access is checked against the bounds of its buffer.
    pub(super) pipeline_robustness: bool,
    /// The driver keeps what it can say of the machine code.
    pub(super) capture_statistics: bool,
    /// Modules ask the driver not to unroll loops.
    pub(super) rolled_loops: bool,
}

/// A pipeline and its layouts.
pub(super) struct PipelineHandles {
    pub(super) pipeline: vk::Pipeline,
    pub(super) layout: vk::PipelineLayout,
    pub(super) set_layout: vk::DescriptorSetLayout,
}

impl PipelineHandles {
    /// Checks a description against the device's limits and creates the pipeline. The caller destroys it.
    pub(super) fn create(
        device: PipelineDevice<'_>,
        cache: vk::PipelineCache,
        desc: &PipelineDesc<'_>,
    ) -> Result<PipelineHandles> {
        let local_size = check(device.caps, desc).map_err(|reason| bad(desc, reason))?;
        let mut handles = PipelineHandles {
            pipeline: vk::Pipeline::null(),
            layout: vk::PipelineLayout::null(),
            set_layout: vk::DescriptorSetLayout::null(),
        };
        match handles.fill(device, cache, desc, local_size) {
            Ok(()) => Ok(handles),
            Err(error) => {
                // SAFETY: the objects were just created from this device, and nothing uses them.
                unsafe { handles.destroy(device.raw) };
                Err(error)
            }
        }
    }

    /// Destroys what was created; null handles are ignored by Vulkan.
    ///
    /// # Safety
    /// The objects belong to `device`, and nothing uses them any more.
    pub(super) unsafe fn destroy(&self, device: &ash::Device) {
        // SAFETY: the caller's promise.
        unsafe {
            device.destroy_pipeline(self.pipeline, None);
            device.destroy_pipeline_layout(self.layout, None);
            device.destroy_descriptor_set_layout(self.set_layout, None);
        }
    }

    fn fill(
        &mut self,
        device: PipelineDevice<'_>,
        cache: vk::PipelineCache,
        desc: &PipelineDesc<'_>,
        local_size: Option<[u32; 3]>,
    ) -> Result<()> {
        self.create_layouts(device.raw, desc)?;
        let words = match device.rolled_loops {
            true => Cow::Owned(spirv::with_rolled_loops(desc.spirv)),
            false => Cow::Borrowed(desc.spirv),
        };
        let module_info = vk::ShaderModuleCreateInfo::default().code(&words);
        // SAFETY: the words form a module (checked above as far as its structure goes; its validity is the
        // contract of `PipelineDesc::spirv`).
        let module = unsafe { device.raw.create_shader_module(&module_info, None) }
            .map_err(|code| vulkan("vkCreateShaderModule", code))?;
        let created = self.create_pipeline(device, cache, module, desc, local_size);
        // SAFETY: the pipeline keeps what it needs of the module.
        unsafe { device.raw.destroy_shader_module(module, None) };
        self.pipeline = created?;
        Ok(())
    }

    fn create_layouts(&mut self, device: &ash::Device, desc: &PipelineDesc<'_>) -> Result<()> {
        let bindings: Vec<_> = (0..desc.bindings)
            .map(|binding| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: the number of bindings is within the device's limits (`check`).
        self.set_layout = unsafe { device.create_descriptor_set_layout(&info, None) }
            .map_err(|code| vulkan("vkCreateDescriptorSetLayout", code))?;
        let sets = [self.set_layout];
        let push = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .offset(0)
            .size(desc.push_bytes)];
        let push_ranges = if desc.push_bytes > 0 { &push[..] } else { &[] };
        let info =
            vk::PipelineLayoutCreateInfo::default().set_layouts(&sets).push_constant_ranges(push_ranges);
        // SAFETY: the set layout is live, the push range within the device's limits (`check`).
        self.layout = unsafe { device.create_pipeline_layout(&info, None) }
            .map_err(|code| vulkan("vkCreatePipelineLayout", code))?;
        Ok(())
    }

    fn create_pipeline(
        &self,
        device: PipelineDevice<'_>,
        cache: vk::PipelineCache,
        module: vk::ShaderModule,
        desc: &PipelineDesc<'_>,
        local_size: Option<[u32; 3]>,
    ) -> Result<vk::Pipeline> {
        let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default();
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main");
        if let Some(lanes) = desc.required_subgroup_size {
            size = size.required_subgroup_size(lanes);
            stage = stage.push_next(&mut size);
            // Vulkan allows to ask for full subgroups where the workgroup is a multiple of them along x.
            let divides = local_size.is_some_and(|[x, _, _]| x % lanes == 0);
            if device.full_subgroups && divides {
                stage = stage.flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS);
            }
        }
        let unchecked = vk::PipelineRobustnessBufferBehaviorEXT::DISABLED;
        let mut robustness = vk::PipelineRobustnessCreateInfoEXT::default().storage_buffers(unchecked);
        let mut feedback = vk::PipelineCreationFeedback::default();
        let mut told =
            vk::PipelineCreationFeedbackCreateInfo::default().pipeline_creation_feedback(&mut feedback);
        let mut info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(self.layout);
        if device.pipeline_robustness {
            info = info.push_next(&mut robustness);
        }
        if device.capture_statistics {
            info = info.flags(vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR);
        }
        let api = device.caps.api_version;
        if (api.major, api.minor) >= (1, 3) && tracing::enabled!(tracing::Level::DEBUG) {
            info = info.push_next(&mut told);
        }
        // SAFETY: module, layout and cache are live, and what the structs point to until the call returns; the cache is
        // synchronized by Vulkan.
        let created = unsafe { device.raw.create_compute_pipelines(cache, &[info], None) };
        if feedback.flags.contains(vk::PipelineCreationFeedbackFlags::VALID) {
            let found =
                feedback.flags.contains(vk::PipelineCreationFeedbackFlags::APPLICATION_PIPELINE_CACHE_HIT);
            let what = if found { "found in the cache" } else { "not found in the cache, made" };
            tracing::debug!("pipeline {} {what} in {} us", desc.name, feedback.duration / 1000);
        }
        match created {
            Ok(pipelines) => pipelines
                .first()
                .copied()
                .ok_or_else(|| bad(desc, "the driver returned no pipeline".to_string())),
            Err((_, code)) => match vulkan("vkCreateComputePipelines", code) {
                Error::Vulkan { code, .. } => Err(bad(desc, format!("the driver refused it: {code}"))),
                other => Err(other),
            },
        }
    }
}

fn bad(desc: &PipelineDesc<'_>, reason: String) -> Error {
    Error::BadPipeline { name: desc.name.to_string(), reason }
}

/// Checks a description against the device's limits; returns the workgroup size if the module states it.
fn check(caps: &DeviceCaps, desc: &PipelineDesc<'_>) -> Result<Option<[u32; 3]>, String> {
    let module = spirv::inspect(desc.spirv)?;
    // Vulkan 1.2 takes SPIR-V up to 1.5, Vulkan 1.3 up to 1.6 (Vulkan specification, "SPIR-V environment").
    let newest = if (caps.api_version.major, caps.api_version.minor) >= (1, 3) { (1, 6) } else { (1, 5) };
    if module.version > newest {
        let (major, minor) = module.version;
        return Err(format!("SPIR-V {major}.{minor} is newer than the device's {}.{}", newest.0, newest.1));
    }
    if desc.bindings > caps.max_storage_buffers {
        let most = caps.max_storage_buffers;
        return Err(format!("{} storage buffers, the device binds {most}", desc.bindings));
    }
    if module.bindings > desc.bindings || module.last_set > 0 {
        let (last, set) = (module.bindings.saturating_sub(1), module.last_set);
        return Err(format!(
            "the module uses binding {last}, set {set}; declared: {} of set 0",
            desc.bindings
        ));
    }
    if desc.push_bytes > caps.push_constant_bytes || !desc.push_bytes.is_multiple_of(4) {
        let most = caps.push_constant_bytes;
        return Err(format!("{} bytes of push constants: a multiple of 4 up to {most}", desc.push_bytes));
    }
    if let Some(size) = module.local_size {
        let product = size.iter().map(|&extent| u64::from(extent)).product::<u64>();
        let too_long = size.iter().zip(&caps.max_workgroup_size).any(|(extent, most)| extent > most);
        if too_long || product > u64::from(caps.max_workgroup_invocations) {
            let (most, extents) = (caps.max_workgroup_invocations, caps.max_workgroup_size);
            return Err(format!("workgroup {size:?} exceeds {most} invocations or {extents:?}"));
        }
    }
    if let Some(lanes) = desc.required_subgroup_size {
        let allowed = caps.subgroup_size_min..=caps.subgroup_size_max;
        if !caps.subgroup_size_control || !lanes.is_power_of_two() || !allowed.contains(&lanes) {
            return Err(format!("subgroups of {lanes} cannot be had (control, {allowed:?})"));
        }
        let invocations =
            module.local_size.map_or(1, |size| size.iter().map(|n| u64::from(*n)).product::<u64>());
        let most = caps.max_workgroup_subgroups;
        if invocations > u64::from(lanes) * u64::from(most) {
            return Err(format!("{invocations} invocations are more than {most} subgroups of {lanes}"));
        }
    }
    Ok(module.local_size)
}
