//! What is odd about where ranks run: told when an attempt starts, by rank 0 for all of them.

use std::collections::BTreeMap;

use models::workload::Compute;

use super::{Anomaly, RankRecord};

/// Names and numbers that a sentence has; the record has all.
const TOLD: usize = 8;

/// Ranks whose processor lacks fast matmul kernels, or the better ones that others have, and hosts
/// whose cores a launcher's binding leaves unused: one sentence for each of the two.
pub(crate) fn odd_ranks(ranks: &[RankRecord], compute: Compute) -> Vec<Anomaly> {
    let fast = models::fused::full_speed_kernels(compute);
    let told = |text| Anomaly { step: None, rank: None, text };
    [slow_matmul(ranks, compute, fast), unused_cores(ranks)]
        .into_iter()
        .flatten()
        .map(told)
        .collect()
}

/// `fast` are the kernels that are no fallback, best first.
fn slow_matmul(ranks: &[RankRecord], compute: Compute, fast: &[&str]) -> Option<String> {
    let is_here = |kernel| ranks.iter().any(|rank| rank.matmul_kernel.as_deref() == Some(kernel));
    let best = *fast.iter().find(|&&kernel| is_here(kernel)).or(fast.last())?;
    let mut slow: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for rank in ranks {
        if let Some(kernel) = rank.matmul_kernel.as_deref().filter(|&kernel| kernel != best) {
            slow.entry(kernel).or_default().push(rank.rank.to_string());
        }
    }
    let of_kernel = |(kernel, ranks): (_, &Vec<_>)| {
        let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
        format!("{kernel} on {noun} {}", list(ranks))
    };
    let slow: Vec<_> = slow.iter().map(|(&kernel, ranks)| of_kernel((kernel, ranks))).collect();
    let slow = Some(slow.join(" and to ")).filter(|slow| !slow.is_empty())?;
    Some(format!("matmul in {compute} falls back to {slow}, for lack of {best}"))
}

fn unused_cores(ranks: &[RankRecord]) -> Option<String> {
    let mut hosts = BTreeMap::new();
    for rank in ranks.iter().filter(|rank| rank.unused_cores > 0) {
        hosts.insert(&rank.host, rank.unused_cores);
    }
    let of_host = |(host, cores): (&&String, &usize)| format!("{cores} on {host}");
    let hosts: Vec<_> = hosts.iter().map(of_host).collect();
    let all = Some(list(&hosts)).filter(|_| !hosts.is_empty())?;
    Some(format!(
        "the launcher's binding leaves cores unused, as seen from their hosts: {all}; \
         `mpirun --bind-to none` (srun: `--cpu-bind=none`) lets ranks divide all that they may use"
    ))
}

fn list(items: &[String]) -> String {
    match items.len().saturating_sub(TOLD) {
        0 => items.join(", "),
        more => format!("{} and {more} more", items[..TOLD].join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::finished;

    fn ranks(kernels: &[Option<&str>], unused_cores: usize) -> Vec<RankRecord> {
        let rank = |(rank, kernel): (usize, &Option<&str>)| RankRecord {
            rank,
            host: format!("node-{rank}"),
            unused_cores,
            matmul_kernel: kernel.map(str::to_owned),
            ..finished().ranks[0].clone()
        };
        kernels.iter().enumerate().map(rank).collect()
    }

    #[test]
    fn ranks_on_lesser_processors_are_named() {
        let told = |kernels: &[_]| slow_matmul(&ranks(kernels, 0), Compute::F32, &["best"]);
        assert_eq!(told(&[Some("best"), Some("best")]), None);
        assert_eq!(told(&[None, None]), None, "another engine's matmul");
        assert_eq!(
            told(&[Some("best"), Some("fma")]).unwrap(),
            "matmul in f32 falls back to fma on rank 1, for lack of best"
        );
        let mixed = told(&[Some("fma"), Some("scalar"), Some("best"), Some("fma")]).unwrap();
        assert!(mixed.contains("to fma on ranks 0, 3 and to scalar on rank 1, for "), "{mixed}");
        let many = told(&[Some("fma"); 11]).unwrap();
        assert!(many.contains("fma on ranks 0, 1, 2, 3, 4, 5, 6, 7 and 3 more, for "), "{many}");
    }

    #[test]
    fn a_kernel_that_is_fast_enough_alone_is_named_beside_a_better_one() {
        let told =
            |kernels: &[_]| slow_matmul(&ranks(kernels, 0), Compute::Bf16, &["best", "good"]);
        assert_eq!(told(&[Some("good"), Some("good")]), None);
        assert_eq!(
            told(&[Some("good"), Some("best")]).unwrap(),
            "matmul in bf16 falls back to good on rank 0, for lack of best"
        );
        let lesser = told(&[Some("fma")]).unwrap();
        assert!(lesser.ends_with(" to fma on rank 0, for lack of good"), "{lesser}");
        let lesser = told(&[Some("good"), Some("fma")]).unwrap();
        assert!(lesser.ends_with(" to fma on rank 1, for lack of good"), "{lesser}");
    }

    #[test]
    fn hosts_with_unused_cores_are_named() {
        assert_eq!(unused_cores(&ranks(&[None, None], 0)), None);
        let mut two = ranks(&[None, None, None], 3);
        two[1].host = two[0].host.clone();
        let told = unused_cores(&two).unwrap();
        assert!(told.contains("from their hosts: 3 on node-0, 3 on node-2; "), "{told}");
    }

    #[test]
    fn both_are_told_of_a_run() {
        let mut record = finished();
        record.ranks[1].matmul_kernel = Some("none".to_owned());
        record.ranks[1].unused_cores = 1;
        let told = odd_ranks(&record.ranks[1..], Compute::F32);
        assert_eq!(told.len(), 2, "{told:?}");
    }
}
