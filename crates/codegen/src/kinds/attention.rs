//! Attention: one generator per algorithm, on shared loads and stores.

pub(crate) mod decode;
pub(crate) mod flash;
mod flash_rows;
mod fragments;
pub(crate) mod grad;
pub(crate) mod grad_tiles;
mod operands;
pub(crate) mod per_query;
pub(crate) mod tiled;
