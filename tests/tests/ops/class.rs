//! The classes of shapes and layouts in which every op is tested.

use std::fmt;

/// How the operands of an op lie in memory, or how large they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Row-major.
    Contiguous,
    /// Stored with all axes reversed, and permuted back.
    Strided,
    /// Every second axis is stored once and repeated.
    Broadcast,
    /// The middle of something that is larger by two along each axis.
    Sliced,
    /// No axes.
    Scalar,
    /// An axis of extent 0.
    Empty,
    /// Axes of extent 1.
    One,
    /// Prime extents, more elements than a workgroup has invocations and no multiple of it.
    Odd,
    /// More than 65535 workgroups, which is all that Vulkan promises along one axis of a dispatch.
    Many,
    /// Tensors that exceed what one binding may span: several windows of one buffer.
    Windows,
}

impl Class {
    /// Every class.
    pub const ALL: [Class; 10] = [
        Class::Contiguous,
        Class::Strided,
        Class::Broadcast,
        Class::Sliced,
        Class::Scalar,
        Class::Empty,
        Class::One,
        Class::Odd,
        Class::Many,
        Class::Windows,
    ];

    /// The name on the page and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Class::Contiguous => "contiguous",
            Class::Strided => "strided",
            Class::Broadcast => "broadcast",
            Class::Sliced => "sliced",
            Class::Scalar => "scalar",
            Class::Empty => "empty",
            Class::One => "size 1",
            Class::Odd => "odd sizes",
            Class::Many => "> 65535 workgroups",
            Class::Windows => "windows",
        }
    }

    /// Three axes, none for a scalar.
    pub fn dims(self) -> Vec<usize> {
        match self {
            Class::Contiguous | Class::Strided | Class::Broadcast | Class::Sliced => vec![4, 6, 8],
            Class::Scalar => vec![],
            Class::Empty => vec![2, 0, 3],
            Class::One => vec![1, 1, 1],
            Class::Odd => vec![3, 5, 67],
            // The first axis is repeated: see `many`.
            Class::Many => vec![PERIOD, 2, 3],
            Class::Windows => vec![3, 9, 32],
        }
    }

    /// Three axes, the last of whole blocks of every format.
    pub fn blocks(self) -> Vec<usize> {
        match self {
            Class::Contiguous | Class::Strided | Class::Broadcast | Class::Sliced => vec![2, 3, 256],
            Class::Scalar => vec![],
            Class::Empty => vec![2, 0, 256],
            Class::One => vec![1, 1, 256],
            Class::Odd => vec![3, 7, 256],
            Class::Many => vec![PERIOD, 1, 256],
            Class::Windows => vec![3, 1, 256],
        }
    }

    /// Four axes: images of several channels.
    pub fn images(self) -> Vec<usize> {
        match self {
            Class::Contiguous | Class::Strided | Class::Broadcast | Class::Sliced => vec![2, 4, 6, 5],
            Class::Scalar => vec![],
            Class::Empty => vec![0, 2, 3, 3],
            Class::One => vec![1, 1, 1, 1],
            Class::Odd => vec![1, 3, 13, 29],
            Class::Many => vec![PERIOD, 1, 3, 3],
            Class::Windows => vec![3, 2, 12, 12],
        }
    }
}

/// Rows of a large tensor repeat after so many. No power of two and no multiple of 65535 is a multiple of it, so a
/// position that wraps at either finds other elements.
pub const PERIOD: usize = 7;

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
