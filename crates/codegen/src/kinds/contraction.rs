//! Contraction kernels: matvecs and matmuls, with their prologues and epilogues.

mod activations;
mod column_groups;
mod columns;
pub(crate) mod coopmat;
mod epilogue;
mod epilogue_prefetch;
pub(crate) mod fma;
mod grid;
mod items;
mod k_tile;
pub(crate) mod matmul;
pub(crate) mod matmul_coopmat2;
pub(crate) mod matvec;
mod narrow;
mod operands;
mod parts;
mod plan;
mod prefetch;
mod prologue;
mod rows;
mod schedules_memory;
mod schedules_staged;
mod split_k;
mod staging_tile;
mod store;
mod tile_code;
mod weights;
