//! Comparison of ranks on equal work at the same time, after the first step: it finds a slow
//! machine before that has slowed many steps down.

use device::Device;
use record::statistics::{median_of, robust_deviation};
use record::{CalibrationRates, RankRecord};

use crate::failure::Outcome;
use crate::ranks::Ranks;
use crate::timing::matmul_probe::MatmulProbe;
use crate::timing::memory_probe::MemoryProbe;

/// A measurement takes this part of the configured time of the matmul probe, 20 ms by default: all
/// ten together take less than that time.
const PARTS: u32 = 12;

/// Measurements of each rate, the best of which counts: other load only makes them smaller.
const MEASUREMENTS: usize = 5;

/// Number of ranks from which their spread shows how much rates usually differ.
const RANKS_WITH_SPREAD: usize = 8;

/// Measures the rates of all ranks on equal work at the same time; `None` for a rank that could not
/// measure both. With few ranks, one that is far below the others counts only if that is repeated.
pub(super) fn measure(
    matmul: &mut MatmulProbe,
    device: &Device,
    ranks: &Ranks<'_>,
    local_world: usize,
) -> Outcome<Vec<Option<CalibrationRates>>> {
    let mut best = None;
    let all = measure_once(matmul, device, ranks, local_world, &mut best)?;
    let is_certain = ranks.world() >= RANKS_WITH_SPREAD || far_below_in(&all).is_empty();
    if is_certain {
        return Ok(all);
    }
    measure_once(matmul, device, ranks, local_world, &mut best)
}

/// Memory comes first: the allocator may keep the memory of the smaller matrices.
fn measure_once(
    matmul: &mut MatmulProbe,
    device: &Device,
    ranks: &Ranks<'_>,
    local_world: usize,
    memory_bytes_per_second: &mut Option<f64>,
) -> Outcome<Vec<Option<CalibrationRates>>> {
    let part = matmul.budget() / PARTS;
    let mut memory = MemoryProbe::new(device, local_world)?;
    for _ in 0..MEASUREMENTS {
        ranks.collective.barrier(ranks.deadline())?;
        let rate = memory.as_mut().map(|memory| memory.bytes_per_second(part)).transpose()?;
        let best = memory_bytes_per_second.iter().copied().chain(rate);
        *memory_bytes_per_second = best.reduce(f64::max);
    }
    drop(memory);
    let mut is_complete = true;
    for _ in 0..MEASUREMENTS {
        ranks.collective.barrier(ranks.deadline())?;
        is_complete &= matmul.measure(device, part)?;
    }
    let matmul_rate = matmul.flops_per_second().filter(|_| is_complete);
    let rates = matmul_rate.zip(*memory_bytes_per_second);
    let rates = rates.map(|(matmul_flops_per_second, memory_bytes_per_second)| CalibrationRates {
        matmul_flops_per_second,
        memory_bytes_per_second,
    });
    ranks.gather(&rates)
}

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
    let has_spread = rates.len() >= RANKS_WITH_SPREAD;
    let deviation = if has_spread { robust_deviation(rates) } else { 0.0 };
    let median = match rates {
        [one, other] => one.max(*other),
        _ => median_of(&mut rates.to_vec()),
    };
    let is_far = |rate: f64| median - rate >= DEVIATIONS_LEAST * deviation;
    let far = |(index, rate): (usize, &f64)| {
        let share = rate / median;
        (share < 1.0 - LEAST_BELOW && is_far(*rate)).then_some(Far { index, share })
    };
    rates.iter().enumerate().filter_map(far).collect()
}

/// Rate of a rank that is far below the others.
struct FarRank {
    rank: usize,
    of: &'static str,
    share: f64,
}

/// Returns ranks that are far below the others. Ranks that could not measure are left out.
fn far_below_in(all: &[Option<CalibrationRates>]) -> Vec<FarRank> {
    let measured: Vec<usize> = (0..all.len()).filter(|&rank| all[rank].is_some()).collect();
    let of = |rate: fn(&CalibrationRates) -> f64| all.iter().flatten().map(rate).collect();
    let rates = [
        Rates { of: "multiplies matrices", values: of(|it| it.matmul_flops_per_second) },
        Rates { of: "reads and writes memory", values: of(|it| it.memory_bytes_per_second) },
    ];
    let far = |Rates { of, values }: Rates| {
        let ranks = far_below(&values).into_iter();
        let far = ranks.map(|Far { index, share }| FarRank { rank: measured[index], of, share });
        far.collect::<Vec<_>>()
    };
    rates.into_iter().flat_map(far).collect()
}

/// Returns ranks that are far below the others, each with a description.
pub(super) fn outliers(
    all: &[Option<CalibrationRates>],
    ranks: &[RankRecord],
) -> Vec<(usize, String)> {
    let described = |FarRank { rank, of, share }: FarRank| {
        let (host, percent) = (&ranks[rank].host, 100.0 * share);
        let text = format!("rank {rank} ({host}) {of} at {percent:.0} % of the median rank's rate");
        (rank, text)
    };
    far_below_in(all).into_iter().map(described).collect()
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
