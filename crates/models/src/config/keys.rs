//! Reading hyperparameters, with errors that name the key.

use tallow_gguf::{Metadata, optional};

use crate::architecture::Architecture;
use crate::error::{Error, Result};

/// The keys of an architecture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys<'a> {
    pub metadata: &'a Metadata,
    pub architecture: Architecture,
}

impl Keys<'_> {
    /// The whole name of a key.
    pub fn named(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture.name())
    }

    /// The error that a key's value is wrong.
    pub fn bad(&self, key: &str, why: &str) -> Error {
        Error::Hyperparameter { key: self.named(key), why: why.into() }
    }

    /// Whether the file has a key.
    pub fn has(&self, key: &str) -> bool {
        self.metadata.contains(&self.named(key))
    }

    /// An extent: from 1 to 2^24.
    pub fn number(&self, key: &str) -> Result<usize> {
        match self.metadata.get_u32(&self.named(key))? {
            0 => Err(self.bad(key, "is 0")),
            // Extents beyond this overflow index arithmetic long before memory runs out.
            n if n > 1 << 24 => Err(self.bad(key, &format!("{n} is not plausible"))),
            n => Ok(n as usize),
        }
    }

    /// As [`Keys::number`], or `default` without the key.
    pub fn number_or(&self, key: &str, default: usize) -> Result<usize> {
        if self.has(key) { self.number(key) } else { Ok(default) }
    }

    /// A whole number, where 0 stands for "not given".
    pub fn count(&self, key: &str) -> Result<Option<usize>> {
        match optional(self.metadata.get_u32(&self.named(key)))? {
            None | Some(0) => Ok(None),
            Some(_) => self.number(key).map(Some),
        }
    }

    /// A number above 0, or `default` without the key.
    pub fn positive(&self, key: &str, default: f32) -> Result<f32> {
        match optional(self.metadata.get_f32(&self.named(key)))?.unwrap_or(default) {
            x if x.is_finite() && x > 0.0 => Ok(x),
            x => Err(self.bad(key, &format!("{x} is not a positive number"))),
        }
    }

    /// A number above 0, if the file has one; 0 stands for "not given".
    pub fn positive_if_any(&self, key: &str) -> Result<Option<f32>> {
        match optional(self.metadata.get_f32(&self.named(key)))? {
            None => Ok(None),
            Some(0.0) => Ok(None),
            Some(_) => self.positive(key, 1.0).map(Some),
        }
    }

    /// Yes or no, or `default` without the key.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        Ok(optional(self.metadata.get_bool(&self.named(key)))?.unwrap_or(default))
    }
}
