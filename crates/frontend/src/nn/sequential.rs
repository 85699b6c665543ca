//! Layers made of layers and of functions.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::module::{Module, ModuleT};
use crate::tensor::Tensor;

/// Layers one after the other.
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Module>>,
}

/// No layers yet: a layer that gives its input.
pub fn seq() -> Sequential {
    Sequential::default()
}

impl Sequential {
    /// The number of layers.
    pub fn len(&self) -> i64 {
        i64::try_from(self.layers.len()).unwrap_or(i64::MAX)
    }

    /// Whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// With a layer at the end.
    #[allow(clippy::should_implement_trait, reason = "Candle's name")]
    pub fn add<M: Module + 'static>(mut self, layer: M) -> Sequential {
        self.layers.push(Box::new(layer));
        self
    }

    /// With a function as a layer at the end.
    pub fn add_fn(self, function: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Sequential {
        self.add(Func::new(function))
    }

    /// What each layer gives, from the first on.
    ///
    /// # Errors
    /// Those of the layers.
    pub fn forward_all(&self, xs: &Tensor) -> Result<Vec<Tensor>> {
        let mut all: Vec<Tensor> = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let next = layer.forward(all.last().unwrap_or(xs))?;
            all.push(next);
        }
        Ok(all)
    }
}

impl Module for Sequential {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.layers.iter().try_fold(xs.clone(), |xs, layer| layer.forward(&xs))
    }
}

impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sequential[{} layers]", self.layers.len())
    }
}

type Function<'a> = dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'a;
type FunctionT<'a> = dyn Fn(&Tensor, bool) -> Result<Tensor> + Send + Sync + 'a;

/// A function as a layer. Cheap to clone.
#[derive(Clone)]
pub struct Func<'a>(Arc<Function<'a>>);

/// A function as a layer.
pub fn func<'a>(f: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'a) -> Func<'a> {
    Func::new(f)
}

impl<'a> Func<'a> {
    /// A function as a layer.
    pub fn new(f: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'a) -> Func<'a> {
        Func(Arc::new(f))
    }
}

impl Module for Func<'_> {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        (self.0)(xs)
    }
}

impl fmt::Debug for Func<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Func")
    }
}

/// A function that is told whether a network is trained, as a layer. Cheap to clone.
#[derive(Clone)]
pub struct FuncT<'a>(Arc<FunctionT<'a>>);

/// A function that is told whether a network is trained, as a layer.
pub fn func_t<'a>(f: impl Fn(&Tensor, bool) -> Result<Tensor> + Send + Sync + 'a) -> FuncT<'a> {
    FuncT::new(f)
}

impl<'a> FuncT<'a> {
    /// A function that is told whether a network is trained, as a layer.
    pub fn new(f: impl Fn(&Tensor, bool) -> Result<Tensor> + Send + Sync + 'a) -> FuncT<'a> {
        FuncT(Arc::new(f))
    }
}

impl ModuleT for FuncT<'_> {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        (self.0)(xs, train)
    }
}

impl fmt::Debug for FuncT<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FuncT")
    }
}
