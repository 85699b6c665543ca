//! A small convolutional network for images of digits: two convolutions, two pools, two linear layers.
//!
//! Every layer is one kernel: padding, bias and activation are part of the convolution that they belong to, and
//! no unfolded image is stored. The weights are fixed numbers that look random, so the answer means nothing,
//! but it is the same on every device.
//!
//! ```sh
//! cargo run -p tallow --example conv_net
//! ```

use std::io::Write;

use tallow::{DType, Device, Input, Result, Tensor, compile, nn};

/// Numbers from -1 to 1 that look random, scaled for sums of `inputs` of them.
fn weights(shape: &[usize], inputs: usize, device: &Device) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let mixed = |i: usize| (i as u32).wrapping_mul(2_654_435_761).rotate_left(15).wrapping_mul(2_246_822_519);
    let scale = (3.0 / inputs as f32).sqrt() / (1u32 << 31) as f32;
    let values = (1..=count).map(|i| (mixed(i) as f32 - (1u32 << 31) as f32) * scale).collect();
    Tensor::from_vec::<f32>(values, shape.to_vec(), device)
}

/// A convolution with a 3 x 3 window that keeps the image's size.
struct Conv {
    kernel: Tensor,
    bias: Tensor,
}

impl Conv {
    fn new(inputs: usize, outputs: usize, device: &Device) -> Result<Conv> {
        let kernel = weights(&[outputs, inputs, 3, 3], 9 * inputs, device)?;
        Ok(Conv { kernel, bias: weights(&[outputs, 1, 1], outputs, device)? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.conv2d(&self.kernel, 1, 1, 1, 1)?.broadcast_add(&self.bias)
    }
}

fn main() -> Result<()> {
    let device = Device::vulkan_if_available();
    let (first, second) = (Conv::new(1, 16, &device)?, Conv::new(16, 32, &device)?);
    let hidden = weights(&[32 * 7 * 7, 64], 32 * 7 * 7, &device)?;
    let last = weights(&[64, 10], 64, &device)?;

    // Compiled once; each run is one submission. The tensors that the function captures become weights.
    let images = 8usize;
    let net = compile(&device, &[Input::new("image", DType::F32, (images, 1, 28, 28))], |inputs| {
        let x = first.forward(&inputs[0])?.relu()?.max_pool2d(2)?;
        let x = second.forward(&x)?.relu()?.max_pool2d(2)?;
        let x = x.flatten(1, 3)?.matmul(&hidden)?.relu()?.matmul(&last)?;
        Ok(vec![nn::softmax(&x, 1)?])
    })?;

    let image = weights(&[images, 1, 28, 28], 1, &device)?;
    let probabilities = &net.run(&[&image])?[0];
    let mut out = std::io::stdout().lock();
    // A reader that closes the pipe early is no reason to fail.
    let _ = writeln!(out, "{}\n\n{probabilities}", net.explain()?);
    for (i, (row, digit)) in
        probabilities.to_vec2::<f32>()?.iter().zip(probabilities.argmax(1)?.to_vec1::<u32>()?).enumerate()
    {
        let _ = writeln!(out, "image {i}: {digit} with {:.1} %", 100.0 * row[digit as usize]);
    }
    Ok(())
}
