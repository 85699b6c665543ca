//! Where a value comes from, for those that a variable has a part in.
//!
//! A tensor forgets its operands once its value is known, so that loops neither recompute nor grow. [`Tensor::backward`]
//! needs them still: a tensor that depends on a variable keeps them until its last handle is gone.

use std::sync::atomic::{AtomicU64, Ordering};

use tallow_ir::{Op, TensorType};

use crate::tensor::{Expr, Tensor};

/// The number of a tensor. Clones of a tensor have the same one; that of a variable stays when its value changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(u64);

impl TensorId {
    /// A number that no other tensor has.
    pub(crate) fn next() -> TensorId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        TensorId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// How a value that depends on a variable was made.
#[derive(Clone)]
pub(crate) enum Origin {
    /// It is what a variable holds, or held.
    Variable,
    /// By an op: a result of it.
    Op(Op, Vec<Tensor>, u32),
    /// On another device, and copied from there.
    Moved(Tensor),
}

impl Origin {
    /// What it holds tensors of.
    pub fn into_operands(self) -> Vec<Tensor> {
        match self {
            Origin::Variable => vec![],
            Origin::Op(_, operands, _) => operands,
            Origin::Moved(tensor) => vec![tensor],
        }
    }
}

/// The origin of a new tensor: none where nothing that it is made of depends on a variable, or where it holds no floats.
pub(crate) fn origin_of(ty: &TensorType, expr: &Expr) -> Option<Box<Origin>> {
    match expr {
        Expr::Op(op, operands, result) if ty.dtype.is_float() => {
            let depends = operands.iter().any(|operand| operand.origin().is_some());
            depends.then(|| Box::new(Origin::Op(op.clone(), operands.clone(), *result)))
        }
        Expr::Variable(_) => Some(Box::new(Origin::Variable)),
        Expr::Op(..)
        | Expr::Data(_)
        | Expr::Device(_)
        | Expr::Blocks(_)
        | Expr::Input(_)
        | Expr::State(_) => None,
    }
}
