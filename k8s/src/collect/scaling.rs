//! Scaling efficiency: throughput per node on many nodes, relative to that on the fewest.

use std::collections::{BTreeMap, BTreeSet};

use super::RunRow;
use record::statistics::Distribution;

/// Runs that differ only in their number of nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Series {
    workload_id: String,
    settings: Vec<String>,
    ranks_per_node: usize,
}

impl Series {
    fn of(run: &RunRow) -> Self {
        Self {
            workload_id: run.workload_id.clone(),
            settings: run.settings.clone(),
            ranks_per_node: run.ranks / run.nodes.max(1),
        }
    }
}

/// Fills in the efficiency of complete runs.
pub(super) fn fill_in(runs: &mut [RunRow]) {
    let all: BTreeSet<_> = runs.iter().map(Series::of).collect();
    let base: BTreeMap<_, _> = all
        .into_iter()
        .filter_map(|series| Some((series.clone(), rate_of_fewest(runs, &series)?)))
        .collect();
    for run in runs {
        let base = base.get(&Series::of(run));
        run.scaling_efficiency = per_node(run).zip(base).map(|(own, base)| own / base);
    }
}

fn per_node(run: &RunRow) -> Option<f64> {
    run.tokens_per_second.map(|rate| rate / run.nodes as f64)
}

/// Tokens per second and node on the fewest nodes: the median of these runs.
fn rate_of_fewest(runs: &[RunRow], series: &Series) -> Option<f64> {
    let complete = || {
        let is_complete = |run: &&RunRow| run.tokens_per_second.is_some();
        runs.iter().filter(is_complete).filter(|run| Series::of(run) == *series)
    };
    let fewest = complete().map(|run| run.nodes).min()?;
    let rates = complete().filter(|run| run.nodes == fewest).filter_map(per_node);
    Distribution::of(rates).map(|rates| rates.median)
}
