//! Prints how far each format is from the weights of a model: `quantization_error FILE.gguf`.
//!
//! One line a format: bits an element, and the root mean square error over that of the values, over all matrices; the
//! second figure weights each column by an importance that grows by a factor of 64 from column to column of eight, to
//! show what importance gains. `docs/quantization.md` has the table for storyteller-nano.

use std::error::Error;
use std::io::Write;

use tallow_gguf::GgufFile;
use tallow_quant::{Format, dequantize, quantize, quantize_weighted};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: quantization_error FILE.gguf")?;
    let file = GgufFile::open(path)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{:<8} {:>7} {:>9} {:>9} {:>9}", "format", "bits", "error", "weighted", "heeded")?;
    for &format in Format::ALL.iter().filter(|f| f.can_quantize() && !f.is_plain()) {
        let (mut plain, mut weighted, mut heeded) = (Sum::default(), Sum::default(), Sum::default());
        for tensor in file.tensors().filter(|t| t.shape.len() == 2) {
            let mut values = vec![0.0; tensor.elements()];
            dequantize(tensor.format()?, file.tensor_data(tensor)?, &mut values)?;
            let columns = tensor.shape[1];
            let importance: Vec<f32> = (0..columns).map(|i| 64f32.powf(-((i % 8) as f32) / 7.0)).collect();
            let bytes = quantize(format, &values)?;
            plain.add(format, &values, &bytes, &vec![1.0; columns])?;
            weighted.add(format, &values, &bytes, &importance)?;
            let bytes = quantize_weighted(format, &values, &importance)?;
            heeded.add(format, &values, &bytes, &importance)?;
        }
        let bits = format.block_bytes() as f64 * 8.0 / format.block_elements() as f64;
        let (plain, weighted, heeded) = (plain.relative(), weighted.relative(), heeded.relative());
        writeln!(out, "{:<8} {bits:>7.4} {plain:>9.6} {weighted:>9.6} {heeded:>9.6}", format.name())?;
    }
    Ok(())
}

/// Sums of squared errors and of squared values.
#[derive(Default)]
struct Sum {
    error: f64,
    value: f64,
}

impl Sum {
    fn add(
        &mut self,
        format: Format,
        values: &[f32],
        bytes: &[u8],
        weights: &[f32],
    ) -> Result<(), Box<dyn Error>> {
        let mut back = vec![0.0; values.len()];
        dequantize(format, bytes, &mut back)?;
        for ((x, y), w) in values.iter().zip(&back).zip(weights.iter().cycle()) {
            self.error += f64::from(*w) * f64::from(x - y).powi(2);
            self.value += f64::from(*w) * f64::from(*x).powi(2);
        }
        Ok(())
    }

    fn relative(&self) -> f64 {
        (self.error / self.value).sqrt()
    }
}
