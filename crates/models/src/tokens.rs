//! Tokens and results as graphs take and give them.

use crate::error::{Error, Result};

/// Checks that tokens are there, fit the context behind `position`, and are in the vocabulary.
pub(crate) fn check_tokens(tokens: &[u32], position: usize, context: usize, vocabulary: usize) -> Result<()> {
    if tokens.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if position + tokens.len() > context {
        return Err(Error::PromptTooLong { tokens: position + tokens.len(), context });
    }
    match tokens.iter().find(|t| **t as usize >= vocabulary) {
        Some(&token) => Err(Error::UnknownToken { token, vocabulary }),
        None => Ok(()),
    }
}

/// Token ids as a graph's input.
pub(crate) fn to_bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|t| t.to_le_bytes()).collect()
}

/// The floats of an output.
pub(crate) fn f32s(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))
}
