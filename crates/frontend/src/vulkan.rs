//! The Vulkan side of [`crate::Device`], [`crate::Weight`], [`crate::GraphState`] and tensors.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tallow_ir::{Bindings, Graph, TensorType};
use tallow_runtime::executable::{Compiled, DeviceState, DeviceWeight, ExecError};
use tallow_runtime::lazy::{DeviceValue, Operands, Plan, RunMemory};
use tallow_runtime::vulkan::{Context, MemoryUse, Objects};
use tallow_runtime::{Error as RuntimeError, RuntimeOptions};

use crate::device_info::{DeviceMemory, VulkanDeviceInfo};
use crate::dynamic::Dynamics;
use crate::error::{Error, Result};

/// An open Vulkan device; clones are the same device.
#[derive(Clone)]
pub struct VulkanDevice {
    context: Arc<Context>,
    evaluation: Arc<Mutex<()>>,
    dynamics: Arc<Dynamics>,
    /// Not in what the cache of programs holds, which would keep the device open otherwise.
    _user: Option<Arc<User>>,
}

/// What users of a device share: they, their tensors and their functions. With it go the device's programs.
struct User(Arc<Context>);

/// Drops what is cached for a device.
static FORGET: OnceLock<fn(&VulkanDevice)> = OnceLock::new();

/// `forget` is called whenever the last user of a device is gone. The one cache of programs calls this.
pub(crate) fn when_unused(forget: fn(&VulkanDevice)) {
    FORGET.get_or_init(|| forget);
}

impl Drop for User {
    fn drop(&mut self) {
        // What was never set has cached nothing.
        if let Some(forget) = FORGET.get() {
            let context = self.0.clone();
            forget(&VulkanDevice {
                context,
                evaluation: Arc::default(),
                dynamics: Arc::new(Dynamics::new()),
                _user: None,
            });
        }
    }
}

impl PartialEq for VulkanDevice {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.context, &other.context)
    }
}

impl Eq for VulkanDevice {}

impl fmt::Debug for VulkanDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VulkanDevice({:?})", self.context.caps().name)
    }
}

pub(crate) fn no_vulkan(error: RuntimeError) -> Error {
    Error::NoVulkan(error.to_string())
}

pub(crate) fn device_error(error: ExecError) -> Error {
    match error {
        ExecError::Device(RuntimeError::OutOfMemory { what, bytes, reason }) => {
            Error::OutOfMemory { what, bytes, reason }
        }
        other => Error::Device(other.to_string()),
    }
}

impl VulkanDevice {
    /// Opens the device with this ordinal, or the best one (or the one that `TALLOW_DEVICE` names).
    pub(crate) fn open(ordinal: Option<usize>) -> Result<VulkanDevice> {
        let mut options = RuntimeOptions::from_env().map_err(no_vulkan)?;
        if let Some(ordinal) = ordinal {
            options.device = Some(ordinal.to_string());
        }
        VulkanDevice::open_with(&options)
    }

    pub(crate) fn open_with(options: &RuntimeOptions) -> Result<VulkanDevice> {
        let context = Context::new(options).map_err(no_vulkan)?;
        let user = Some(Arc::new(User(context.clone())));
        Ok(VulkanDevice {
            context,
            evaluation: Arc::default(),
            dynamics: Arc::new(Dynamics::new()),
            _user: user,
        })
    }

    /// Held from the reading of expressions to the end of their evaluation, which may overwrite values that nobody needs
    /// then: no other thread may read expressions meanwhile.
    pub(crate) fn evaluation(&self) -> MutexGuard<'_, ()> {
        self.evaluation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same device for the cache of programs, whose entries must not hold it open.
    pub(crate) fn for_cache(&self) -> VulkanDevice {
        let VulkanDevice { context, evaluation, dynamics, .. } = self.clone();
        VulkanDevice { context, evaluation, dynamics, _user: None }
    }

    pub(crate) fn dynamics(&self) -> &Dynamics {
        &self.dynamics
    }

    /// Tells whether the device is still open when its users are gone: for tests.
    #[doc(hidden)]
    pub fn watch(&self) -> Weak<Context> {
        Arc::downgrade(&self.context)
    }

    /// The driver's name for the device.
    pub fn name(&self) -> String {
        self.context.caps().name.clone()
    }

    /// Command lists recorded and pipelines created on this device so far.
    pub fn work_done(&self) -> (u64, u64) {
        let counters = self.context.counters();
        (counters.recordings, counters.pipelines_created)
    }

    /// How many Vulkan objects of each kind the device has now.
    pub fn objects(&self) -> Objects {
        self.context.objects()
    }

    /// Calls of `vkQueueSubmit` on this device so far.
    pub fn submissions(&self) -> u64 {
        self.context.counters().submits
    }

    /// What the device can do, less what `TALLOW_DISABLE` took away.
    pub fn caps(&self) -> &tallow_ir::DeviceCaps {
        self.context.caps()
    }

    /// Size of the device's own memory in bytes, of which other programs may use a part.
    pub fn memory_bytes(&self) -> u64 {
        self.context.memory_bytes()
    }

    pub(crate) fn bus_bandwidth(&self) -> Result<Option<f64>> {
        self.context.bus_bandwidth().map_err(|error| device_error(error.into()))
    }

    pub(crate) fn polls(&self) -> bool {
        self.context.polls()
    }

    pub(crate) fn set_tuning(&self, on: bool) {
        self.context.set_tuning(on);
    }

    pub(crate) fn release_staging(&self) {
        self.context.release_staging();
    }

    pub(crate) fn close(&self) -> Result<()> {
        self.context.close().map_err(|error| Error::Device(error.to_string()))
    }

    /// Kernels and plan of a graph, with at most `budget` bytes of intermediate values.
    pub(crate) fn kernels(&self, graph: &Graph, budget: Option<u64>) -> Result<Compiled> {
        Compiled::within(&self.context, graph, budget).map_err(device_error)
    }

    /// As [`VulkanDevice::kernels`], with kernels that `edit` changes.
    pub(crate) fn edited_kernels(
        &self,
        graph: &Graph,
        edit: &mut dyn FnMut(&mut [tallow_codegen::Kernel]),
    ) -> Result<Compiled> {
        Compiled::edited(&self.context, graph, edit).map_err(device_error)
    }

    /// What memory is left for intermediate values, in bytes. An arena's block is larger by up to a 64th, and
    /// inputs and results need memory, too, so a 16th is not counted.
    pub(crate) fn bytes_left(&self) -> u64 {
        let DeviceMemory { in_use, budget, .. } = self.memory();
        budget.unwrap_or(self.context.memory_bytes()).saturating_sub(in_use) / 16 * 15
    }

    /// As [`VulkanDevice::kernels`], for weights that are given to each run.
    fn kernels_for_any_weights(&self, graph: &Graph) -> Result<Compiled> {
        Compiled::for_any_weights(&self.context, graph).map_err(device_error)
    }

    pub(crate) fn weight(&self, ty: &TensorType, bytes: &[u8]) -> Result<DeviceWeight> {
        DeviceWeight::upload(&self.context, "weight", ty, bytes, &mut |_, _| {}).map_err(device_error)
    }

    pub(crate) fn host_weight(&self, ty: &TensorType, bytes: &[u8]) -> Result<DeviceWeight> {
        let (context, memory) = (&self.context, MemoryUse::Host);
        DeviceWeight::upload_to(context, memory, "weight", ty, bytes, &mut |_, _| {}).map_err(device_error)
    }

    pub(crate) fn read_weight(&self, weight: &DeviceWeight) -> Result<Vec<u8>> {
        weight.read(&self.context).map_err(device_error)
    }

    /// A plan that is appended to the stream, see [`LazyPlan`].
    pub(crate) fn lazy_plan(&self, graph: &Graph) -> Result<LazyPlan> {
        self.plan_of(self.kernels_for_any_weights(graph)?)
    }

    pub(crate) fn plan_of(&self, kernels: Compiled) -> Result<LazyPlan> {
        let plan = Plan::new(kernels).map_err(device_error)?;
        Ok(LazyPlan { device: self.clone(), plan, copies: vec![] })
    }

    /// The host's bytes of a tensor as a value on the device. It does not wait for the device.
    pub(crate) fn upload(&self, bytes: &[u8]) -> Result<OnDevice> {
        let block = self.context.block_of("tensor", bytes).map_err(|error| device_error(error.into()))?;
        Ok(OnDevice { device: self.clone(), value: DeviceValue::Block(block) })
    }

    /// The elements of a weight, as a value.
    pub(crate) fn value_of(&self, weight: &DeviceWeight) -> OnDevice {
        OnDevice { device: self.clone(), value: weight.value().clone() }
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        self.context.wait_idle().map_err(|error| device_error(error.into()))
    }

    pub(crate) fn memory(&self) -> DeviceMemory {
        DeviceMemory::of(self.context.memory(), self.caps().unified_memory)
    }

    /// See [`Context::fail_allocations`].
    #[doc(hidden)]
    pub fn fail_allocations(&self, after_and_count: Option<(u64, u64)>) {
        self.context.fail_allocations(after_and_count);
    }

    /// Gives memory that is cached back to the driver, once the device is done with it; returns how many bytes.
    ///
    /// # Errors
    /// When the device failed.
    pub fn trim(&self) -> Result<u64> {
        self.context.trim().map_err(|error| device_error(error.into()))
    }

    /// Bytes that were uploaded to this device and downloaded from it so far.
    pub fn bytes_moved(&self) -> (u64, u64) {
        let counters = self.context.counters();
        (counters.bytes_uploaded, counters.bytes_downloaded)
    }

    pub(crate) fn state(&self, ty: &TensorType) -> Result<StateOnDevice> {
        let state = DeviceState::zeroed(&self.context, "state", ty).map_err(device_error)?;
        Ok(StateOnDevice { context: self.context.clone(), state })
    }
}

/// All devices that the loader lists.
pub(crate) fn devices() -> Result<Vec<VulkanDeviceInfo>> {
    let options = RuntimeOptions::from_env().map_err(no_vulkan)?;
    let found = tallow_runtime::vulkan::devices(&options).map_err(no_vulkan)?;
    let describe = |d: tallow_runtime::vulkan::DeviceInfo| {
        let driver = d.caps.as_ref().map_or_else(String::new, |c| format!(", {}", c.driver));
        let hardware = d.caps.as_ref().map_or_else(String::new, |c| format!("; {}", c.hardware));
        let mut description = format!("{}, Vulkan {}{driver}{hardware}", d.device_type.name(), d.api_version);
        if let Some(why) = d.unsuitable {
            description += &format!(", not usable: {why}");
        }
        VulkanDeviceInfo { ordinal: d.ordinal, name: d.name, description }
    };
    Ok(found.into_iter().map(describe).collect())
}

/// A state with the device that it is on.
#[derive(Clone)]
pub(crate) struct StateOnDevice {
    context: Arc<Context>,
    pub(crate) state: DeviceState,
}

impl fmt::Debug for StateOnDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateOnDevice({:?})", self.context.caps().name)
    }
}

impl StateOnDevice {
    pub fn read(&self) -> Result<Vec<u8>> {
        self.state.read(&self.context).map_err(device_error)
    }

    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        self.state.write(&self.context, bytes).map_err(device_error)
    }
}

/// A value on a Vulkan device: row-major, little-endian. Clones share the memory.
#[derive(Clone, Debug)]
pub(crate) struct OnDevice {
    device: VulkanDevice,
    value: DeviceValue,
}

impl OnDevice {
    /// Waits for the value of a tensor of this type and copies it.
    pub fn read(&self, ty: &TensorType) -> Result<Vec<u8>> {
        let mut bytes = vec![0; ty.max_bytes() as usize];
        self.value.read(&self.device.context, &mut bytes).map_err(device_error)?;
        Ok(bytes)
    }

    /// The same value in memory of its own. It does not wait for the device.
    pub fn copy(&self) -> Result<OnDevice> {
        let value = self.value.copy(&self.device.context).map_err(device_error)?;
        Ok(OnDevice { device: self.device.clone(), value })
    }

    /// Whether so many clones of the value hold its memory, which goes back to the pool when the last is dropped.
    pub fn has_holders(&self, count: usize) -> bool {
        self.value.holders() == Some(count)
    }

    /// The memory.
    pub fn value(&self) -> &DeviceValue {
        &self.value
    }

    /// The memory.
    pub fn into_value(self) -> DeviceValue {
        self.value
    }
}

/// A graph whose runs are appended to the device's stream: operands and results stay on the device.
#[derive(Debug)]
pub(crate) struct LazyPlan {
    device: VulkanDevice,
    plan: Plan,
    /// Copies of weights, by name.
    copies: Vec<(String, DeviceWeight)>,
}

impl LazyPlan {
    /// Makes the copies of these weights, for runs with all of them.
    pub fn with_copies(self, weights: &HashMap<String, DeviceWeight>) -> Result<LazyPlan> {
        let copies = self.plan.compiled().weight_copies(weights).map_err(device_error)?;
        Ok(LazyPlan { copies, ..self })
    }

    /// The copies of weights, which each run takes as weights.
    pub fn copies(&self) -> &[(String, DeviceWeight)] {
        &self.copies
    }

    /// The memory of runs with operands of these names, see [`Plan::memory`].
    pub fn memory(
        &self,
        inputs: &[&str],
        weights: &HashMap<&str, &DeviceWeight>,
        states: &[&str],
    ) -> Result<RunMemory> {
        self.plan.memory(inputs, weights, states).map_err(device_error)
    }

    /// The memory of runs whose weights are given to each, see [`Plan::memory_for_any_weights`].
    pub fn memory_for_any_weights(&self, inputs: &[&str], states: &[&str]) -> Result<RunMemory> {
        self.plan.memory_for_any_weights(inputs, states).map_err(device_error)
    }

    /// The names of the weights, in the order of their numbers.
    pub fn weights(&self) -> impl Iterator<Item = &str> {
        self.plan.compiled().module().weights.iter().map(|weight| weight.name.as_str())
    }

    /// See [`Plan::set_weight`].
    pub fn set_weight(&self, memory: &mut RunMemory, number: usize, weight: &DeviceWeight) -> Result<()> {
        self.plan.set_weight(memory, number, weight).map_err(device_error)
    }

    /// A value of this plan's device.
    pub fn on_device(&self, value: DeviceValue) -> OnDevice {
        OnDevice { device: self.device.clone(), value }
    }

    /// See [`Plan::run_into`].
    pub fn run_into(
        &self,
        bindings: &Bindings,
        memory: &mut RunMemory,
        operands: Operands<'_>,
        results: &mut Vec<DeviceValue>,
    ) -> Result<()> {
        self.plan.run_into(bindings, memory, operands, results).map_err(device_error)
    }

    /// Computes, now or soon, the outputs of the graph in their order; see [`Plan::run_into`].
    pub fn run(
        &self,
        bindings: &Bindings,
        memory: &mut RunMemory,
        inputs: &[DeviceValue],
    ) -> Result<Vec<OnDevice>> {
        let mut results = vec![];
        self.run_into(bindings, memory, Operands { inputs, donated: &[] }, &mut results)?;
        Ok(results.into_iter().map(|value| self.on_device(value)).collect())
    }

    /// Whether results may overwrite inputs that are given away.
    pub fn takes_donations(&self) -> bool {
        self.plan.takes_donations()
    }

    pub fn device_name(&self) -> String {
        self.device.name()
    }

    pub fn explain(&self) -> String {
        format!("device {}\n{}", self.device.name(), self.plan.compiled().module().explain())
    }
}
