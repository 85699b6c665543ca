//! The chapters of the guide in `docs/guide/`, so that `cargo test --doc` runs their code blocks.

#[doc = include_str!("../../../docs/guide/first-tensor.md")]
pub struct FirstTensor;

#[doc = include_str!("../../../docs/guide/laziness.md")]
pub struct Laziness;

#[doc = include_str!("../../../docs/guide/symbols.md")]
pub struct Symbols;

#[doc = include_str!("../../../docs/guide/quantized.md")]
pub struct Quantized;

#[doc = include_str!("../../../docs/guide/training.md")]
pub struct Training;

#[doc = include_str!("../../../docs/guide/custom-kernels.md")]
pub struct CustomKernels;

#[doc = include_str!("../../../docs/guide/explain.md")]
pub struct Explain;

#[doc = include_str!("../../../docs/guide/from-candle.md")]
pub struct FromCandle;

#[doc = include_str!("../../../docs/guide/troubleshooting.md")]
pub struct Troubleshooting;
