//! Building blocks shared by several kernel kinds.

pub(crate) mod coopmat;
pub(crate) mod last_workgroup;
pub(crate) mod operand;
pub(crate) mod quantize_results;
pub(crate) mod reduce_functions;
pub(crate) mod reduction;
pub(crate) mod register_cache;
pub(crate) mod row_group;
pub(crate) mod row_loop;
pub(crate) mod split_rows;
pub(crate) mod tiles;
pub(crate) mod vector_group;
