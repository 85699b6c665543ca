//! What a point of the sweep is: a small program at one size, and what bounds it.

use std::sync::Arc;

use tallow::DType;

use crate::networks::{Builder, Network, Scale, Var};

/// An extent that a program is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Elements.
    pub size: usize,
    /// At most so many positions are compared with the interpreter; all of them if `None`.
    pub sampled: Option<usize>,
}

/// An extent of which all positions are checked.
pub fn full(size: usize) -> Extent {
    Extent { size, sampled: None }
}

/// An extent of which a few positions are checked. Results at one position must not depend on others.
pub fn sampled(size: usize, positions: usize) -> Extent {
    Extent { size, sampled: Some(positions) }
}

/// The fastest instruction that a device may use for a program's products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Multiply-adds in f32.
    Fma,
    /// Products of 16-bit matrices; multiply-adds on a device without hardware for them.
    Matrix,
}

/// Writes the program for these extents.
type Write = dyn Fn(&mut Builder, &[usize]) -> Vec<Var> + Send + Sync;

/// One point of the sweep.
#[derive(Clone)]
pub struct Point {
    /// `family/variant/sizes`, unique.
    pub name: String,
    /// The extents that the program is written for.
    pub extents: Vec<Extent>,
    /// The element type of the inputs that the program does not state otherwise.
    pub dtype: DType,
    /// Floating-point operations that the result needs, a multiply-add as two; 0 where memory is the bound.
    pub flops: u64,
    /// What they are measured against.
    pub rate: Rate,
    /// Bytes of inputs that the results depend on, if these are not all: rows that no index selects.
    pub bytes_read: Option<u64>,
    /// Sizes at which the program is compared with the interpreter instead, if its extents cannot be sampled.
    pub checked_at: Option<Vec<usize>>,
    write: Arc<Write>,
}

/// For each tensor and axis, the number of the extent that it has.
pub type Axes = Vec<Vec<Option<usize>>>;

impl Point {
    /// A point that memory bounds.
    pub fn new(
        name: String,
        dtype: DType,
        extents: Vec<Extent>,
        write: impl Fn(&mut Builder, &[usize]) -> Vec<Var> + Send + Sync + 'static,
    ) -> Point {
        let write = Arc::new(write);
        Point { name, extents, dtype, flops: 0, rate: Rate::Fma, bytes_read: None, checked_at: None, write }
    }

    /// The point, of a program with `flops` operations in products of its element type.
    pub fn with_flops(self, flops: u64) -> Point {
        let rate = if self.dtype == DType::F32 { Rate::Fma } else { Rate::Matrix };
        Point { flops, rate, ..self }
    }

    /// The point, measured against this rate.
    pub fn at_rate(self, rate: Rate) -> Point {
        Point { rate, ..self }
    }

    /// The point, compared with the interpreter at other sizes.
    pub fn checked_at(self, sizes: Vec<usize>) -> Point {
        Point { checked_at: Some(sizes), ..self }
    }

    /// The same program at other sizes, all of whose positions are checked.
    pub fn resized(&self, sizes: &[usize]) -> Point {
        Point { extents: sizes.iter().map(|size| full(*size)).collect(), checked_at: None, ..self.clone() }
    }

    /// The point, of a program that reads so many bytes.
    pub fn reading(self, bytes: u64) -> Point {
        Point { bytes_read: Some(bytes), ..self }
    }

    /// The first component of the name.
    pub fn family(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// The program for these sizes of the extents.
    pub fn network(&self, sizes: &[usize]) -> Network {
        let mut builder = Builder::new(0, Scale::Full);
        builder.dtype = self.dtype;
        let outputs = (self.write)(&mut builder, sizes);
        builder.finish(self.name.clone(), 0, &outputs)
    }

    /// The sizes of the extents.
    pub fn sizes(&self) -> Vec<usize> {
        self.extents.iter().map(|extent| extent.size).collect()
    }

    /// The sampled extent that each axis of the inputs and of the outputs has: the one with which it changes. `outputs`
    /// gives the shapes of a program's outputs.
    ///
    /// # Errors
    /// When `outputs` fails.
    pub fn axes<E>(&self, outputs: impl Fn(&Network) -> Result<Vec<Vec<usize>>, E>) -> Result<[Axes; 2], E> {
        let shapes = |sizes: &[usize]| {
            let network = self.network(sizes);
            let inputs: Vec<Vec<usize>> = network.inputs.iter().map(|spec| spec.shape.clone()).collect();
            Ok([inputs, outputs(&network)?])
        };
        let whole = shapes(&self.sizes())?;
        let mut axes = whole.clone().map(|all| all.iter().map(|shape| vec![None; shape.len()]).collect());
        for (number, extent) in self.extents.iter().enumerate().filter(|(_, e)| e.sampled.is_some()) {
            let mut sizes = self.sizes();
            sizes[number] = extent.size * 2;
            for (axes, (whole, other)) in axes.iter_mut().zip(whole.iter().zip(shapes(&sizes)?)) {
                mark(axes, whole, &other, number);
            }
        }
        Ok(axes)
    }
}

/// Notes extent `number` at every axis whose size differs.
fn mark(axes: &mut Axes, whole: &[Vec<usize>], other: &[Vec<usize>], number: usize) {
    for ((axes, whole), other) in axes.iter_mut().zip(whole).zip(other) {
        for ((axis, whole), other) in axes.iter_mut().zip(whole).zip(other) {
            if whole != other {
                *axis = Some(number);
            }
        }
    }
}
