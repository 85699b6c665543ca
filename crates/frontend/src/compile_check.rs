//! Compiling for a device that need not be here: what the driver makes of each kernel of a graph.

use tallow_ir::Graph;
use tallow_ir::caps::DeviceCaps;
#[cfg(feature = "vulkan")]
use tallow_runtime::{RuntimeOptions, compile_check::check_graphs, vulkan::CompileOnly};

use crate::error::{Error, Result};
#[cfg(feature = "vulkan")]
use crate::executable::verified;
use crate::statistics::{Coverage, KernelReport};

#[cfg(feature = "vulkan")]
type Inner = CompileOnly;
#[cfg(not(feature = "vulkan"))]
type Inner = std::convert::Infallible;

/// A Vulkan device that compiles kernels and runs nothing.
///
/// It may be one without hardware. Mesa's RADV makes one up where the environment variable `RADV_FORCE_FAMILY` names a family
/// of GPUs before the first device is opened.
#[derive(Debug)]
pub struct CompileOnlyDevice {
    inner: Inner,
}

impl CompileOnlyDevice {
    /// Opens the device with this number, or with a name that contains `requested`. Without either it is what `TALLOW_DEVICE`
    /// names, else a device without hardware if there is one, else the best device.
    ///
    /// # Errors
    /// When the build has no Vulkan, or there is no such device.
    #[cfg(feature = "vulkan")]
    pub fn open(requested: Option<&str>) -> Result<CompileOnlyDevice> {
        let fail = |error: tallow_runtime::Error| Error::NoVulkan(error.to_string());
        let mut options = RuntimeOptions::from_env().map_err(fail)?;
        options.device = requested.map(str::to_string).or(options.device);
        Ok(CompileOnlyDevice { inner: CompileOnly::new(&options).map_err(fail)? })
    }

    /// Opens no device, as this build has no Vulkan.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(feature = "vulkan"))]
    pub fn open(_asked: Option<&str>) -> Result<CompileOnlyDevice> {
        Err(Error::NotCompiledWithVulkan)
    }

    /// What the device can do, less what `TALLOW_DISABLE` took away.
    pub fn caps(&self) -> &DeviceCaps {
        #[cfg(feature = "vulkan")]
        return self.inner.caps();
        #[cfg(not(feature = "vulkan"))]
        match self.inner {}
    }

    /// Whether the driver tells of its machine code: if not, [`CompileOnlyDevice::check`] gives empty statistics.
    pub fn has_statistics(&self) -> bool {
        #[cfg(feature = "vulkan")]
        return self.inner.has_statistics();
        #[cfg(not(feature = "vulkan"))]
        match self.inner {}
    }

    /// Plans graphs for the device and compiles each distinct kernel of them. A kernel that does not compile has its error in
    /// its row. The rows come in the order in which the graphs need the kernels first.
    ///
    /// # Errors
    /// When a graph is invalid or needs what the device lacks.
    #[cfg_attr(not(feature = "vulkan"), allow(unused_variables))]
    pub fn check(&self, graphs: &[Graph], coverage: Coverage) -> Result<Vec<KernelReport>> {
        #[cfg(feature = "vulkan")]
        {
            let graphs = graphs.iter().map(verified).collect::<Result<Vec<Graph>>>()?;
            check_graphs(&self.inner, &graphs, coverage).map_err(|error| Error::Device(error.to_string()))
        }
        #[cfg(not(feature = "vulkan"))]
        match self.inner {}
    }
}
