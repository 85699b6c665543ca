//! The search for points of a codebook that minimize a block's weighted squared error.
//!
//! A block's groups have a scale each, `d * (2 c + 1)` with a small number `c`, and their elements are taken by
//! fours or eights, vectors, each of which becomes a point of the codebook. For one vector and all points, the sums
//! `cross` of weight times value times level and `square` of weight times level squared do not depend on the scale `s`:
//! the error of a point is a constant and `s^2 square - 2 s cross`. So they are computed once, the few points that can be
//! best at any scale are kept, and each scale that is tried finds the best of all points among these.

use super::clamped_half;

/// How often the groups' numbers are chosen, each time with `d` fitted to the choice before.
const ROUNDS: usize = 4;

/// Points are compared in so many lanes, which processors do at once; codebooks have multiples of it.
const LANES: usize = 8;

/// Scales that are tried for a group, over the one whose levels are as large as its values in the mean square.
const FACTORS: [f32; 10] = [0.6, 0.7, 0.8, 0.87, 0.94, 1.0, 1.08, 1.16, 1.3, 1.5];

/// Scales, over the same one, at which the best points are looked for among all; between them the others follow. Up to
/// where all levels are too large: the smallest groups of a block have no smaller scale.
const PROBES: [f32; 4] = [0.5, 1.0, 2.0, 8.0];

/// The points of a codebook, digit by digit.
pub struct Points {
    /// Elements of a point.
    digits: usize,
    /// The levels: all points' first digits, then all second ones.
    levels: Vec<f32>,
    /// Their squares.
    squares: Vec<f32>,
    /// Mean of the squares.
    mean_square: f32,
}

impl Points {
    /// `count` points of `digits` levels each.
    pub fn new(count: usize, digits: usize, level: impl Fn(usize, usize) -> f32) -> Points {
        let level = &level;
        let levels: Vec<f32> =
            (0..digits).flat_map(|digit| (0..count).map(move |point| level(point, digit))).collect();
        let squares: Vec<f32> = levels.iter().map(|l| l * l).collect();
        let mean_square = squares.iter().sum::<f32>() / squares.len() as f32;
        Points { digits, levels, squares, mean_square }
    }

    fn count(&self) -> usize {
        self.levels.len() / self.digits
    }
}

/// A block as points and scales: value = `d * (2 c + 1) * level`.
pub struct Coded<const GROUPS: usize> {
    /// The scale that all groups share, as f16 holds it times the format's unit.
    pub d: f32,
    /// The groups' numbers `c`.
    pub scales: [u8; GROUPS],
    /// Which of the codebooks a group is of.
    pub books: [u8; GROUPS],
    /// Numbers of the points.
    pub points: [u16; 64],
}

/// What is known of the vectors of one group with one codebook: for each vector the points that may be best.
struct Sums {
    vectors: Vec<Vec<Candidate>>,
    /// The scale at which the levels are as large as the values in the mean square; 0 where there is none.
    start: f32,
}

/// A point and its sums.
#[derive(Clone, Copy)]
struct Candidate {
    cross: f32,
    square: f32,
    point: u16,
}

impl Candidate {
    /// The error at a scale, over the scale, up to a constant: a line.
    #[inline(always)]
    fn line(&self, scale: f32) -> f32 {
        scale * self.square - 2.0 * self.cross
    }
}

/// A group's best points at one scale.
#[derive(Clone, Copy)]
struct Choice {
    cross: f32,
    square: f32,
    points: [u16; 8],
}

impl Sums {
    fn new(x: &[f32], weights: &[f32], book: &Points) -> Sums {
        let (value, weight) = x
            .iter()
            .zip(weights)
            .fold((0.0f32, 0.0f32), |(value, weight), (&v, &w)| (value + w * v * v, weight + w));
        let start = (value / (weight * book.mean_square)).sqrt();
        if !start.is_finite() {
            return Sums { vectors: Vec::new(), start: 0.0 };
        }
        let vectors = x.chunks_exact(book.digits).zip(weights.chunks_exact(book.digits));
        let count = book.count();
        let (mut cross, mut square) = (vec![0.0f32; count], vec![0.0f32; count]);
        let vectors = vectors
            .map(|(x, w)| {
                cross.fill(0.0);
                square.fill(0.0);
                let levels = book.levels.chunks_exact(count).zip(book.squares.chunks_exact(count));
                for ((&v, &w), (levels, squares)) in x.iter().zip(w).zip(levels) {
                    let value = w * v;
                    for (cross, level) in cross.iter_mut().zip(levels) {
                        *cross += value * level;
                    }
                    for (square, level) in square.iter_mut().zip(squares) {
                        *square += w * level;
                    }
                }
                // Zeros have no scale; the lowest levels are best for them at any.
                candidates(&cross, &square, if start > 0.0 { start } else { 1.0 })
            })
            .collect();
        Sums { vectors, start }
    }

    /// The points with the least error at `scale`.
    fn choose(&self, scale: f32) -> Choice {
        let mut choice = Choice { cross: 0.0, square: 0.0, points: [0; 8] };
        for (candidates, point) in self.vectors.iter().zip(&mut choice.points) {
            let mut least = f32::INFINITY;
            let mut best = Candidate { cross: 0.0, square: 0.0, point: 0 };
            for candidate in candidates {
                let error = candidate.line(scale);
                if error < least {
                    (least, best) = (error, *candidate);
                }
            }
            *point = best.point;
            choice.cross += best.cross;
            choice.square += best.square;
        }
        choice
    }
}

/// The points of a vector that may be best at some scale from the first to the last of [`PROBES`] times `start`.
///
/// The error over the scale is a line in the scale for each point, and the least error is the lower envelope of these
/// lines. The best points at a few scales bound it from above by a chain of lines; a line that lies above the corners
/// of the chain lies above all of it, so it is never best. That leaves a handful of hundreds.
fn candidates(cross: &[f32], square: &[f32], start: f32) -> Vec<Candidate> {
    let candidate =
        |point: usize| Candidate { cross: cross[point], square: square[point], point: point as u16 };
    let best = PROBES.map(|probe| candidate(least(cross, square, probe * start)));
    let mut corners = [(0.0, f32::NEG_INFINITY); PROBES.len() - 1];
    for (corner, pair) in corners.iter_mut().zip(best.windows(2)) {
        // Where the two lines meet; the same or parallel ones have no corner, which no line lies below.
        let slope = pair[0].square - pair[1].square;
        if slope > 0.0 {
            let scale = 2.0 * (pair[0].cross - pair[1].cross) / slope;
            *corner = (scale, pair[0].line(scale));
        }
    }
    let mut candidates = best.to_vec();
    for (point, (&cross, &square)) in cross.iter().zip(square).enumerate() {
        let line = |scale: f32| scale * square - 2.0 * cross;
        if corners.iter().any(|&(scale, chain)| line(scale) < chain) {
            candidates.push(Candidate { cross, square, point: point as u16 });
        }
    }
    candidates
}

/// The point with the least `scale^2 square - 2 scale cross`, for positive scales.
fn least(cross: &[f32], square: &[f32], scale: f32) -> usize {
    let mut errors = [f32::INFINITY; LANES];
    let mut chunks = [0u32; LANES];
    let lanes = cross.as_chunks::<LANES>().0.iter().zip(square.as_chunks::<LANES>().0);
    for (chunk, (cross, square)) in (0u32..).zip(lanes) {
        for i in 0..LANES {
            let error = scale * square[i] - 2.0 * cross[i];
            let less = error < errors[i];
            errors[i] = if less { error } else { errors[i] };
            chunks[i] = if less { chunk } else { chunks[i] };
        }
    }
    let lane = (1..LANES).fold(0, |best, i| if errors[i] < errors[best] { i } else { best });
    chunks[lane] as usize * LANES + lane
}

impl Choice {
    /// The error at a scale, less the sum of the weighted squares of the values.
    fn error(&self, scale: f32) -> f32 {
        scale * (scale * self.square - 2.0 * self.cross)
    }
}

/// The scale for a group that leaves the least error, and that.
fn fitted(sums: &Sums) -> (f32, f32) {
    let (mut best, mut least) = (0.0, 0.0);
    for factor in FACTORS {
        let mut scale = sums.start * factor;
        // The points chosen at a scale have a best scale, at which other points may be better.
        for _ in 0..2 {
            let choice = sums.choose(scale);
            if !(choice.cross > 0.0 && choice.square > 0.0) {
                break;
            }
            scale = choice.cross / choice.square;
            if choice.error(scale) < least {
                (best, least) = (scale, choice.error(scale));
            }
        }
    }
    (best, least)
}

/// Fits a block of 256 values whose scale is an f16 times `unit`; a group's number is at most `top`, and all its
/// points are of one of the `books`.
pub fn coded<const GROUPS: usize>(
    x: &[f32],
    weights: &[f32],
    books: &[&Points],
    top: u8,
    unit: f32,
) -> Coded<GROUPS> {
    let length = 256 / GROUPS;
    let groups = || x.chunks_exact(length).zip(weights.chunks_exact(length));
    let mut best = Coded { d: 0.0, scales: [0; GROUPS], books: [0; GROUPS], points: [0; 64] };
    let mut scales = [0.0f32; GROUPS];
    let mut sums = Vec::with_capacity(GROUPS);
    for (group, (x, w)) in groups().enumerate() {
        let of_books = books.iter().map(|book| Sums::new(x, w, book));
        let mut least = f32::INFINITY;
        for (number, of_book) in (0u8..).zip(of_books) {
            let (scale, error) = fitted(&of_book);
            if error < least {
                (least, scales[group], best.books[group]) = (error, scale, number);
                sums.truncate(group);
                sums.push(of_book);
            }
        }
    }
    let largest = scales.iter().fold(0.0f32, |max, &s| max.max(s));
    if sums.len() != GROUPS || largest == 0.0 {
        return best;
    }
    let vectors = length / books[0].digits;
    let mut d = largest / (2.0 * f32::from(top) + 1.0);
    let mut least = f32::INFINITY;
    for _ in 0..ROUNDS {
        d = unit * clamped_half(d / unit);
        if d.is_nan() || d <= 0.0 {
            break;
        }
        let (mut error, mut cross, mut square) = (0.0f32, 0.0f32, 0.0f32);
        let mut made = Coded { d, points: [0; 64], ..best };
        for (group, sums) in sums.iter().enumerate() {
            // Farther off all neighbours are the same; a group may be so large that its number has no neighbour in an i32.
            let near = (((scales[group] / d - 1.0) / 2.0).round() as i32).clamp(-2, i32::from(top) + 2);
            let candidates = [near, near - 1, near + 1].map(|c| c.clamp(0, i32::from(top)) as u8);
            let mut best_error = f32::INFINITY;
            let mut chosen = (0.0, Choice { cross: 0.0, square: 0.0, points: [0; 8] });
            for (i, &number) in candidates.iter().enumerate() {
                if candidates[..i].contains(&number) {
                    continue;
                }
                let factor = 2.0 * f32::from(number) + 1.0;
                let choice = sums.choose(d * factor);
                if choice.error(d * factor) < best_error {
                    best_error = choice.error(d * factor);
                    made.scales[group] = number;
                    chosen = (factor, choice);
                }
            }
            let (factor, choice) = chosen;
            made.points[group * vectors..][..vectors].copy_from_slice(&choice.points[..vectors]);
            error += best_error;
            cross += factor * choice.cross;
            square += factor * factor * choice.square;
        }
        if error.is_nan() || error >= least {
            break;
        }
        least = error;
        best = made;
        d = if square > 0.0 { cross / square } else { 0.0 };
    }
    best
}

/// Magnitudes of the values and their signs, a byte for each eight elements. Where the format has seven bits for eight
/// signs, which make the number of minus signs even, the least important element takes the wrong sign and a negative
/// magnitude.
pub fn magnitudes(x: &[f32], weights: &[f32], even: bool) -> ([f32; 256], [u8; 32]) {
    let (mut magnitudes, mut signs) = ([0.0; 256], [0; 32]);
    for (octet, sign) in signs.iter_mut().enumerate() {
        let (x, w) = (&x[octet * 8..][..8], &weights[octet * 8..][..8]);
        let magnitudes = &mut magnitudes[octet * 8..][..8];
        for i in 0..8 {
            magnitudes[i] = x[i].abs();
            *sign |= u8::from(x[i] < 0.0) << i;
        }
        if even && sign.count_ones() % 2 == 1 {
            let cost = |i: usize| w[i] * x[i] * x[i];
            let cheapest = (1..8).fold(0, |best, i| if cost(i) < cost(best) { i } else { best });
            magnitudes[cheapest] = -magnitudes[cheapest];
            *sign ^= 1 << cheapest;
        }
    }
    (magnitudes, signs)
}
