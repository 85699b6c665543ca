//! The smallest program: build an expression, look at the plan, ask for the values.
//!
//! ```sh
//! cargo run -p tallow --example hello_add
//! ```

use std::io::Write;

use tallow::{Device, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::vulkan_if_available();
    let a = Tensor::new([[1f32, 2.0, 3.0], [4.0, 5.0, 6.0]], &device)?;
    let b = Tensor::new([10f32, 20.0, 30.0], &device)?;
    // Nothing runs here: `c` is an expression with a shape and an element type.
    let c = a.broadcast_add(&b)?;
    let mut out = std::io::stdout().lock();
    // A reader that closes the pipe early is no reason to fail.
    let _ = writeln!(out, "{c:?} on {device}\n\n{}\n{c}", c.explain()?);
    Ok(())
}
