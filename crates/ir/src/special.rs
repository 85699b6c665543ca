//! Special functions in f64 that the standard library lacks.

/// Gauss error function, absolute error below 1e-15.
///
/// For |x| < 3 the Maclaurin series `2/sqrt(pi) * sum (-1)^n x^(2n+1) / (n! (2n+1))` (DLMF 7.6.1), in the
/// non-alternating form `2/sqrt(pi) * exp(-x^2) * sum 2^n x^(2n+1) / (2n+1)!!` (DLMF 7.6.2), which has no
/// cancellation; beyond, the continued fraction of erfc (DLMF 7.9.1) evaluated bottom-up.
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() {
        return x;
    }
    if a > 6.0 {
        return x.signum();
    }
    let magnitude = if a < 3.0 {
        let (mut term, mut sum) = (a, a);
        let mut n = 0.0;
        while term > sum * 1e-17 {
            n += 1.0;
            term *= 2.0 * a * a / (2.0 * n + 1.0);
            sum += term;
        }
        std::f64::consts::FRAC_2_SQRT_PI * (-a * a).exp() * sum
    } else {
        // erfc(a) = exp(-a^2)/sqrt(pi) * 1/(a + (1/2)/(a + 1/(a + (3/2)/(a + ...))))
        let tail = (1..=60).rev().fold(a, |f, k| a + 0.5 * f64::from(k) / f);
        1.0 - (-a * a).exp() * std::f64::consts::FRAC_2_SQRT_PI / 2.0 / tail
    };
    magnitude.copysign(x)
}

#[cfg(test)]
mod tests {
    #[test]
    fn erf_matches_tabulated_values() {
        // Abramowitz & Stegun, table 7.1.
        for (x, y) in
            [(0.0, 0.0), (0.5, 0.5204998778), (1.0, 0.8427007929), (2.0, 0.9953222650), (3.5, 0.9999992569)]
        {
            assert!((super::erf(x) - y).abs() < 1e-10, "{x}");
            assert_eq!(super::erf(-x), -super::erf(x));
        }
    }
}
