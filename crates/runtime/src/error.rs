//! Everything that can go wrong between a plan and a device.

use std::time::Duration;

#[cfg(feature = "vulkan")]
use tallow_codegen::CodegenError;

/// Result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the runtime.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The Vulkan loader library could not be opened.
    #[error(
        "no Vulkan loader ({reason}); install one (Debian: libvulkan1 and mesa-vulkan-drivers) or run on the CPU"
    )]
    NoLoader {
        /// What the dynamic linker said.
        reason: String,
    },
    /// The loader works, but no device can run Tallow.
    #[error("no usable Vulkan device{}", list_reasons(.rejected))]
    NoDevice {
        /// Each device that was found, and why it does not do.
        rejected: Vec<String>,
    },
    /// `TALLOW_DEVICE` (or the option of that meaning) names no device.
    #[error("no Vulkan device matches {asked:?}; there are: {}", .known.join(", "))]
    UnknownDevice {
        /// The ordinal or the part of a name that was asked for.
        asked: String,
        /// Ordinal and name of the devices there are.
        known: Vec<String>,
    },
    /// The device that was asked for by name cannot run Tallow.
    #[error("the Vulkan device {name:?} cannot be used: {reason}")]
    UnsuitableDevice {
        /// Name of the device.
        name: String,
        /// What it lacks.
        reason: String,
    },
    /// An environment variable or an option has a value that makes no sense.
    #[error("{variable} is {value:?}: {reason}")]
    BadOption {
        /// Name of the variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What was expected.
        reason: String,
    },
    /// Validation was asked for, but the Khronos layer is not installed.
    #[error(
        "TALLOW_VALIDATE needs the layer {layer} (Debian: vulkan-validationlayers), which is not installed"
    )]
    NoValidationLayer {
        /// Name of the layer.
        layer: &'static str,
    },
    /// The validation layer reported errors or hazards.
    #[error("Vulkan validation reported {} problem(s): {}", .0.len(), .0.join(" | "))]
    Validation(
        /// The messages.
        Vec<String>,
    ),
    /// A Vulkan call failed in a way that has no variant of its own.
    #[error("{call} failed: {code}")]
    Vulkan {
        /// Name of the Vulkan command.
        call: &'static str,
        /// The result code as Vulkan names it.
        code: String,
    },
    /// The device stopped working: a fault in a kernel, a watchdog, or the driver was reset.
    #[error("the device was lost during {during}; the context cannot be used any more{}", last_work(.submitted))]
    DeviceLost {
        /// Name of the Vulkan command that noticed.
        during: &'static str,
        /// What was submitted last; empty where nothing was appended.
        submitted: String,
    },
    /// The device was closed.
    #[error("the device was closed")]
    Closed,
    /// Memory ran out.
    #[error("out of memory for {what} ({bytes} bytes): {reason}")]
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// Bytes asked for, or 0 where Vulkan did not say.
        bytes: u64,
        /// Which memory.
        reason: String,
    },
    /// A run did not end within the time that the caller gave it; it is still running.
    #[error("the run did not end within {limit:?}")]
    Timeout {
        /// The time that was given.
        limit: Duration,
    },
    /// The recording is still running, and one recording runs once at a time.
    #[error("the recording is still running; wait for its handle before submitting it again")]
    Busy,
    /// A buffer of this size cannot be made on this device.
    #[error("buffer {name} of {bytes} bytes: {reason}")]
    BadBuffer {
        /// Name of the buffer.
        name: String,
        /// Its size.
        bytes: u64,
        /// The limit that it breaks.
        reason: String,
    },
    /// A read, write or copy reaches past the end of a buffer.
    #[error("bytes {offset}..{offset}+{bytes} lie outside of buffer {name} of {size} bytes")]
    OutOfBounds {
        /// Name of the buffer.
        name: String,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
        /// Size of the buffer.
        size: u64,
    },
    /// The host cannot reach the memory of this buffer.
    #[error("buffer {name} is not mapped; use upload and download")]
    NotMapped {
        /// Name of the buffer.
        name: String,
    },
    /// A pipeline cannot be made.
    #[error("pipeline {name}: {reason}")]
    BadPipeline {
        /// Name of the pipeline.
        name: String,
        /// Why not.
        reason: String,
    },
    /// A command list does not fit the pipelines, buffers or limits that it is recorded with.
    #[error("command {command} of the recording: {reason}")]
    BadCommand {
        /// Position in the command list.
        command: usize,
        /// What does not fit.
        reason: String,
    },
    /// Timings were asked for, but there are none.
    #[error("no timings: {reason}")]
    NoTimings {
        /// Why not.
        reason: &'static str,
    },
}

/// Errors from compiling a graph to reading its results.
#[cfg(feature = "vulkan")]
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// Code generation failed.
    #[error(transparent)]
    Codegen(#[from] CodegenError),
    /// The device or driver failed, or a run is still in flight.
    #[error(transparent)]
    Device(#[from] Error),
    /// A leaf without data, or with data of another type.
    #[error("{what} '{name}': {why}")]
    Leaf {
        /// "weight", "state", "input", "output" or "symbol".
        what: &'static str,
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The results of a run were not read before the next run overwrote them.
    #[error("the results of run {run} were overwritten by run {last}")]
    Overwritten {
        /// The run asked for.
        run: u64,
        /// The run that wrote last.
        last: u64,
    },
    /// A slice or update would be out of bounds of its tensor.
    #[error("{end} = {value} exceeds {extent} = {limit}")]
    Bounds {
        /// The expression of the end.
        end: String,
        /// Its value in this run.
        value: i64,
        /// The expression of the extent.
        extent: String,
        /// Its value in this run.
        limit: i64,
    },
}

fn last_work(submitted: &str) -> String {
    if submitted.is_empty() { String::new() } else { format!(" (submitted last: {submitted})") }
}

fn list_reasons(rejected: &[String]) -> String {
    if rejected.is_empty() {
        "; the Vulkan loader found no driver".to_string()
    } else {
        format!(": {}", rejected.join("; "))
    }
}
