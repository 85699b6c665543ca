//! The networks of each family.

pub mod classic;
pub mod convolution;
pub mod images;
pub mod losses;
pub mod programs;
pub mod recurrent;
pub mod sparse;
pub mod state_space;
pub mod transformer;
