//! Quantiles of Student's t distribution, with the same bits on every processor: the functions of
//! the system's mathematical library, which other crates call, differ in their last bits.

/// Number of standard errors that an interval extends to each side, so that it misses the truth at
/// this rate: t with P(|T| > t) = `error_rate`, for `freedom` degrees of freedom.
///
/// Uses Newton's method: the probability is a convex function of t, so that from 0 on no step is
/// too large, and the first one that does not enlarge t is the last.
pub fn quantile(error_rate: f64, freedom: f64) -> f64 {
    let mut t = 0.0;
    loop {
        let next = t + (outside(t, freedom) - error_rate) / (2.0 * density(t, freedom));
        if next <= t || !next.is_finite() {
            return t;
        }
        t = next;
    }
}

/// Density at t, <https://dlmf.nist.gov/8.17> differentiated.
fn density(t: f64, freedom: f64) -> f64 {
    let half = 0.5 * (freedom + 1.0);
    let scale = libm::exp(libm::lgamma(half) - libm::lgamma(0.5 * freedom));
    let power = libm::exp(-half * libm::log1p(t * t / freedom));
    scale * power / (freedom * std::f64::consts::PI).sqrt()
}

/// P(|T| > t) = I(f / (f + t^2); f/2, 1/2) for f degrees of freedom, <https://dlmf.nist.gov/8.17>.
fn outside(t: f64, freedom: f64) -> f64 {
    incomplete_beta(freedom / (freedom + t * t), 0.5 * freedom, 0.5)
}

/// Regularized incomplete beta function I(x; a, b).
pub(crate) fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    // The fraction converges fast below the mean; above it, I(x; a, b) = 1 - I(1 - x; b, a).
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let log_beta = libm::lgamma(a) + libm::lgamma(b) - libm::lgamma(a + b);
    let power = libm::exp(a * libm::log(x) + b * libm::log1p(-x) - log_beta);
    power / a * continued_fraction(x, a, b)
}

/// Maximum number of terms of the fraction.
const TERMS_MAX: usize = 1000;

/// Continued fraction of <https://dlmf.nist.gov/8.17.E22>, by the method of Lentz and Thompson.
fn continued_fraction(x: f64, a: f64, b: f64) -> f64 {
    let not_zero = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let mut numerator = f64::INFINITY;
    let mut denominator = 1.0;
    let mut product = 1.0;
    for term in 1..TERMS_MAX {
        let m = (term / 2) as f64;
        let coefficient = if term % 2 == 0 {
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        } else {
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        };
        numerator = not_zero(1.0 + coefficient / numerator);
        denominator = 1.0 / not_zero(1.0 + coefficient * denominator);
        let factor = numerator * denominator;
        product *= factor;
        if (factor - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values were calculated with 30 digits.
    #[test]
    fn quantiles_are_right_to_nine_digits() {
        for (error_rate, freedom, expected) in [
            (0.05, 1.0, 12.70620474),
            (0.05, 2.0, 4.30265273),
            (0.05, 9.0, 2.262157163),
            (0.01, 4.0, 4.604094871),
            (0.001, 30.0, 3.645958635),
            (0.5, 3.0, 0.7648923284),
            (0.05, 1000.0, 1.962339081),
            (1e-9, 5.0, 113.6550511),
        ] {
            let found = quantile(error_rate, freedom);
            let error = (found - expected).abs() / expected;
            assert!(error < 1e-9, "{error_rate}, {freedom}: {found} is not {expected}");
        }
    }
}
