//! The searches for a block's scales that minimize its weighted squared error, for formats whose blocks hold groups
//! with scales of few bits.
//!
//! A group's best scale is found among a few around the obvious one: the values are rounded to each, and the least
//! squares problem that the rounded levels pose is solved. Rounding the groups' scales to the grid that the block's
//! own scale spans moves them; so the neighbours on that grid are tried as well, by the error that they leave, then
//! the block's scale is fitted to all that was chosen, and this is repeated while the error falls.
//!
//! Unlike the searches of `fit.rs`, which are those of ggml to the bit, these minimize the error itself, with the
//! weights that the caller gives.

use super::fit::{GROUP_MAX_EPS, nearest_int};
use super::{clamped_half, largest_magnitude, range};

/// The levels of a nibble, in IQ4_NL and IQ4_XS: denser near zero, as weights are.
pub const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// How often the scales of a block are chosen, each time on the grid fitted to the choice before.
const ROUNDS: usize = 4;

/// Sums are taken in so many lanes, which processors add at once; groups are multiples of it.
const LANES: usize = 8;

/// Adding and subtracting 1.5 * 2^23 leaves the integer nearest to a number below 2^22, half to even.
const TO_INTEGER: f32 = 12_582_912.0;

/// The integer nearest to a value, as a float, between two others. (Written with comparisons that are one instruction
/// each; what is not a number comes out as one of the ends or as it is.)
#[inline(always)]
fn rounded_within(value: f32, low: f32, high: f32) -> f32 {
    let rounded = (value + TO_INTEGER) - TO_INTEGER;
    let above = if rounded < low { low } else { rounded };
    if above > high { high } else { above }
}

/// Sum of the lanes.
#[inline(always)]
fn total(lanes: [f32; LANES]) -> f32 {
    lanes.iter().sum()
}

/// Eight values at a time with their weights.
#[inline(always)]
fn lanes<'a>(x: &'a [f32], weights: &'a [f32]) -> impl Iterator<Item = (&'a [f32; LANES], &'a [f32; LANES])> {
    x.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0)
}

/// The levels that a value may be rounded to, in ascending order, the first of the largest magnitude.
pub trait Levels: Copy {
    /// The level nearest to a value.
    fn rounded(self, value: f32) -> f32;
    /// The number of the level nearest to a value.
    fn nearest(self, value: f32) -> u8;
    /// The first level, below zero.
    fn lowest(self) -> f32;
    /// Distance of the outermost levels, in which the candidates for a scale differ by tenths.
    fn gap(self) -> f32;
}

/// The whole numbers from `-half` to `half - 1`.
#[derive(Clone, Copy)]
pub struct Uniform {
    pub half: u8,
}

impl Levels for Uniform {
    #[inline(always)]
    fn rounded(self, value: f32) -> f32 {
        rounded_within(value, self.lowest(), -self.lowest() - 1.0)
    }

    #[inline(always)]
    fn nearest(self, value: f32) -> u8 {
        (self.rounded(value) - self.lowest()) as u8
    }

    #[inline(always)]
    fn lowest(self) -> f32 {
        -f32::from(self.half)
    }

    fn gap(self) -> f32 {
        1.0
    }
}

/// The levels of IQ4_NL and IQ4_XS.
#[derive(Clone, Copy)]
pub struct Uneven;

impl Uneven {
    /// Halfway between neighbours, and how far they are apart: constants, so that the loops over them unroll.
    const BORDERS: [(f32, f32); 15] = {
        let mut borders = [(0.0, 0.0); 15];
        let mut i = 0;
        while i < 15 {
            let (lower, upper) = (LEVELS[i] as f32, LEVELS[i + 1] as f32);
            borders[i] = ((lower + upper) / 2.0, upper - lower);
            i += 1;
        }
        borders
    };
}

impl Levels for Uneven {
    #[inline(always)]
    fn rounded(self, value: f32) -> f32 {
        // From the lowest level a step up for each border below the value: no lookup, which could not be done for
        // several values at once.
        Self::BORDERS
            .iter()
            .fold(self.lowest(), |level, &(border, step)| level + if value > border { step } else { 0.0 })
    }

    #[inline(always)]
    fn nearest(self, value: f32) -> u8 {
        Self::BORDERS.iter().map(|(border, _)| u8::from(value > *border)).sum()
    }

    #[inline(always)]
    fn lowest(self) -> f32 {
        f32::from(LEVELS[0])
    }

    fn gap(self) -> f32 {
        Self::BORDERS[0].1
    }
}

/// Weighted sums of value times level and of level squared, with the values rounded at a scale of `1 / inverse`.
#[inline(always)]
fn sums<L: Levels>(x: &[f32], weights: &[f32], inverse: f32, levels: L) -> (f32, f32) {
    let (mut cross, mut square) = ([0.0f32; LANES], [0.0f32; LANES]);
    for (x, w) in lanes(x, weights) {
        for i in 0..LANES {
            let l = levels.rounded(inverse * x[i]);
            cross[i] += w[i] * x[i] * l;
            square[i] += w[i] * l * l;
        }
    }
    (total(cross), total(square))
}

/// Weighted squared error of `x` rounded at `scale`.
#[inline(always)]
fn error<L: Levels>(x: &[f32], weights: &[f32], scale: f32, levels: L) -> f32 {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut sum = [0.0f32; LANES];
    for (x, w) in lanes(x, weights) {
        for i in 0..LANES {
            let difference = x[i] - scale * levels.rounded(inverse * x[i]);
            sum[i] += w[i] * difference * difference;
        }
    }
    total(sum)
}

/// The scale, of either sign, with which the levels fit `x` best.
pub fn scale<L: Levels>(x: &[f32], weights: &[f32], levels: L) -> f32 {
    let largest = largest_magnitude(x);
    // Also where that is no number.
    if !(GROUP_MAX_EPS..f32::INFINITY).contains(&largest) {
        return 0.0;
    }
    let (mut best, mut scale) = (0.0f32, 0.0f32);
    // The levels reach further down than up, so both signs are tried.
    for sign in [1.0, -1.0] {
        for tenths in -12..=18 {
            let inverse = sign * (-levels.lowest() + 0.1 * tenths as f32 * levels.gap()) / largest;
            let (cross, square) = sums(x, weights, inverse, levels);
            // With the best scale for these levels the error is constant - cross^2 / square.
            if square > 0.0 && cross * cross > best * square {
                scale = cross / square;
                best = cross * scale;
            }
        }
    }
    scale
}

/// A block of groups of equal length with whole scales: value = `d * scale * level`.
pub struct Scaled<const GROUPS: usize> {
    /// Scale of the scales, as f16 holds it.
    pub d: f32,
    /// The groups' scales.
    pub scales: [i32; GROUPS],
    /// Numbers of the levels.
    pub levels: [u8; 256],
}

/// Fits a block of 256 values; scales are whole numbers from `-end` to `end - 1`.
pub fn scaled<L: Levels, const GROUPS: usize>(
    x: &[f32],
    weights: &[f32],
    levels: L,
    end: i32,
) -> Scaled<GROUPS> {
    let length = 256 / GROUPS;
    let groups = || x.chunks_exact(length).zip(weights.chunks_exact(length));
    let mut fitted = [0.0f32; GROUPS];
    for (scale_of, (x, w)) in fitted.iter_mut().zip(groups()) {
        *scale_of = scale(x, w, levels);
    }
    let mut d = super::largest(&fitted) / -(end as f32);
    let mut best = Scaled { d: 0.0, scales: [0; GROUPS], levels: [levels.nearest(0.0); 256] };
    let mut least = f32::INFINITY;
    for _ in 0..ROUNDS {
        d = clamped_half(d);
        if d == 0.0 {
            break;
        }
        let mut scales = [0; GROUPS];
        let (mut total, mut cross, mut square) = (0.0f32, 0.0f32, 0.0f32);
        for ((scale_of, &fit), (x, w)) in scales.iter_mut().zip(&fitted).zip(groups()) {
            let near = nearest_int(fit / d);
            let candidates = (near - 1..=near + 1).map(|s| s.clamp(-end, end - 1));
            let (s, left) = least_of(candidates, |s| error(x, w, d * s as f32, levels));
            *scale_of = s;
            total += left;
            if s != 0 {
                let (c, q) = sums(x, w, 1.0 / (d * s as f32), levels);
                cross += s as f32 * c;
                square += (s * s) as f32 * q;
            }
        }
        if total.is_nan() || total >= least {
            break;
        }
        (least, best.d, best.scales) = (total, d, scales);
        d = if square > 0.0 { cross / square } else { 0.0 };
    }
    for ((levels_of, &s), (x, _)) in best.levels.chunks_exact_mut(length).zip(&best.scales).zip(groups()) {
        let scale = best.d * s as f32;
        if scale != 0.0 {
            let inverse = 1.0 / scale;
            for (level, &v) in levels_of.iter_mut().zip(x) {
                *level = levels.nearest(inverse * v);
            }
        }
    }
    best
}

/// The candidate with the least error, and that; the first of several.
fn least_of<T: Copy + Default>(candidates: impl Iterator<Item = T>, error: impl Fn(T) -> f32) -> (T, f32) {
    candidates.fold((T::default(), f32::INFINITY), |best, candidate| {
        let left = error(candidate);
        if left < best.1 { (candidate, left) } else { best }
    })
}

/// The line `scale * level + offset` that groups with a minimum are rounded to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Line {
    pub scale: f32,
    pub offset: f32,
}

impl Line {
    /// The level nearest to a value.
    #[inline(always)]
    pub fn level(self, value: f32, top: u8) -> u8 {
        let inverse = if self.scale == 0.0 { 0.0 } else { 1.0 / self.scale };
        rounded_within((value - self.offset) * inverse, 0.0, f32::from(top)) as u8
    }

    /// Weighted squared error of `x` rounded to the line.
    #[inline(always)]
    fn error(self, x: &[f32], weights: &[f32], top: u8) -> f32 {
        let inverse = if self.scale == 0.0 { 0.0 } else { 1.0 / self.scale };
        let mut sum = [0.0f32; LANES];
        for (x, w) in lanes(x, weights) {
            for i in 0..LANES {
                let level = rounded_within((x[i] - self.offset) * inverse, 0.0, f32::from(top));
                let difference = self.scale * level + self.offset - x[i];
                sum[i] += w[i] * difference * difference;
            }
        }
        total(sum)
    }

    /// The line that fits `x` best with the levels that this one gives it; its offset at most `highest`.
    #[inline(always)]
    fn refitted(self, x: &[f32], weights: &[f32], top: u8, highest: f32) -> Line {
        let inverse = if self.scale == 0.0 { 0.0 } else { 1.0 / self.scale };
        let mut sums = [[0.0f32; LANES]; 5];
        for (x, w) in lanes(x, weights) {
            for i in 0..LANES {
                let l = rounded_within((x[i] - self.offset) * inverse, 0.0, f32::from(top));
                sums[0][i] += w[i];
                sums[1][i] += w[i] * l;
                sums[2][i] += w[i] * l * l;
                sums[3][i] += w[i] * x[i];
                sums[4][i] += w[i] * x[i] * l;
            }
        }
        let [one, level, square, value, cross] = sums.map(total);
        let determinant = one * square - level * level;
        if determinant > 0.0 {
            let offset = (square * value - level * cross) / determinant;
            if offset <= highest {
                return Line { scale: (one * cross - level * value) / determinant, offset };
            }
        }
        // On the border, the scale alone is free.
        if highest == 0.0 && square > 0.0 {
            return Line { scale: cross / square, offset: 0.0 };
        }
        self
    }
}

/// The line that fits a group best, with levels from 0 to `top` and an offset of at most `highest`: 0 where minima
/// are stored without a sign, infinity where they have one.
pub fn line(x: &[f32], weights: &[f32], top: u8, highest: f32) -> Line {
    let (low, high) = range(x);
    let low = low.min(highest);
    let span = high.max(low) - low;
    if !(span > 0.0 && span < f32::INFINITY) {
        let offset = if low.is_finite() { low } else { 0.0 };
        return Line { scale: 0.0, offset };
    }
    let (mut best, mut least) = (Line::default(), f32::INFINITY);
    let step = span / f32::from(top);
    // The ends of the line are moved inwards (values beyond are cut off) and outwards by parts of a step.
    for low_tenths in [-2, 0, 2, 4, 6] {
        for high_tenths in [-4, -2, 0, 2, 4, 6] {
            let inwards = |tenths: i32| 0.1 * tenths as f32 * step;
            let offset = (low + inwards(low_tenths)).min(highest);
            let candidate = Line { scale: (high - inwards(high_tenths) - offset) / f32::from(top), offset };
            if candidate.scale <= 0.0 {
                continue;
            }
            let candidate = candidate.refitted(x, weights, top, highest);
            let left = candidate.error(x, weights, top);
            if left < least {
                (best, least) = (candidate, left);
            }
        }
    }
    best.refitted(x, weights, top, highest)
}

/// A block of groups of equal length with whole scales and minima: value = `d * scale * level - dmin * minimum`.
pub struct Lined<const GROUPS: usize> {
    /// Scale of the scales, as f16 holds it.
    pub d: f32,
    /// Scale of the minima, as f16 holds it.
    pub dmin: f32,
    /// The groups' scales.
    pub scales: [u8; GROUPS],
    /// The groups' minima.
    pub minima: [u8; GROUPS],
    /// The levels.
    pub levels: [u8; 256],
}

/// Fits a block of 256 values with levels from 0 to `top`; scales and minima are whole numbers from 0 to `end`.
pub fn lined<const GROUPS: usize>(x: &[f32], weights: &[f32], top: u8, end: i32) -> Lined<GROUPS> {
    let length = 256 / GROUPS;
    let groups = || x.chunks_exact(length).zip(weights.chunks_exact(length));
    let mut fitted = [Line::default(); GROUPS];
    for (fit, (x, w)) in fitted.iter_mut().zip(groups()) {
        *fit = line(x, w, top, 0.0);
    }
    let most = |part: fn(&Line) -> f32| fitted.iter().map(part).fold(0.0, f32::max) / end as f32;
    let (mut d, mut dmin) = (most(|l| l.scale), most(|l| -l.offset));
    let mut best = Lined { d: 0.0, dmin: 0.0, scales: [0; GROUPS], minima: [0; GROUPS], levels: [0; 256] };
    let mut least = f32::INFINITY;
    let of = |d: f32, dmin: f32, (scale, minimum): (u8, u8)| Line {
        scale: d * f32::from(scale),
        offset: -(dmin * f32::from(minimum)),
    };
    for _ in 0..ROUNDS {
        (d, dmin) = (clamped_half(d), clamped_half(dmin));
        let mut chosen = [(0, 0); GROUPS];
        let mut total = 0.0f32;
        let mut normal = Normal::default();
        for ((pair, fit), (x, w)) in chosen.iter_mut().zip(&fitted).zip(groups()) {
            let near = |value: f32, unit: f32| {
                let near = if unit > 0.0 { nearest_int(value / unit) } else { 0 };
                [near, near - 1, near + 1].map(|n| n.clamp(0, end) as u8)
            };
            let (scales, minima) = (near(fit.scale, d), near(-fit.offset, dmin));
            let candidates = scales.into_iter().flat_map(|s| minima.map(|m| (s, m)));
            let (best_pair, left) = least_of(candidates, |pair| of(d, dmin, pair).error(x, w, top));
            *pair = best_pair;
            total += left;
            normal.add(x, w, of(d, dmin, best_pair), best_pair, top);
        }
        if total.is_nan() || total >= least {
            break;
        }
        least = total;
        (best.d, best.dmin) = (d, dmin);
        (best.scales, best.minima) = (chosen.map(|pair| pair.0), chosen.map(|pair| pair.1));
        (d, dmin) = normal.solved().unwrap_or((d, dmin));
    }
    for (group, (x, _)) in groups().enumerate() {
        let line = of(best.d, best.dmin, (best.scales[group], best.minima[group]));
        if line.scale != 0.0 {
            for (level, &v) in best.levels[group * length..].iter_mut().zip(x) {
                *level = line.level(v, top);
            }
        }
    }
    best
}

/// The normal equations of the least squares problem in `d` and `dmin`.
#[derive(Default)]
struct Normal {
    scale: f32,
    both: f32,
    minimum: f32,
    scale_value: f32,
    minimum_value: f32,
}

impl Normal {
    /// Adds a group with its chosen scale and minimum.
    fn add(&mut self, x: &[f32], weights: &[f32], line: Line, (scale, minimum): (u8, u8), top: u8) {
        let minimum = -f32::from(minimum);
        for (&v, &w) in x.iter().zip(weights) {
            let scaled = f32::from(scale) * f32::from(line.level(v, top));
            self.scale += w * scaled * scaled;
            self.both += w * scaled * minimum;
            self.minimum += w * minimum * minimum;
            self.scale_value += w * scaled * v;
            self.minimum_value += w * minimum * v;
        }
    }

    /// `d` and `dmin`, where they are determined and of the sign that they need.
    fn solved(&self) -> Option<(f32, f32)> {
        let determinant = self.scale * self.minimum - self.both * self.both;
        // Nearly dependent columns would give wild scales; rounding is some 1e-6 of the products.
        if determinant > 1e-5 * self.scale * self.minimum {
            let d = (self.minimum * self.scale_value - self.both * self.minimum_value) / determinant;
            let dmin = (self.scale * self.minimum_value - self.both * self.scale_value) / determinant;
            return (d > 0.0 && dmin > 0.0).then_some((d, dmin));
        }
        // Without minima, the scale alone.
        (self.minimum == 0.0 && self.scale > 0.0).then(|| (self.scale_value / self.scale, 0.0))
    }
}
