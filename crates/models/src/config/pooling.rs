//! How the rows of a text become its embedding.

use tallow_gguf::optional;

use super::Keys;
use crate::error::Result;

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
    /// The key `pooling_type`, if the file has it.
    pub(crate) fn read(keys: &Keys<'_>) -> Result<Option<Pooling>> {
        const KEY: &str = "pooling_type";
        let Some(number) = optional(keys.metadata.get_u32(&keys.named(KEY)))? else { return Ok(None) };
        match number {
            0 => Ok(Some(Pooling::None)),
            1 => Ok(Some(Pooling::Mean)),
            2 => Ok(Some(Pooling::Cls)),
            3 => Ok(Some(Pooling::Last)),
            other => {
                let why = format!("{other} is not supported; 0 (none), 1 (mean), 2 (cls) and 3 (last) are");
                Err(keys.bad(KEY, &why))
            }
        }
    }
}
