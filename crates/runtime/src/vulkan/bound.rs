//! What a sequence is appended with: memory for each of its buffers.

use std::sync::Arc;

use ash::vk;

use super::buffer::Buffer;

/// The binding of a sequence's buffer.
pub(crate) enum Bound<'a> {
    /// Memory of a block.
    Block(Pooled<'a>),
    /// Another buffer, held until the device is done with it.
    Buffer(&'a Arc<Buffer>),
    /// These bytes, which are copied.
    Table(&'a [u8]),
}

/// The buffer of a block from an offset on. The block's pool keeps it until the work that uses it is done, so only
/// blocks make this.
pub(crate) struct Pooled<'a> {
    pub(super) buffer: &'a Arc<Buffer>,
    pub(super) offset: u64,
}

impl Bound<'_> {
    /// The buffer, and the offset of the bytes in it.
    pub(super) fn place(&self) -> Option<(&Arc<Buffer>, u64)> {
        match self {
            Bound::Block(pooled) => Some((pooled.buffer, pooled.offset)),
            Bound::Buffer(buffer) => Some((buffer, 0)),
            Bound::Table(_) => None,
        }
    }

    /// The workgroups of an indirect dispatch whose arguments are at an offset of a table.
    pub(super) fn workgroups(&self, offset: u64) -> Option<[u32; 3]> {
        let Bound::Table(table) = self else { return None };
        let start = usize::try_from(offset).ok()?;
        let (words, _) = table.get(start..start.checked_add(12)?)?.as_chunks();
        let [x, y, z] = words else { return None };
        Some([*x, *y, *z].map(u32::from_le_bytes))
    }
}

/// A buffer as in a descriptor: handle, offset and size in bytes.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) handle: vk::Buffer,
    pub(super) start: u64,
    pub(super) bytes: u64,
}

impl Place {
    /// Of a buffer that no command uses.
    pub(super) const NONE: Place = Place { handle: vk::Buffer::null(), start: 0, bytes: 0 };

    /// The bytes of a buffer from `start` on, which is at most its size.
    pub(super) fn of(buffer: &Buffer, start: u64) -> Place {
        Place { handle: buffer.handle(), start, bytes: buffer.size() - start }
    }
}
