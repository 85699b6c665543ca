//! Contraction kernels: matvecs and matmuls, with their prologues and epilogues.

mod activations;
mod column_groups;
mod columns;
mod epilogue;
mod epilogue_prefetch;
mod grid;
mod items;
mod k_tile;
pub(crate) mod matmul_coopmat;
pub(crate) mod matmul_coopmat2;
pub(crate) mod matmul_fma;
pub(crate) mod matvec;
mod operands;
mod parts;
mod plan;
mod prologue;
mod schedules_memory;
mod schedules_staged;
mod split_k;
mod store;
mod weights;
