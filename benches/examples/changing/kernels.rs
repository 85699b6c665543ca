//! Times of kernels with symbols for extents, and with numbers.

use tallow::{Device, Graph, Input, Tensor, compile};
use tallow_ir::structure::integers;
use tallow_ir::{General, generalize};

use crate::programs::Program;
use crate::{Result, median};

/// A program's graphs.
pub struct Kernels<'a> {
    program: &'a Program,
    scale: usize,
    /// The integers of the instances that plans with symbols are made from.
    instances: Vec<Vec<i64>>,
}

impl<'a> Kernels<'a> {
    pub fn of(program: &'a Program, scale: usize) -> Result<Kernels<'a>> {
        let mut kernels = Kernels { program, scale, instances: vec![] };
        for size in program.first {
            kernels.instances.push(integers(&kernels.instance(size)?.0).collect());
        }
        Ok(kernels)
    }

    /// The graph of a size, with its inputs.
    fn instance(&self, size: &[usize]) -> Result<(Graph, Vec<(String, Tensor)>)> {
        let device = &Device::Cpu;
        let weights = (self.program.weights)(device, self.scale)?;
        let operands = (self.program.operands)(device, self.scale, size)?;
        let named = |name: &str, all: Vec<Tensor>| -> Vec<(String, Tensor)> {
            all.into_iter().enumerate().map(|(i, tensor)| (format!("{name}{i}"), tensor)).collect()
        };
        let count = weights.len();
        let inputs = [named("w", weights), named("x", operands)].concat();
        let typed: Vec<Input> =
            inputs.iter().map(|(name, t)| Input::new(name, t.dtype(), t.dims())).collect();
        let function =
            compile(device, &typed, |all| Ok(vec![(self.program.step)(&all[..count], &all[count..])?]))?;
        Ok((function.graph().clone(), inputs))
    }

    /// Microseconds of the kernels at a size: with symbols, and with numbers.
    pub fn measure(&self, device: &Device, size: &[usize], runs: usize) -> Result<[f64; 2]> {
        let (literal, inputs) = self.instance(size)?;
        let others: Vec<&[i64]> = self.instances.iter().map(Vec::as_slice).collect();
        let general: General = generalize(&literal, &others)?;
        let own: Vec<i64> = integers(&literal).collect();
        let mut values = vec![];
        if !general.bind(&own, &mut values) {
            return Err("the symbols do not serve what they were made for".into());
        }
        let values: Vec<(&str, u64)> = general.symbols().map(|symbol| symbol.name()).zip(values).collect();
        let bytes = inputs.iter().map(|(name, t)| Ok((name.as_str(), t.raw_bytes()?)));
        let bytes = bytes.collect::<tallow::Result<Vec<_>>>()?;
        let inputs: Vec<(&str, &[u8])> =
            bytes.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
        let time = |graph: &Graph, symbols: &[(&str, u64)]| -> Result<f64> {
            let executable = device.compile(graph, &Default::default(), &Default::default())?;
            let mut times = vec![];
            for _ in 0..runs.max(3) {
                executable.run(symbols, &inputs)?;
                times.push(executable.timings().iter().map(|(_, ns)| *ns as f64).sum::<f64>() / 1e3);
            }
            if std::env::var_os("EXPLAIN").is_some() {
                let text =
                    format!("{size:?} {symbols:?}\n{}\n{:?}\n", executable.explain(), executable.timings());
                std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes())?;
            }
            Ok(median(times))
        };
        Ok([time(general.graph(), &values)?, time(&literal, &[])?])
    }
}
