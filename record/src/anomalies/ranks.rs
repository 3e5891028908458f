//! Anomalies of processors and core bindings, which rank 0 reports when an attempt starts.

use std::collections::BTreeMap;

use crate::compute::Compute;

use crate::sections::{Anomaly, RankRecord};
use crate::text::list;

/// Reports ranks whose matmul kernel is a fallback or slower than that of other ranks, hosts on
/// which the launcher's binding leaves cores unused, and ranks that run far from their GPU: at most
/// one anomaly of each kind. `fast` holds the kernels that are not a fallback, best first.
pub fn rank_anomalies(ranks: &[RankRecord], compute: Compute, fast: &[&str]) -> Vec<Anomaly> {
    let anomaly = |text| Anomaly { step: None, rank: None, text };
    [slow_matmul(ranks, compute, fast), unused_cores(ranks), far_from_gpu(ranks)]
        .into_iter()
        .flatten()
        .map(anomaly)
        .collect()
}

fn slow_matmul(ranks: &[RankRecord], compute: Compute, fast: &[&str]) -> Option<String> {
    let is_used = |kernel| ranks.iter().any(|rank| rank.matmul_kernel.as_deref() == Some(kernel));
    let best = *fast.iter().find(|&&kernel| is_used(kernel)).or(fast.last())?;
    let mut slow: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for rank in ranks {
        if let Some(kernel) = rank.matmul_kernel.as_deref().filter(|&kernel| kernel != best) {
            slow.entry(kernel).or_default().push(rank.rank.to_string());
        }
    }
    if slow.is_empty() {
        return None;
    }
    let fallback = |(kernel, ranks): (&&str, &Vec<String>)| {
        let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
        format!("{kernel} on {noun} {}", list(ranks))
    };
    let fallbacks: Vec<_> = slow.iter().map(fallback).collect();
    let fallbacks = fallbacks.join(" and to ");
    Some(format!("matmul in {compute} falls back to {fallbacks}; full speed needs {best}"))
}

fn unused_cores(ranks: &[RankRecord]) -> Option<String> {
    let mut hosts = BTreeMap::new();
    for rank in ranks.iter().filter(|rank| rank.unused_cores > 0) {
        hosts.insert(&rank.host, rank.unused_cores);
    }
    let of_host = |(host, cores): (&&String, &usize)| format!("{cores} on {host}");
    let hosts: Vec<_> = hosts.iter().map(of_host).collect();
    if hosts.is_empty() {
        return None;
    }
    Some(format!(
        "the launcher's binding leaves cores unused: {}; with `mpirun --bind-to none` (srun: \
         `--cpu-bind=none`) ranks divide all available cores",
        list(&hosts)
    ))
}

fn far_from_gpu(ranks: &[RankRecord]) -> Option<String> {
    let is_far = |rank: &&RankRecord| rank.numa.is_some_and(|numa| !numa.is_local);
    let far: Vec<_> = ranks.iter().filter(is_far).map(|rank| rank.rank.to_string()).collect();
    if far.is_empty() {
        return None;
    }
    let noun = if far.len() == 1 { "rank" } else { "ranks" };
    Some(format!(
        "{noun} {} may not run on the cores near the GPU: copies cross between NUMA nodes; bind \
         to other cores, or to none (`mpirun --bind-to none`, `srun --cpu-bind=none`), and look at \
         the container's cpuset",
        list(&far)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NumaRecord;
    use crate::fixtures::finished;

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
    fn ranks_with_a_fallback_kernel_are_named() {
        let text = |kernels: &[_]| slow_matmul(&ranks(kernels, 0), Compute::F32, &["best"]);
        assert_eq!(text(&[Some("best"), Some("best")]), None);
        assert_eq!(text(&[None, None]), None, "another engine's matmul");
        assert_eq!(
            text(&[Some("best"), Some("fma")]).unwrap(),
            "matmul in f32 falls back to fma on rank 1; full speed needs best"
        );
        let mixed = text(&[Some("fma"), Some("scalar"), Some("best"), Some("fma")]).unwrap();
        assert!(mixed.contains("to fma on ranks 0, 3 and to scalar on rank 1; full"), "{mixed}");
        let many = text(&[Some("fma"); 11]).unwrap();
        assert!(many.contains("fma on ranks 0, 1, 2, 3, 4, 5, 6, 7 and 3 more; full"), "{many}");
    }

    #[test]
    fn a_fast_kernel_is_named_only_if_other_ranks_have_a_better_one() {
        let text =
            |kernels: &[_]| slow_matmul(&ranks(kernels, 0), Compute::Bf16, &["best", "good"]);
        assert_eq!(text(&[Some("good"), Some("good")]), None);
        assert_eq!(
            text(&[Some("good"), Some("best")]).unwrap(),
            "matmul in bf16 falls back to good on rank 0; full speed needs best"
        );
        let slower = text(&[Some("fma")]).unwrap();
        assert!(slower.ends_with(" to fma on rank 0; full speed needs good"), "{slower}");
        let slower = text(&[Some("good"), Some("fma")]).unwrap();
        assert!(slower.ends_with(" to fma on rank 1; full speed needs good"), "{slower}");
    }

    #[test]
    fn hosts_with_unused_cores_are_named() {
        assert_eq!(unused_cores(&ranks(&[None, None], 0)), None);
        let mut two = ranks(&[None, None, None], 3);
        two[1].host = two[0].host.clone();
        let text = unused_cores(&two).unwrap();
        assert!(text.contains("cores unused: 3 on node-0, 3 on node-2; "), "{text}");
    }

    #[test]
    fn ranks_far_from_their_gpus_are_named() {
        let mut three = ranks(&[None, None, None], 0);
        assert_eq!(far_from_gpu(&three), None, "not known");
        three[0].numa = Some(NumaRecord { device_node: 0, is_local: true });
        three[2].numa = Some(NumaRecord { device_node: 1, is_local: false });
        let text = far_from_gpu(&three).unwrap();
        assert!(text.contains("rank 2 may not run on the cores near the GPU"), "{text}");
    }

    #[test]
    fn all_anomalies_are_reported() {
        let mut record = finished();
        record.ranks[1].matmul_kernel = Some("none".to_owned());
        record.ranks[1].unused_cores = 1;
        record.ranks[1].numa = Some(NumaRecord { device_node: 0, is_local: false });
        let anomalies = rank_anomalies(&record.ranks[1..], Compute::F32, &["best"]);
        assert_eq!(anomalies.len(), 3, "{anomalies:?}");
    }
}
