//! Results of runs, in memory that later runs use again.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use tallow_ir::{Bindings, DType};

/// One result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOutput {
    /// The output's name in the graph.
    pub name: String,
    /// Its extents under the symbol values of the run.
    pub shape: Vec<usize>,
    /// Its element type.
    pub dtype: DType,
    /// Its elements, row-major and little-endian.
    pub bytes: Vec<u8>,
}

/// One result of a run, where it lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutputView<'a> {
    /// The output's name in the graph.
    pub name: &'a str,
    /// Its extents under the symbol values of the run.
    pub shape: &'a [usize],
    /// Its element type.
    pub dtype: DType,
    /// Its elements, row-major and little-endian.
    pub bytes: &'a [u8],
}

/// The results of a run, in the order of the graph's outputs: a slice of [`RunOutput`]s, or their iterator.
///
/// When it is dropped, the memory of the results serves a later run, so that a program that reads results and drops
/// them allocates nothing once its first runs are done. Results that are taken out of it are the caller's.
#[derive(Debug)]
pub struct Outputs {
    memory: Memory,
    spare: Spare,
}

/// What a run needs on the heap.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Values of the graph's symbols.
    pub bindings: Bindings,
    /// Results.
    pub outputs: Vec<RunOutput>,
}

/// Memory that no run uses, shared by an executable and the results of its runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spare {
    all: Arc<Mutex<Vec<Memory>>>,
}

/// As much memory is kept: that of a run in flight, of results that are read, and of one more thread.
const MAX_SPARE: usize = 3;

impl Spare {
    /// Memory for one run, which holds whatever the run before it left.
    pub fn take(&self) -> Outputs {
        let memory = self.all.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Outputs { memory: memory.unwrap_or_default(), spare: self.clone() }
    }
}

impl Outputs {
    pub(crate) fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }
}

impl Deref for Outputs {
    type Target = [RunOutput];

    fn deref(&self) -> &[RunOutput] {
        &self.memory.outputs
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        let mut all = self.spare.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MAX_SPARE {
            all.push(std::mem::take(&mut self.memory));
        }
    }
}

impl IntoIterator for Outputs {
    type Item = RunOutput;
    type IntoIter = std::vec::IntoIter<RunOutput>;

    fn into_iter(mut self) -> Self::IntoIter {
        std::mem::take(&mut self.memory.outputs).into_iter()
    }
}

impl<'a> IntoIterator for &'a Outputs {
    type Item = &'a RunOutput;
    type IntoIter = std::slice::Iter<'a, RunOutput>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
