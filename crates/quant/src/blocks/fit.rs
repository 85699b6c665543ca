//! The searches for a group's best scale that the K formats share.
//!
//! Both try a few scales around the obvious one, round the group to each, solve the weighted least
//! squares problem that the rounded levels pose, and keep the best. Operations and their order are
//! those of ggml's `make_qkx2_quants` and `make_qx_quants`: other orders round differently, and
//! files would no longer be equal byte for byte.

/// Groups whose largest magnitude is below this count as zero.
pub const GROUP_MAX_EPS: f32 = 1e-15;

/// The largest level of a 4-bit group with a minimum.
const MAX_LEVEL_U4: i32 = 15;

/// A signed 6-bit group has levels from `-HALF_RANGE_I6` to `HALF_RANGE_I6 - 1`.
const HALF_RANGE_I6: i32 = 32;

/// Rounds half to even. 1.5 * 2^23 puts the units digit of the sum at the last bit of the
/// mantissa; right for magnitudes below 2^22, and some integer for all others.
#[inline]
pub fn nearest_int(value: f32) -> i32 {
    let bits = (value + 12_582_912.0).to_bits();
    (bits & 0x007f_ffff) as i32 - 0x0040_0000
}

/// Scale and minimum (as a positive number to subtract) with which 4-bit `levels` fit `x` best in
/// the weighted squared error. `weights` has the length of `x`.
pub fn scale_and_minimum(x: &[f32], weights: &[f32], levels: &mut [u8]) -> (f32, f32) {
    let (mut min, mut max) = (x[0], x[0]);
    let mut sum_w = weights[0];
    let mut sum_x = sum_w * x[0];
    for (&v, &w) in x[1..].iter().zip(&weights[1..]) {
        if v < min {
            min = v;
        }
        if v > max {
            max = v;
        }
        sum_w += w;
        sum_x += w * v;
    }
    if min > 0.0 {
        min = 0.0;
    }
    if max == min {
        levels.fill(0);
        return (0.0, -min);
    }
    let level = |v: f32, inverse: f32, min: f32| nearest_int(inverse * (v - min)).clamp(0, MAX_LEVEL_U4);
    let inverse = MAX_LEVEL_U4 as f32 / (max - min);
    let mut scale = 1.0 / inverse;
    for (l, &v) in levels.iter_mut().zip(x) {
        *l = level(v, inverse, min) as u8;
    }
    let mut best_error = squared_error(x, weights, levels, scale, min);

    let mut trial = [0u8; 32];
    let trial = &mut trial[..x.len()];
    for step in 0..=20 {
        // `min` is the best so far, no longer the group's smallest value.
        let inverse = (-1.0 + 0.1 * step as f32 + MAX_LEVEL_U4 as f32) / (max - min);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0f32, 0.0f32, 0.0f32);
        for ((t, &v), &w) in trial.iter_mut().zip(x).zip(weights) {
            let l = level(v, inverse, min);
            *t = l as u8;
            let l = l as f32;
            sum_l += w * l;
            sum_l2 += w * l * l;
            sum_xl += w * l * v;
        }
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        if determinant > 0.0 {
            let mut trial_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
            let mut trial_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
            if trial_min > 0.0 {
                trial_min = 0.0;
                trial_scale = sum_xl / sum_l2;
            }
            let error = squared_error(x, weights, trial, trial_scale, trial_min);
            if error < best_error {
                levels.copy_from_slice(trial);
                (best_error, scale, min) = (error, trial_scale, trial_min);
            }
        }
    }
    (scale, -min)
}

/// Weighted squared error of `scale * level + min` against `x`.
fn squared_error(x: &[f32], weights: &[f32], levels: &[u8], scale: f32, min: f32) -> f32 {
    let mut error = 0.0f32;
    for ((&l, &v), &w) in levels.iter().zip(x).zip(weights) {
        let difference = scale * f32::from(l) + min - v;
        error += w * (difference * difference);
    }
    error
}

/// Scale, of either sign, with which signed 6-bit levels fit `x` best, errors weighted by the
/// squares of the values. `levels` are stored 32 too high, so that they are unsigned.
pub fn signed_scale(x: &[f32], levels: &mut [u8]) -> f32 {
    let mut largest = 0.0f32;
    for &v in x {
        if v.abs() > largest.abs() {
            largest = v;
        }
    }
    if largest.abs() < GROUP_MAX_EPS {
        levels.fill(0);
        return 0.0;
    }
    let half_range = HALF_RANGE_I6 as f32;
    let (sum_lx, sum_l2) = signed_sums(x, -half_range / largest);
    set_signed_levels(x, -half_range / largest, levels);
    let mut scale = if sum_l2 == 0.0 { 0.0 } else { sum_lx / sum_l2 };
    let mut best = scale * sum_lx;
    for step in (-9..=9).filter(|&step| step != 0) {
        let inverse = -(half_range + 0.1 * step as f32) / largest;
        let (sum_lx, sum_l2) = signed_sums(x, inverse);
        // The error left is constant - sum_lx^2 / sum_l2.
        if sum_l2 > 0.0 && sum_lx * sum_lx > best * sum_l2 {
            set_signed_levels(x, inverse, levels);
            scale = sum_lx / sum_l2;
            best = scale * sum_lx;
        }
    }
    scale
}

/// The level of a value, from -32 to 31.
fn signed_level(v: f32, inverse: f32) -> i32 {
    nearest_int(inverse * v).clamp(-HALF_RANGE_I6, HALF_RANGE_I6 - 1)
}

/// The weighted sums of level times value and of level squared.
fn signed_sums(x: &[f32], inverse: f32) -> (f32, f32) {
    let (mut sum_lx, mut sum_l2) = (0.0f32, 0.0f32);
    for &v in x {
        let l = signed_level(v, inverse) as f32;
        let w = v * v;
        sum_lx += w * v * l;
        sum_l2 += w * l * l;
    }
    (sum_lx, sum_l2)
}

fn set_signed_levels(x: &[f32], inverse: f32, levels: &mut [u8]) {
    for (level, &v) in levels.iter_mut().zip(x) {
        *level = (signed_level(v, inverse) + HALF_RANGE_I6) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_int_rounds_half_to_even() {
        for (value, expected) in
            [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (-2.5, -2), (0.49999997, 0), (63.2, 63)]
        {
            assert_eq!(nearest_int(value), expected, "{value}");
        }
        for odd in [f32::NAN, f32::INFINITY, -f32::INFINITY, f32::MAX] {
            nearest_int(odd);
        }
    }
}
