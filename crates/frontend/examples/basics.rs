//! The first things one does with a tensor: make it, compute, look at it.
//!
//! ```sh
//! cargo run -p tallow --example basics
//! ```

use std::io::Write;

use tallow::{D, DType, Device, IndexOp, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::vulkan_if_available();
    device.set_seed(1)?;
    let a = Tensor::randn(0f32, 1.0, (1024, 1024), &device)?;
    let b = Tensor::randn(0f32, 1.0, (1024, 1024), &device)?;

    // An expression; nothing has been computed. Printing asks for its value, which is one run of few kernels.
    let c = a.matmul(&b)?.relu()?;
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{c}\n");

    // Rows, columns, ranges: views cost nothing.
    let corner = c.i((..3, 1018..))?;
    let _ = writeln!(out, "{corner}\n");

    // Shapes are repeated where they differ, only if one asks for it.
    let centered = c.broadcast_sub(&c.mean_keepdim(D::Minus1)?)?;
    let _ = writeln!(out, "largest: {}", centered.max_all()?.to_scalar::<f32>()?);
    let _ = writeln!(out, "where in each row: {:?}", &c.argmax(D::Minus1)?.to_vec1::<u32>()?[..5]);

    // Element types are never converted silently.
    let half = c.to_dtype(DType::F16)?;
    if let Err(error) = c.add(&half) {
        let _ = writeln!(out, "error: {error}");
    }
    Ok(())
}
