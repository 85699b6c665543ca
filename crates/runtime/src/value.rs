//! Device memory of tensors.

use std::sync::Arc;

use crate::error::ExecError;
use crate::vulkan::bound::Bound;
use crate::vulkan::copies::Origin;
use crate::vulkan::{Block, Buffer, Context};

/// Device memory with the elements of a tensor. Clones are cheap and share the memory.
#[derive(Clone, Debug)]
pub enum DeviceValue {
    /// Memory from the pool, returned by the last clone.
    Block(Arc<Block>),
    /// A separate buffer.
    Buffer(Arc<Buffer>),
}

impl DeviceValue {
    pub(crate) fn buffer(&self) -> &Arc<Buffer> {
        match self {
            DeviceValue::Block(block) => block.buffer(),
            DeviceValue::Buffer(buffer) => buffer,
        }
    }

    pub(crate) fn bound(&self) -> Bound<'_> {
        match self {
            DeviceValue::Block(block) => block.bound(0),
            DeviceValue::Buffer(buffer) => Bound::Buffer(buffer),
        }
    }

    /// What identifies the elements, while nobody overwrites them.
    pub(crate) fn origin(&self) -> Origin {
        match self {
            DeviceValue::Block(block) => Origin::Block(Arc::downgrade(block)),
            DeviceValue::Buffer(buffer) => Origin::Buffer(Arc::downgrade(buffer)),
        }
    }

    /// Number of clones, for memory from the pool.
    pub fn holders(&self) -> Option<usize> {
        match self {
            DeviceValue::Block(block) => Some(Arc::strong_count(block)),
            DeviceValue::Buffer(_) => None,
        }
    }

    /// Copies the bytes to new memory, ordered after all work started before. Does not wait for the device.
    ///
    /// # Errors
    /// When memory runs out or the device failed.
    pub fn copy(&self, context: &Context) -> Result<DeviceValue, ExecError> {
        let bytes = self.buffer().size();
        let block = context.block("copy of a tensor", bytes)?;
        context.copy(&self.bound(), bytes, &block)?;
        Ok(DeviceValue::Block(block))
    }

    /// Copies the first bytes into `data`, after all work started before.
    ///
    /// # Errors
    /// When the device failed.
    pub fn read(&self, context: &Context, data: &mut [u8]) -> Result<(), ExecError> {
        match self {
            DeviceValue::Block(block) => context.read_block(block, data)?,
            DeviceValue::Buffer(buffer) if data.is_empty() => _ = buffer,
            DeviceValue::Buffer(buffer) => context.download(buffer, 0, data)?,
        }
        Ok(())
    }
}
