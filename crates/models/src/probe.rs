//! Speed probe: how fast a device runs a model, before the model is loaded.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tallow::Device;

use crate::decoder::{Source, upload};
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::model::ModelFile;
use crate::model_graph::PROBE;
use crate::options::LoadOptions;

/// Minimum and maximum number of timed runs.
const RUNS: std::ops::RangeInclusive<usize> = 5..=200;

/// Time budget of the timed runs, within [`RUNS`].
const TIME: Duration = Duration::from_millis(60);

impl ModelFile {
    /// The median time of the first layer's feed-forward part for one token, with the file's weights on `device`. In
    /// models of this kind this is two thirds of the work of a layer's decode step, so that devices can be compared by
    /// it.
    ///
    /// # Errors
    /// When the device cannot run it.
    pub fn probe(&self, device: &Device) -> Result<Duration> {
        let graph = self.model.probe().map_err(|source| Error::Graph { graph: "probe", source })?;
        let source = Source { file: &self.file, host_layers: 0 };
        let weights = upload(source, &self.model, device, &graph, &mut |_| {})?;
        let executable = device.prepare(&graph)?.bind(&weights, &HashMap::new())?;
        // Zeros may run faster than typical values.
        let mut random = StdRng::seed_from_u64(1);
        let row = (0..self.model.config.width).map(|_| random.random_range(-1f32..1.0).to_le_bytes());
        let row: Vec<u8> = row.flatten().collect();
        // Warm-up: the first run may compile, or unpack weights.
        executable.run(&[], &[(PROBE, &row)])?;
        let (mut times, start) = (Vec::new(), Instant::now());
        while times.len() < *RUNS.start() || (times.len() < *RUNS.end() && start.elapsed() < TIME) {
            let run = Instant::now();
            executable.run(&[], &[(PROBE, &row)])?;
            times.push(run.elapsed());
        }
        times.sort_unstable();
        Ok(times[times.len() / 2])
    }

    /// The memory that the model takes on the interpreter with these options, in bytes.
    ///
    /// # Errors
    /// When the options do not fit the model.
    pub fn memory_on_cpu(&self, options: &LoadOptions) -> Result<u64> {
        Ok(Memory::of(&self.model, None, options)?.total())
    }
}
