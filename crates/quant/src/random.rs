//! Random weights: blocks of random bits under scales that keep values the size of a model's weights, for tests and
//! benchmarks. Made many times faster than values are quantized, in every format, valid in every field.

use half::{bf16, f16};

use crate::{Format, QuantError};

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
struct Bits(u64);

impl Bits {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Nearly normal, of variance 1: the sum of four uniform numbers (Irwin-Hall), each of variance 1/12.
    fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum = (0..4).map(|i| (bits >> (16 * i) & 0xffff) as u32).sum::<u32>();
        (sum as f32 / 65535.0 - 2.0) * 3f32.sqrt()
    }

    /// From 3/4 to 5/4.
    fn about_one(&mut self) -> f32 {
        0.75 + (self.next() >> 40) as f32 / (1u32 << 25) as f32
    }
}

/// Fills `bytes` with random blocks whose values have a root mean square of about `size`, the same for one `seed`.
/// Integers, whose values cannot be small, are within -8 ..= 7 and take no size.
///
/// ```
/// use tallow_quant::{Format, dequantize, random_blocks};
/// let mut blocks = vec![0; Format::Q4_K.row_bytes(512)?];
/// random_blocks(Format::Q4_K, &mut blocks, 0.02, 1)?;
/// let mut values = [0.0; 512];
/// dequantize(Format::Q4_K, &blocks, &mut values)?;
/// let square = values.iter().map(|x| x * x).sum::<f32>() / 512.0;
/// assert!((0.01..0.04).contains(&square.sqrt()));
/// # Ok::<(), tallow_quant::QuantError>(())
/// ```
///
/// # Errors
/// When `bytes` are not whole blocks.
pub fn random_blocks(format: Format, bytes: &mut [u8], size: f32, seed: u64) -> Result<(), QuantError> {
    let spec = format.spec();
    if !bytes.len().is_multiple_of(spec.block_bytes) {
        let expected = bytes.len().next_multiple_of(spec.block_bytes);
        return Err(QuantError::ByteCount { format: spec.name, expected, got: bytes.len() });
    }
    let mut bits = Bits(seed);
    match format {
        Format::F16 => {
            let value = |bits: &mut Bits| f16::from_f32(size * bits.normal()).to_le_bytes();
            bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|x| *x = value(&mut bits));
        }
        Format::BF16 => {
            let value = |bits: &mut Bits| bf16::from_f32(size * bits.normal()).to_le_bytes();
            bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|x| *x = value(&mut bits));
        }
        Format::F32 => {
            let value = |bits: &mut Bits| (size * bits.normal()).to_le_bytes();
            bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|x| *x = value(&mut bits));
        }
        Format::F64 => {
            let value = |bits: &mut Bits| f64::from(size * bits.normal()).to_le_bytes();
            bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|x| *x = value(&mut bits));
        }
        Format::I8 | Format::I16 | Format::I32 | Format::I64 => {
            for block in bytes.chunks_exact_mut(spec.block_bytes) {
                let small = (bits.next() >> 60) as i64 - 8;
                block.copy_from_slice(&small.to_le_bytes()[..block.len()]);
            }
        }
        Format::Q4_0
        | Format::Q4_1
        | Format::Q5_0
        | Format::Q5_1
        | Format::Q8_0
        | Format::Q8_1
        | Format::Q2_K
        | Format::Q3_K
        | Format::Q4_K
        | Format::Q5_K
        | Format::Q6_K
        | Format::Q8_K
        | Format::IQ2_XXS
        | Format::IQ2_XS
        | Format::IQ2_S
        | Format::IQ3_XXS
        | Format::IQ3_S
        | Format::IQ1_S
        | Format::IQ1_M
        | Format::IQ4_NL
        | Format::IQ4_XS
        | Format::TQ1_0
        | Format::TQ2_0
        | Format::MXFP4
        | Format::NVFP4 => {
            let (words, rest) = bytes.as_chunks_mut::<8>();
            words.iter_mut().for_each(|word| *word = bits.next().to_le_bytes());
            rest.iter_mut().for_each(|byte| *byte = bits.next() as u8);
            for block in bytes.chunks_exact_mut(spec.block_bytes) {
                set_scales(format, block, size, &mut bits);
            }
        }
    }
    Ok(())
}

fn put_f16(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// Gives a block of random bits the scales under which its values have the root mean square `size`.
fn set_scales(format: Format, block: &mut [u8], size: f32, bits: &mut Bits) {
    // The root mean square of a value under the scale 1, where all other fields are uniform. A minimum takes the mean
    // of what it is subtracted from, so that values have none.
    let scale = |bits: &mut Bits, unit: f32| size / unit * bits.about_one();
    let mut one = |at: usize, unit: f32| {
        let d = scale(bits, unit);
        put_f16(block, at, d);
        d
    };
    match format {
        // Levels of -8 ..= 7, -16 ..= 15 and -128 ..= 127.
        Format::Q4_0 => drop(one(0, 4.6)),
        Format::Q5_0 => drop(one(0, 9.2)),
        Format::Q8_0 => drop(one(0, 74.0)),
        // Levels of 0 ..= 15 and 0 ..= 31, and a minimum that is added.
        Format::Q4_1 => {
            let d = one(0, 4.6);
            put_f16(block, 2, -7.5 * d);
        }
        Format::Q5_1 => {
            let d = one(0, 9.2);
            put_f16(block, 2, -15.5 * d);
        }
        Format::Q8_1 => {
            let d = one(0, 74.0);
            let sum: i32 = block[4..].iter().map(|q| i32::from(*q as i8)).sum();
            put_f16(block, 2, d * sum as f32);
        }
        // Scales of 0 ..= 15 times levels of 0 ..= 3, less minima of 0 ..= 15.
        Format::Q2_K => {
            let d = one(80, 13.9);
            put_f16(block, 82, 1.5 * d);
        }
        // Scales of -32 ..= 31 times levels of -4 ..= 3.
        Format::Q3_K => drop(one(108, 43.0)),
        // Scales of 0 ..= 63 times levels of 0 ..= 15 (of 0 ..= 31), less minima of 0 ..= 63.
        Format::Q4_K => {
            let d = one(0, 258.0);
            put_f16(block, 2, 7.5 * d);
        }
        Format::Q5_K => {
            let d = one(0, 526.0);
            put_f16(block, 2, 15.5 * d);
        }
        // Scales of -128 ..= 127 times levels of -32 ..= 31.
        Format::Q6_K => drop(one(208, 1370.0)),
        Format::Q8_K => {
            let d = scale(bits, 74.0);
            block[..4].copy_from_slice(&d.to_le_bytes());
            for group in 0..16 {
                let levels = &block[4 + 16 * group..][..16];
                let sum: i16 = levels.iter().map(|q| i16::from(*q as i8)).sum();
                block[260 + 2 * group..][..2].copy_from_slice(&sum.to_le_bytes());
            }
        }
        // Points of codebooks under scales of 3 and 4 bits.
        Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S => drop(one(0, 60.0)),
        Format::IQ3_XXS => drop(one(0, 150.0)),
        Format::IQ3_S => drop(one(0, 140.0)),
        Format::IQ1_S => drop(one(0, 7.5)),
        // The upper quarters of four words are the scale.
        Format::IQ1_M => {
            let d = f16::from_f32(scale(bits, 7.5)).to_bits();
            for (j, word) in block[48..56].as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let quarter = d >> (4 * j) & 0xf;
                *word = (u16::from_le_bytes(*word) & 0x0fff | quarter << 12).to_le_bytes();
            }
        }
        // Levels of -127 ..= 113, and those under scales of -32 ..= 31.
        Format::IQ4_NL => drop(one(0, 70.0)),
        Format::IQ4_XS => drop(one(0, 1300.0)),
        // Levels of -1, 0 and 1. Random bytes hold a 2 where there is room for it, which means what it says.
        Format::TQ1_0 => drop(one(52, 0.82)),
        Format::TQ2_0 => drop(one(64, 1.22)),
        // Floats up to 6 under a power of two, of which 127 is 1.
        Format::MXFP4 => {
            let power = (size / 3.0).log2().round().clamp(-126.0, 120.0) as i32;
            block[0] = (127 + power + (bits.next() % 3) as i32 - 1) as u8;
        }
        // Floats up to 6 under four scales of 8 bits: a power of two from 2^-6 with three bits of fraction, or less, as
        // multiples of 2^-9.
        Format::NVFP4 => {
            let mean = size / 3.0;
            for scale in &mut block[..4] {
                *scale = match mean * 64.0 {
                    below if below < 1.0 => (8.0 * below).clamp(1.0, 6.0) as u8 + *scale % 2,
                    above => (above.log2().min(12.0).round() as u8 + 1) << 3 | *scale & 1,
                };
            }
        }
        Format::F16 | Format::BF16 | Format::F32 | Format::F64 => {}
        Format::I8 | Format::I16 | Format::I32 | Format::I64 => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_format_have_the_size_asked_for() {
        for &format in Format::ALL {
            for size in [0.02, 0.12] {
                let elements = 256 * 256;
                let mut bytes = vec![0; format.row_bytes(elements).expect("whole blocks")];
                random_blocks(format, &mut bytes, size, 7).expect("whole blocks");
                let mut values = vec![0.0; elements];
                crate::dequantize(format, &bytes, &mut values).expect("whole blocks");
                let square = values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / elements as f64;
                let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / elements as f64;
                let (want, got) = (f64::from(size), square.sqrt());
                let integer = matches!(format, Format::I8 | Format::I16 | Format::I32 | Format::I64);
                let near = |ratio: f64| (0.6..1.6).contains(&ratio);
                assert!(
                    if integer { near(got / 4.6) } else { near(got / want) },
                    "{format}: {got} for {want}"
                );
                assert!(mean.abs() < got / 2.0, "{format}: mean {mean} of {got}");
            }
        }
    }

    #[test]
    fn a_seed_is_a_weight() {
        let make = |seed| {
            let mut bytes = vec![0; 10 * 144];
            random_blocks(Format::Q4_K, &mut bytes, 0.02, seed).expect("whole blocks");
            bytes
        };
        assert!(make(1) == make(1) && make(1) != make(2));
        assert!(random_blocks(Format::Q4_K, &mut [0; 143], 0.02, 1).is_err());
    }
}
