//! Errors of Tallow as errors of Candle: the only error type of this crate.

/// Tallow's error as Candle's, with its message.
pub(crate) fn wrap(error: impl std::fmt::Display + Send + Sync + 'static) -> candle_core::Error {
    candle_core::Error::wrap(error)
}

/// An error of a message.
pub(crate) fn fail<T>(message: impl std::fmt::Display) -> candle_core::Result<T> {
    Err(candle_core::Error::msg(message))
}

/// Candle's error as Tallow's, for what runs inside of a run.
pub(crate) fn unwrap(error: candle_core::Error) -> tallow::Error {
    tallow::Error::msg(error)
}
