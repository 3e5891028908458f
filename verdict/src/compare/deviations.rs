//! Deviation between runs of the same workload on the same machines.

use std::path::PathBuf;

use super::estimate::{mean, sum_of_squares};
use super::side::{Side, Source};
use record::Record;

/// Deviations of the tokens per second of runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Deviations {
    /// Mean over all runs.
    pub mean: f64,
    pub sessions: usize,
    /// Relative standard deviation within sessions; `None` without several runs in one.
    pub of_runs: Option<f64>,
    /// Relative standard deviation of the means of sessions; `None` with fewer than two.
    pub of_sessions: Option<f64>,
}

/// Computes the deviations of runs, each with the path of its record; `None` without measured runs.
pub(crate) fn deviations(records: impl Iterator<Item = (PathBuf, Record)>) -> Option<Deviations> {
    let sources = records.map(|(path, record)| Source { path, record }).collect();
    let side = Side::new(sources);
    if side.sources.is_empty() {
        return None;
    }
    let rate = |source: &Source| source.record.tokens_per_second.map(|rate| rate.step.total);
    let sessions: Vec<Vec<f64>> =
        side.sessions().iter().map(|runs| runs.iter().filter_map(rate).collect()).collect();
    let all: Vec<f64> = sessions.concat();
    let mean_of_all = mean(&all);
    let freedom = all.len() - sessions.len();
    let squares: f64 = sessions.iter().map(|session| sum_of_squares(session)).sum();
    let means: Vec<f64> = sessions.iter().map(|session| mean(session)).collect();
    let relative = |squares: f64, freedom: usize| {
        (freedom > 0).then(|| (squares / freedom as f64).sqrt() / mean_of_all)
    };
    Some(Deviations {
        mean: mean_of_all,
        sessions: sessions.len(),
        of_runs: relative(squares, freedom),
        of_sessions: relative(sum_of_squares(&means), sessions.len() - 1),
    })
}
