//! What a device does at best, by kernels that do one thing: the ceilings that benchmark cases are measured against.
//!
//! Their results are checked like those of any benchmark case: a kernel that skips what it should do is fast.

use std::sync::Arc;
use std::time::Instant;

use tallow_codegen::compile_spirv;
use tallow_ir::caps::MatrixElement;
use tallow_quant::Format;
use tallow_runtime::cache_dir::cache_dir;
use tallow_runtime::record::{
    BarrierKind, BindRange, Grid, RecordCommand, RecordOptions, RecordSpec, Timing,
};
use tallow_runtime::vulkan::{Buffer, Context, MemoryUse, Pipeline, PipelineDesc, Recording};

use crate::Options;
use crate::data::random;
use crate::error::{BenchError, Result};
use crate::measure::{Times, Took, micros_since, repeat};
use crate::report::Row;

const READ: &str = include_str!("ceilings/read.comp");
const COPY: &str = include_str!("ceilings/copy.comp");
const FMA: &str = include_str!("ceilings/fma.comp");
const DOT: &str = include_str!("ceilings/dot.comp");
const MATRIX: &str = include_str!("ceilings/matrix.comp");
/// Does nothing, but is a dispatch.
const EMPTY: &str = "#version 450\nlayout(local_size_x = 32) in;\nvoid main() {}\n";

const HEAD: RecordCommand = RecordCommand::Barrier(BarrierKind::Head);
const BETWEEN: RecordCommand = RecordCommand::Barrier(BarrierKind::Between);
const TAIL: RecordCommand = RecordCommand::Barrier(BarrierKind::Tail);

/// The ceiling of this name, or none where the device has nothing of the kind; if it fails, the row says why.
pub fn measure(context: &Arc<Context>, name: &str, options: &Options) -> Option<Row> {
    let mut row = Row { name: name.into(), instances: 1, ..Row::default() };
    let bench = Bench { context, quick: options.quick, seconds: options.seconds };
    let done = match name {
        "ceilings/read" => bench.read(&mut row),
        "ceilings/copy" => bench.copy(&mut row),
        "ceilings/fill" => bench.fill(&mut row),
        "ceilings/fma" => bench.arithmetic(&mut row, "fma", FMA, fma),
        "ceilings/dot" if context.caps().int_dot => bench.arithmetic(&mut row, "dot", DOT, dot),
        "ceilings/matrix" if has_matrices(context) => bench.matrix(&mut row),
        "ceilings/dispatch" => bench.empty(&mut row, 1, false),
        "ceilings/barrier-1" => bench.empty(&mut row, 1, true),
        "ceilings/barrier-132" => bench.empty(&mut row, 132, true),
        "ceilings/barrier-1056" => bench.empty(&mut row, 1056, true),
        _ => return None,
    };
    if let Err(error) = done {
        row.failed = Some(error.to_string());
    }
    Some(row)
}

/// Whether subgroups multiply 16 by 16 matrices of f16 into f32.
fn has_matrices(context: &Context) -> bool {
    let caps = context.caps();
    let is_f16_square = |s: &tallow_ir::caps::MatrixShape| {
        (s.m, s.n, s.k) == (16, 16, 16)
            && (s.a, s.b, s.c) == (MatrixElement::F16, MatrixElement::F16, MatrixElement::F32)
    };
    caps.f16 && caps.storage_16bit && caps.memory_model && caps.cooperative_matrix.iter().any(is_f16_square)
}

/// What a kernel computes from its constants in so many steps in a lane: operations of a step, and the result's bytes.
type Expected = fn(&[u8], u32, usize) -> (f64, [u8; 4]);

struct Bench<'a> {
    context: &'a Arc<Context>,
    quick: bool,
    seconds: f64,
}

/// A recording, and what one of its runs does.
struct Recorded {
    recording: Recording,
    /// Dispatches, copies or fills of a run, which all take the same.
    commands: usize,
}

impl Bench<'_> {
    /// Bytes of the buffers that are read and written: far more than a cache holds, in whole workgroups.
    fn bytes(&self) -> u64 {
        let most = if self.quick { 1 << 20 } else { 1 << 30 };
        let limit =
            self.context.caps().max_storage_buffer_range.min(self.context.caps().max_allocation_bytes);
        // A power of two, which workgroups of 64 KiB divide.
        1 << most.min(limit).ilog2()
    }

    fn pipeline(&self, name: &str, glsl: &str, bindings: u32, push_bytes: u32) -> Result<Arc<Pipeline>> {
        let (modules, _) = compile_spirv(&[(name, glsl)], cache_dir().as_deref())?;
        let spirv = modules.first().ok_or_else(|| BenchError::Device(format!("no module for {name}")))?;
        let desc = PipelineDesc { name, spirv, bindings, push_bytes, required_subgroup_size: None };
        let mut made = self.context.create_pipelines(&[desc])?;
        made.pop().ok_or_else(|| BenchError::Device(format!("no pipeline for {name}")))
    }

    fn buffer(&self, name: &str, bytes: u64) -> Result<Arc<Buffer>> {
        Ok(self.context.buffer(name, bytes, MemoryUse::Device)?)
    }

    /// A buffer of random bits, and those bits.
    fn random(&self, name: &str, bytes: u64) -> Result<(Arc<Buffer>, Vec<u8>)> {
        let buffer = self.buffer(name, bytes)?;
        // Blocks that have nothing but random bits in most of their bytes.
        let data = random(Format::Q8_0, (bytes / 34 + 1) as usize * 32, 1.0, 5)?;
        self.context.upload(&buffer, 0, &data[..bytes as usize])?;
        Ok((buffer, data))
    }

    fn download(&self, buffer: &Buffer, bytes: usize) -> Result<Vec<u8>> {
        let mut data = vec![0; bytes];
        self.context.download(buffer, 0, &mut data)?;
        Ok(data)
    }

    fn record(
        &self,
        commands: Vec<RecordCommand>,
        pipelines: &[Arc<Pipeline>],
        buffers: &[Arc<Buffer>],
    ) -> Result<Recorded> {
        let issued = commands.iter().filter(|c| !matches!(c, RecordCommand::Barrier(_))).count();
        let spec = RecordSpec { commands: [vec![HEAD], commands, vec![TAIL]].concat() };
        let options = RecordOptions { timing: Timing::Run, ..RecordOptions::default() };
        let recording = Recording::new(self.context, &spec, pipelines, buffers, options)?;
        Ok(Recorded { recording, commands: issued })
    }

    /// Times a recording; the figures are those of one of its commands.
    fn time(&self, recorded: &Recorded, row: &mut Row) -> Result<()> {
        let Recorded { recording, commands } = recorded;
        let times: Times = repeat(self.seconds.min(0.3), || {
            let start = Instant::now();
            recording.run()?;
            let wall = micros_since(start);
            Ok(Took { device: recording.run_time()? as f64 / 1e3, wall })
        })?;
        row.instances = *commands;
        row.dispatches = recording.counts().dispatches;
        row.barriers = recording.counts().barriers_between;
        row.timed(times.device.times(1.0 / *commands as f64));
        row.wall_us = Some(times.wall.median / *commands as f64);
        Ok(())
    }

    fn read(&self, row: &mut Row) -> Result<()> {
        let bytes = self.bytes();
        let (a, data) = self.random("read", bytes)?;
        let groups = bytes / (1 << 16);
        // Each dispatch stores to a part of its own, so that none waits for another.
        let times = 4;
        let b = self.buffer("sums", 16 * groups * times)?;
        let pipeline = self.pipeline("read", READ, 2, 0)?;
        let buffers = [a, b];
        let commands = (0..times).map(|i| {
            let sums = BindRange { buffer: 1, offset: 16 * groups * i, bytes: 16 * groups };
            dispatch(vec![BindRange { buffer: 0, offset: 0, bytes }, sums], groups as u32, vec![])
        });
        let recorded = self.record(commands.collect(), &[pipeline], &buffers)?;
        row.bytes = bytes;
        row.working_set = bytes;
        self.time(&recorded, row)?;
        let sum = |bytes: &[u8]| {
            let words = bytes.as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w));
            words.fold(0u32, u32::wrapping_add)
        };
        let got = self.download(&buffers[1], (16 * groups * times) as usize)?;
        let want = sum(&data[..bytes as usize]).wrapping_mul(times as u32);
        row.checked = got.len() / 16;
        right(sum(&got) == want, "the sum of what was read")
    }

    fn copy(&self, row: &mut Row) -> Result<()> {
        let bytes = self.bytes();
        let (a, data) = self.random("source", bytes)?;
        let buffers = [a, self.buffer("target", bytes)?];
        let pipeline = self.pipeline("copy", COPY, 2, 0)?;
        let full_buffer = |buffer| BindRange { buffer, offset: 0, bytes };
        let commands =
            vec![dispatch(vec![full_buffer(0), full_buffer(1)], (bytes / (1 << 14)) as u32, vec![])];
        let recorded = self.record(commands, &[pipeline], &buffers)?;
        (row.bytes, row.working_set) = (2 * bytes, 2 * bytes);
        self.time(&recorded, row)?;
        let got = self.download(&buffers[1], bytes as usize)?;
        row.checked = got.len() / 4;
        right(got == data[..bytes as usize], "the copy")
    }

    fn fill(&self, row: &mut Row) -> Result<()> {
        let bytes = self.bytes();
        let buffers = [self.buffer("target", bytes)?];
        let value = 0x5eed_1234;
        let commands = vec![RecordCommand::Fill { buffer: 0, offset: 0, bytes, value }];
        let recorded = self.record(commands, &[], &buffers)?;
        (row.bytes, row.working_set) = (bytes, bytes);
        self.time(&recorded, row)?;
        let got = self.download(&buffers[0], bytes as usize)?;
        row.checked = got.len() / 4;
        right(got.as_chunks::<4>().0.iter().all(|w| *w == u32::to_le_bytes(value)), "the fill")
    }

    /// A kernel that keeps the arithmetic units busy, and what it must compute.
    fn arithmetic(&self, row: &mut Row, name: &str, glsl: &str, expected: Expected) -> Result<()> {
        let (groups, steps) = if self.quick { (4, 24_u32) } else { (4224, 2048) };
        let invocations = groups as usize * 256;
        // Multiplier and addend, under which a chain of multiply-adds tends to 1; then where each lane starts.
        let mut data: Vec<u8> = [0.999_f32, 0.001].iter().flat_map(|x| x.to_le_bytes()).collect();
        data.extend(random(Format::F32, 256, 1.0, 9)?);
        let a = self.buffer("constants", data.len() as u64)?;
        self.context.upload(&a, 0, &data)?;
        let buffers = [a, self.buffer("results", 4 * invocations as u64)?];
        let pipeline = self.pipeline(name, glsl, 2, 4)?;
        let full_buffer = |buffer: usize| BindRange { buffer, offset: 0, bytes: buffers[buffer].size() };
        let push = steps.to_le_bytes().to_vec();
        let commands = vec![dispatch(vec![full_buffer(0), full_buffer(1)], groups, push)];
        let recorded = self.record(commands, &[pipeline], &buffers)?;
        let lanes: Vec<(f64, [u8; 4])> = (0..256).map(|lane| expected(&data, steps, lane)).collect();
        row.flops = (lanes[0].0 * f64::from(steps) * invocations as f64) as u64;
        self.time(&recorded, row)?;
        let got = self.download(&buffers[1], 4 * invocations)?;
        let got = got.as_chunks::<4>().0;
        row.checked = got.len();
        let same = |(i, got): (usize, &[u8; 4])| near(name, *got, lanes[i % 256].1);
        right(got.iter().enumerate().all(same), "a result")
    }

    fn matrix(&self, row: &mut Row) -> Result<()> {
        let (groups, steps) = if self.quick { (2, 8_u32) } else { (1056, 1024) };
        let subgroups = groups as usize * 128 / self.context.caps().subgroup_size.max(1) as usize;
        // Small integers, whose products and sums are exact: each element is at most 16 * 2 * 2 * 1024.
        let bits = random(Format::I8, 6 * 256, 1.0, 11)?;
        let small: Vec<f32> = bits.iter().map(|b| f32::from(*b as i8 % 3)).collect();
        let half = |x: &f32| if *x == 0.0 { 0u16 } else { 0x3c00 + (((x.abs() - 1.0) as u16) << 10) };
        let sign = |x: &f32| if *x < 0.0 { 0x8000u16 } else { 0 };
        let data: Vec<u8> = small.iter().flat_map(|x| (half(x) | sign(x)).to_le_bytes()).collect();
        let a = self.buffer("matrices", data.len() as u64)?;
        self.context.upload(&a, 0, &data)?;
        let elements = subgroups * 8 * 256;
        let buffers = [a, self.buffer("results", 4 * elements as u64)?];
        let pipeline = self.pipeline("matrix", MATRIX, 2, 4)?;
        let full_buffer = |buffer: usize| BindRange { buffer, offset: 0, bytes: buffers[buffer].size() };
        let push = steps.to_le_bytes().to_vec();
        let commands = vec![dispatch(vec![full_buffer(0), full_buffer(1)], groups, push)];
        let recorded = self.record(commands, &[pipeline], &buffers)?;
        row.flops = 2 * 16 * 16 * 16 * 8 * u64::from(steps) * subgroups as u64;
        self.time(&recorded, row)?;
        let got = self.download(&buffers[1], 4 * elements)?;
        let element = |i: usize| -> f32 {
            let (tile, at) = (i / 256, i % 256);
            let (left, right_of) = (&small[tile / 4 * 256..], &small[512 + tile % 4 * 256..]);
            (0..16).map(|k| left[at / 16 * 16 + k] * right_of[k * 16 + at % 16]).sum::<f32>() * steps as f32
        };
        let tiles: Vec<f32> = (0..8 * 256).map(element).collect();
        let got = got.as_chunks::<4>().0;
        row.checked = got.len();
        let same = |(i, got): (usize, &[u8; 4])| f32::from_le_bytes(*got) == tiles[i % tiles.len()];
        right(got.iter().enumerate().all(same), "an element of the products")
    }

    /// Dispatches that do nothing, each with a barrier after it or none.
    fn empty(&self, row: &mut Row, groups: u32, barriers: bool) -> Result<()> {
        let count = if self.quick { 16 } else { 1000 };
        let pipeline = self.pipeline("empty", EMPTY, 0, 0)?;
        let mut commands = vec![];
        for i in 0..count {
            if barriers && i > 0 {
                commands.push(BETWEEN);
            }
            commands.push(dispatch(vec![], groups, vec![]));
        }
        let recorded = self.record(commands, &[pipeline], &[])?;
        self.time(&recorded, row)
    }
}

fn dispatch(bindings: Vec<BindRange>, groups: u32, push: Vec<u8>) -> RecordCommand {
    RecordCommand::Dispatch {
        pipeline: 0,
        bindings,
        grid: Grid::Direct([groups, 1, 1]),
        push,
        label: String::new(),
    }
}

fn right(is: bool, what: &str) -> Result<()> {
    if is { Ok(()) } else { Err(BenchError::Wrong(what.into())) }
}

fn word(data: &[u8], at: usize) -> [u8; 4] {
    [data[4 * at], data[4 * at + 1], data[4 * at + 2], data[4 * at + 3]]
}

/// Operations of an invocation in a step, and the result of lane `lane` of `fma.comp`.
fn fma(data: &[u8], steps: u32, lane: usize) -> (f64, [u8; 4]) {
    let at = |i| f32::from_le_bytes(word(data, i));
    let chain = |k: u32| (0..steps).fold(at(2 + lane) + k as f32, |x, _| x.mul_add(at(0), at(1)));
    (16.0, (0..8).map(chain).sum::<f32>().to_le_bytes())
}

/// As [`fma`], of `dot.comp`: four products and four sums a step and chain.
fn dot(data: &[u8], steps: u32, lane: usize) -> (f64, [u8; 4]) {
    let at = |i| i32::from_le_bytes(word(data, i));
    let bytes = |x: i32| x.to_le_bytes().map(|b| i32::from(b as i8));
    let product = |a: i32, b: i32| bytes(a).iter().zip(bytes(b)).map(|(a, b)| a * b).sum::<i32>();
    let chain =
        |k: i32| (0..steps).fold(at(2 + lane).wrapping_add(k), |x, _| x.wrapping_add(product(at(0), x)));
    (64.0, (0..8).map(chain).fold(0i32, i32::wrapping_add).to_le_bytes())
}

/// Integers are exact. A chain of floats forgets its errors as fast as it forgets where it started, by a thousandth a
/// step, so that at most a thousand steps' are left: two roundings of 2^-24 of a value of about 1 each, where a device
/// rounds the product too.
fn near(name: &str, got: [u8; 4], want: [u8; 4]) -> bool {
    if name == "dot" {
        return got == want;
    }
    let (got, want) = (f32::from_le_bytes(got), f32::from_le_bytes(want));
    (got - want).abs() <= 2000.0 / (1 << 24) as f32 * (8.0 + want.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shaders_compile_also_for_what_this_device_lacks() {
        let all = [
            ("read", READ),
            ("copy", COPY),
            ("fma", FMA),
            ("dot", DOT),
            ("matrix", MATRIX),
            ("empty", EMPTY),
        ];
        let (modules, _) = compile_spirv(&all, None).unwrap();
        assert_eq!(modules.len(), all.len());
    }
}
