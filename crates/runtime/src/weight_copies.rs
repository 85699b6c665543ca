//! Copies of weights in the order that kernels read: made once, when weights are bound.

use std::collections::HashMap;
use std::sync::Arc;

use tallow_ir::{Bindings, Op, WeightCopy, weight_copies};

use crate::error::ExecError;
use crate::executable::Compiled;
use crate::record::{Outputs, RecordOptions};
use crate::resident::DeviceWeight;
use crate::value::DeviceValue;
use crate::vulkan::copies::Original;
use crate::vulkan::{Buffer, MemoryUse};

impl Compiled {
    /// The copies that kernels read instead of weights, by name ([`tallow_codegen::Module::weight_copies`]). Those that
    /// another owner of the same weights has already are shared; the others are computed now, and this waits for them.
    ///
    /// # Errors
    /// When a weight is missing or of another type, memory runs out or the device fails.
    pub fn weight_copies(
        &self,
        weights: &HashMap<String, DeviceWeight>,
    ) -> Result<Vec<(String, DeviceWeight)>, ExecError> {
        let mut made: Vec<(String, DeviceWeight)> = vec![];
        for copy in &self.module().weight_copies {
            let fail = |why: String| ExecError::Leaf { what: "weight", name: copy.source.clone(), why };
            let earlier = made.iter().find(|(name, _)| *name == copy.source).map(|(_, weight)| weight);
            let source = earlier.or_else(|| weights.get(&copy.source));
            let source = source.ok_or_else(|| fail("has no data".into()))?;
            if source.ty != copy.source_ty {
                return Err(fail(format!("is {}, not {}", source.ty, copy.source_ty)));
            }
            let (buffer, original) = self.weight_copy(copy, source)?;
            let (value, original) = (DeviceValue::Buffer(buffer), Some(original));
            made.push((copy.name.clone(), DeviceWeight { ty: copy.ty.clone(), value, original }));
        }
        Ok(made)
    }

    /// The memory of a copy, shared or new, and the weight that its owners keep as it is.
    fn weight_copy(
        &self,
        copy: &WeightCopy,
        source: &DeviceWeight,
    ) -> Result<(Arc<Buffer>, Arc<DeviceWeight>), ExecError> {
        let known = self.context().weight_copies();
        if let Some((buffer, original)) = known.find(&source.value.origin(), &copy.graph)
            && let Ok(original) = original.downcast::<DeviceWeight>()
        {
            return Ok((buffer, original));
        }
        let bug = || ExecError::Leaf { what: "copy", name: copy.name.clone(), why: "has no kernels".into() };
        let kernels = self.copies().iter().find(|(graph, _)| *graph == copy.graph).ok_or_else(bug)?;
        // The elements of the source, in the extents that the kernel sees.
        let leaves = copy.graph.nodes().filter(|(_, node)| matches!(node.op, Op::Weight { .. }));
        let seen = leaves.map(|(_, node)| DeviceWeight { ty: node.types[0].clone(), ..source.clone() });
        let bound = seen.map(|weight| (weight_copies::SOURCE.to_string(), weight)).collect();
        // A copy of what the device's memory has no room for has none there either.
        let outputs = match source.value.buffer().memory_use() {
            MemoryUse::Host => Outputs::Host,
            MemoryUse::Device | MemoryUse::Upload | MemoryUse::Readback | MemoryUse::Shared => {
                Outputs::Device
            }
        };
        let options = RecordOptions { outputs, ..RecordOptions::default() };
        let executable = kernels.1.instance(&bound, &HashMap::new(), options)?;
        executable.start(&Bindings::new(), &[])?;
        executable.wait()?;
        let buffer = executable.output(0).ok_or_else(bug)?;
        let original = Arc::new(source.clone());
        let any: Arc<Original> = original.clone();
        known.add(source.value.origin(), &copy.graph, &buffer, &any);
        Ok((buffer, original))
    }
}
