//! What each op means, as functions from views to a view.

pub mod attention;
pub mod attention_grad;
pub mod elementwise;
pub mod index;
pub mod matmul;
pub mod order;
pub mod reduce;
pub mod shape;
