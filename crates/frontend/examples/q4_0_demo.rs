//! What Q4_0 does to numbers: 32 of them share a scale, and each keeps four bits.
//!
//! ```sh
//! cargo run -p tallow --example q4_0_demo
//! ```

use std::io::Write;

use tallow::quantized::{GgmlDType, QTensor};
use tallow::{Device, Result, Tensor};

const ROWS: usize = 1024;
const COLUMNS: usize = 1024;

fn main() -> Result<()> {
    let device = Device::Cpu;
    device.set_seed(1)?;
    let x = Tensor::randn(0f32, 1.0, (ROWS, COLUMNS), &device)?;
    let q = QTensor::quantize(&x, GgmlDType::Q4_0)?;
    let y = q.dequantize(&device)?;

    let (per, bytes) = (q.dtype().block_elements(), q.dtype().block_bytes());
    let block = &q.data()?[..bytes];
    let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "a block: {per} numbers in {bytes} bytes");
    let _ = writeln!(out, "  bytes 0..2   scale, f16      {:02x?} = {scale}", &block[..2]);
    let _ = writeln!(out, "  bytes 2..18  32 x four bits  {:02x?}", &block[2..]);
    let _ =
        writeln!(out, "  byte 2 + j holds numbers j (low bits) and j + 16 (high bits); (bits - 8) * scale:");
    let (before, after) = (x.get(0)?.to_vec1::<f32>()?, y.get(0)?.to_vec1::<f32>()?);
    for j in [0, 1, 16, 17] {
        let bits = block[2 + j % 16] >> (j / 16 * 4) & 15;
        let _ = writeln!(out, "  number {j:2}  {:9.5} -> {bits:2} -> {:9.5}", before[j], after[j]);
    }

    let plain = ROWS * COLUMNS * size_of::<f32>();
    let packed = q.storage_size_in_bytes();
    let ratio = plain as f64 / packed as f64;
    let bits = 8.0 * packed as f64 / (ROWS * COLUMNS) as f64;
    let _ = writeln!(out, "\n{ROWS} x {COLUMNS} numbers: {plain} bytes as f32, {packed} as Q4_0");
    let _ = writeln!(out, "{ratio:.1}x smaller, {bits} bits a number");
    let error = x.sub(&y)?.abs()?;
    let (worst, mean) = (error.max_all()?.to_scalar::<f32>()?, error.mean_all()?.to_scalar::<f32>()?);
    let _ = writeln!(out, "error of numbers with deviation 1: at most {worst:.4}, {mean:.4} on average");
    Ok(())
}
