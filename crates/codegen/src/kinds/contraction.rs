//! Contraction kernels: matvecs and matmuls, with their prologues and epilogues.

mod column_groups;
mod epilogue;
mod epilogue_prefetch;
mod grid;
mod k_tile;
pub(crate) mod matmul_coopmat;
pub(crate) mod matmul_coopmat2;
pub(crate) mod matmul_fma;
pub(crate) mod matvec;
pub(crate) mod matvec_dot;
pub(crate) mod matvec_staged;
mod operands;
pub(crate) mod partition;
mod prologue;
mod split_k;
mod store;
mod sums;
