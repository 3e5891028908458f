//! Comparison of ranks on equal work at the same time, after the first step: it finds a slow
//! machine before that has slowed many steps down.

use record::CalibrationRates;

use super::detector::{middle, robust_deviation};
use record::RankRecord;

/// Rate of every rank.
struct Rates {
    of: &'static str,
    values: Vec<f64>,
}

/// Share by which a rank must be below the median rank to be an outlier: ranks that share a machine
/// with others mostly differ by less.
const LEAST_BELOW: f64 = 0.25;

/// Standard deviations by which it must also be below the median rank, where there are many ranks.
const DEVIATIONS_LEAST: f64 = 3.5;

/// Rate that is far below the others.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Far {
    index: usize,
    /// Share of the median.
    share: f64,
}

/// Returns rates that are far below the others; of two, the higher one counts as the median.
fn far_below(rates: &[f64]) -> Vec<Far> {
    if rates.is_empty() {
        return Vec::new();
    }
    let mut slowness: Vec<f64> = rates.iter().map(|rate| -rate).collect();
    let deviation = robust_deviation(&slowness);
    let median = -middle(&mut slowness);
    let is_far = |rate: f64| deviation.is_none_or(|one| median - rate >= DEVIATIONS_LEAST * one);
    let far = |(index, rate): (usize, &f64)| {
        let share = rate / median;
        (share < 1.0 - LEAST_BELOW && is_far(*rate)).then_some(Far { index, share })
    };
    rates.iter().enumerate().filter_map(far).collect()
}

/// Returns ranks that are far below the others, each with a description. Ranks that could not
/// measure are left out.
pub(crate) fn outliers(
    all: &[Option<CalibrationRates>],
    ranks: &[RankRecord],
) -> Vec<(usize, String)> {
    let measured: Vec<usize> = (0..all.len()).filter(|&rank| all[rank].is_some()).collect();
    let of = |rate: fn(&CalibrationRates) -> f64| all.iter().flatten().map(rate).collect();
    let rates = [
        Rates { of: "multiplies matrices", values: of(|it| it.matmul_flops_per_second) },
        Rates { of: "reads and writes memory", values: of(|it| it.memory_bytes_per_second) },
    ];
    let mut found = Vec::new();
    for Rates { of, values } in rates {
        for Far { index, share } in far_below(&values) {
            let rank = measured[index];
            let (host, percent) = (&ranks[rank].host, 100.0 * share);
            let text =
                format!("rank {rank} ({host}) {of} at {percent:.0} % of the median rank's rate");
            found.push((rank, text));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::fixtures::finished;

    fn rates(matmul: f64, memory: f64) -> Option<CalibrationRates> {
        Some(CalibrationRates { matmul_flops_per_second: matmul, memory_bytes_per_second: memory })
    }

    #[test]
    fn a_rank_that_is_far_below_the_others_is_named() {
        let rank = finished().ranks[0].clone();
        let ranks = vec![rank; 16];
        let similar: Vec<_> = (0..16).map(|rank| rates(100.0 + f64::from(rank), 10.0)).collect();
        assert_eq!(outliers(&similar, &ranks), []);
        let mut one = similar.clone();
        one[3] = rates(60.0, 10.0);
        one[5] = rates(105.0, 9.0);
        let found = outliers(&one, &ranks);
        let text = "rank 3 (node-a) multiplies matrices at 56 % of the median rank's rate";
        assert_eq!(found, [(3, text.to_owned())], "10 % less memory bandwidth is nothing unusual");
        assert_eq!(outliers(&[None, None], &ranks), []);
        let three = [rates(100.0, 10.0), None, rates(99.0, 5.0)];
        let found = outliers(&three, &ranks);
        let text = "rank 2 (node-a) reads and writes memory at 50 % of the median rank's rate";
        assert_eq!(found, [(2, text.to_owned())], "ranks that could not measure are left out");
    }
}
