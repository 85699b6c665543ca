//! How far quantized values are from those that they were: no farther than ggml's quantizers leave them.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

use tallow_quant::{Format, dequantize, quantize, quantize_weighted};

const ROWS: usize = 64;
const COLUMNS: usize = 512;

/// Sums of twelve uniform numbers less six, nearly normal: the same on every machine, as only sums of integers and
/// one product are in them.
fn matrix() -> Vec<f32> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as i64
    };
    (0..ROWS * COLUMNS)
        .map(|_| {
            let sum: i64 = (0..12).map(|_| uniform()).sum();
            (sum - (6 << 24)) as f32 * (0.02 / f32::from(2u16.pow(12)) / f32::from(2u16.pow(12)))
        })
        .collect()
}

/// Importance of columns: 1, 2, 4 .. 128 and again.
fn importance() -> Vec<f32> {
    (0..COLUMNS).map(|i| f32::from(1u8 << (i % 8))).collect()
}

/// Root of the weighted squared error over the weighted square of the values.
fn error(format: Format, values: &[f32], bytes: &[u8], weights: &[f32]) -> f64 {
    let mut back = vec![0.0; values.len()];
    dequantize(format, bytes, &mut back).unwrap();
    let (mut error, mut square) = (0.0, 0.0);
    for ((x, y), w) in values.iter().zip(&back).zip(weights.iter().cycle()) {
        error += f64::from(*w) * f64::from(x - y).powi(2);
        square += f64::from(*w) * f64::from(*x).powi(2);
    }
    (error / square).sqrt()
}

/// What `ggml_quantize_chunk` of ggml d99724f2 leaves on this matrix: without importance, and with it.
const GGML: &[(Format, f64, f64)] = &[
    (Format::Q4_0, 0.0846105, 0.074496),
    (Format::Q4_1, 0.0780013, 0.0605784),
    (Format::Q5_0, 0.0422341, 0.036993),
    (Format::Q5_1, 0.0375629, 0.0295501),
    (Format::Q2_K, 0.295666, 0.215214),
    (Format::Q3_K, 0.150553, 0.12743),
    (Format::Q4_K, 0.0709872, 0.0617415),
    (Format::Q5_K, 0.0359296, 0.0318585),
    (Format::Q6_K, 0.0175747, 0.0153311),
    (Format::IQ4_NL, 0.0756733, 0.0675685),
    (Format::IQ4_XS, 0.0762659, 0.06835),
    (Format::NVFP4, 0.10319, 0.103014),
    (Format::IQ3_XXS, 0.212918, 0.145704),
    (Format::IQ3_S, 0.164109, 0.117848),
    (Format::IQ2_XXS, 0.341402, 0.257089),
    (Format::IQ2_XS, 0.29852, 0.227784),
    (Format::IQ2_S, 0.261004, 0.209165),
    (Format::IQ1_S, 0.481096, 0.417412),
    (Format::IQ1_M, 0.578627, 0.349128),
];

#[test]
fn errors_are_at_most_those_of_ggml() {
    let (values, importance) = (matrix(), importance());
    for &(format, plain, weighted) in GGML {
        let made = error(format, &values, &quantize(format, &values).unwrap(), &[1.0]);
        // The figures have six digits.
        assert!(made <= plain + 1e-6, "{format}: {made:.6}, ggml {plain}");
        let bytes = quantize_weighted(format, &values, &importance).unwrap();
        let made = error(format, &values, &bytes, &importance);
        assert!(made <= weighted + 1e-6, "{format}: {made:.6} with importance, ggml {weighted}");
    }
    let listed: Vec<Format> = GGML.iter().map(|row| row.0).collect();
    for &format in Format::ALL {
        assert_eq!(listed.contains(&format), format.uses_importance(), "{format}");
    }
}

/// Columns that matter more come out nearer, at the cost of the others.
#[test]
fn importance_lowers_the_weighted_error() {
    let (values, importance) = (matrix(), importance());
    for &format in Format::ALL.iter().filter(|f| f.uses_importance()) {
        let (plain, heeded) =
            (quantize(format, &values).unwrap(), quantize_weighted(format, &values, &importance).unwrap());
        let (before, after) =
            (error(format, &values, &plain, &importance), error(format, &values, &heeded, &importance));
        assert!(after < 0.97 * before, "{format}: {before:.6} became {after:.6}");
        // Equal importance is none, up to how the sums are rounded.
        let equal = quantize_weighted(format, &values, &[3.0; COLUMNS]).unwrap();
        let (plain, equal) = (error(format, &values, &plain, &[1.0]), error(format, &values, &equal, &[1.0]));
        assert!(equal < 1.0001 * plain, "{format}: {plain:.6} became {equal:.6}");
    }
}

/// A group of zeros beside others stays as near to zero as the format's lowest level at its lowest scale: at most a
/// thirtieth of the largest value (the fifteen-fold scale times the threefold level of the IQ2 formats), a seventh
/// where scales have three bits.
#[test]
fn zeros_beside_other_values_stay_small() {
    for &format in Format::ALL.iter().filter(|f| f.uses_importance()) {
        let mut values = [0.0f32; 256];
        for (i, v) in values[..64].iter_mut().enumerate() {
            *v = (i as f32 * 0.7).sin();
        }
        let bytes = quantize(format, &values).unwrap();
        let mut back = [1.0; 256];
        dequantize(format, &bytes, &mut back).unwrap();
        let bound = if matches!(format, Format::IQ1_S | Format::IQ1_M) { 1.0 / 7.0 } else { 1.0 / 30.0 };
        let worst = back[64..].iter().fold(0.0f32, |max, v| max.max(v.abs()));
        assert!(worst <= bound, "{format}: {worst}");
    }
}

/// Without a choice of scales there is nothing to heed.
#[test]
fn other_formats_ignore_importance() {
    let (values, importance) = (matrix(), importance());
    for &format in Format::ALL.iter().filter(|f| f.can_quantize() && !f.uses_importance()) {
        assert!(quantize(format, &values) == quantize_weighted(format, &values, &importance), "{format}");
    }
}

#[test]
fn importance_must_fit() {
    let text = |format, values: usize, importance: &[f32]| {
        quantize_weighted(format, &vec![0.5; values], importance).map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(
        text(Format::Q4_K, 512, &[1.0; 128]),
        Err("q4_k: 128 elements are not whole blocks of 256".to_owned())
    );
    assert_eq!(
        text(Format::Q4_0, 96, &[1.0; 64]),
        Err("importance of 64 columns does not fit 96 values".to_owned())
    );
    assert_eq!(text(Format::Q4_0, 0, &[]), Err("importance of 0 columns does not fit 0 values".to_owned()));
    let mut importance = [1.0; 32];
    for bad in [-1.0, f32::NAN, f32::INFINITY] {
        importance[7] = bad;
        assert_eq!(
            text(Format::Q4_0, 32, &importance),
            Err(format!("importance of column 7 is {bad}, not a finite number of at least 0"))
        );
    }
    // Columns that nothing ever went into, and huge ratios.
    importance.fill(0.0);
    assert_eq!(text(Format::Q4_0, 64, &importance), Ok(()));
    (importance[0], importance[1]) = (f32::MAX, f32::MIN_POSITIVE);
    assert_eq!(text(Format::Q4_1, 64, &importance), Ok(()));
    assert_eq!(
        text(Format::I8, 32, &[1.0; 32]),
        Err("i8: values cannot be quantized to this format, it can only be read".to_owned())
    );
}

#[test]
fn odd_values_never_panic() {
    let odd = [f32::NAN, f32::INFINITY, -f32::INFINITY, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-42, -0.0];
    for &format in Format::ALL.iter().filter(|f| f.uses_importance()) {
        for &first in &odd {
            for &rest in &odd {
                let mut values = [rest; 256];
                values[0] = first;
                values[100] = 1.0;
                let bytes = quantize_weighted(format, &values, &importance()[..256]).unwrap();
                dequantize(format, &bytes, &mut values).unwrap();
            }
        }
    }
}
