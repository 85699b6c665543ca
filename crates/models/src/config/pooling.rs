//! How the rows of a text become its embedding.

use super::Keys;
use crate::architecture::Architecture;
use crate::error::{Error, Result};

/// The key, without the architecture.
const KEY: &str = "pooling_type";

/// Which row of the last layer is the embedding of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// None: every token has an embedding.
    None,
    /// The mean of all rows.
    Mean,
    /// The first row, which is that of the token `[CLS]`.
    Cls,
    /// The last row.
    Last,
}

impl Pooling {
    /// The number of the key `pooling_type`, if the file has it. Files of rerankers have one that nothing here computes, and
    /// run all the same.
    pub(crate) fn read(keys: &Keys<'_>) -> Result<Option<u32>> {
        Ok(tallow_gguf::optional(keys.metadata.get_u32(&keys.named(KEY)))?)
    }

    /// The pooling of a number of the key.
    ///
    /// # Errors
    /// When it is none of these. The error names the key.
    pub(crate) fn of_number(number: u32, architecture: Architecture) -> Result<Pooling> {
        match number {
            0 => Ok(Pooling::None),
            1 => Ok(Pooling::Mean),
            2 => Ok(Pooling::Cls),
            3 => Ok(Pooling::Last),
            other => {
                let why = format!("{other} is not supported; 0 (none), 1 (mean), 2 (cls) and 3 (last) are");
                Err(Error::Hyperparameter { key: format!("{}.{KEY}", architecture.name()), why })
            }
        }
    }
}
