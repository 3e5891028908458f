//! `[matrix]`: one job for each combination of workload, settings and number of nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Benchmark;
use crate::error::{Error, Result};

/// Maximum number of jobs of a file: a mistake in it must not fill a cluster.
const JOBS_MAX: usize = 1000;

/// The `[matrix]` table. An omitted list keeps the value of `[workload]`, and adds nothing to the
/// names of jobs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Matrix {
    /// Presets or files.
    workload: Vec<String>,
    /// Additional settings, by a name that is part of the job's name.
    settings: BTreeMap<String, Vec<String>>,
    /// Numbers of nodes that train.
    nodes: Vec<u32>,
}

/// Values of a dimension, or a single `None` for an omitted dimension.
fn or_one<T>(values: impl IntoIterator<Item = T>) -> Vec<Option<T>> {
    let all: Vec<_> = values.into_iter().map(Some).collect();
    if all.is_empty() { vec![None] } else { all }
}

/// Expands a file to its jobs, in an order that depends only on the file.
///
/// # Errors
/// Two jobs of the same name, or too many jobs.
pub(super) fn expand(mut benchmark: Benchmark) -> Result<Vec<Benchmark>> {
    let Some(matrix) = benchmark.matrix.take() else { return Ok(vec![benchmark]) };
    let mut jobs = Vec::new();
    for workload in or_one(&matrix.workload) {
        for setting in or_one(&matrix.settings) {
            for nodes in or_one(&matrix.nodes) {
                jobs.push(combined(benchmark.clone(), workload, setting, nodes.copied()));
            }
        }
    }
    check(&jobs)?;
    Ok(jobs)
}

/// Benchmark of one combination.
fn combined(
    mut benchmark: Benchmark,
    workload: Option<&String>,
    setting: Option<(&String, &Vec<String>)>,
    nodes: Option<u32>,
) -> Benchmark {
    let of = &mut benchmark.workload;
    if let Some(workload) = workload {
        of.name = format!("{}-{}", of.name, label(workload));
        of.workload.clone_from(workload);
    }
    if let Some((name, overrides)) = setting {
        of.name = format!("{}-{name}", of.name);
        of.set.extend_from_slice(overrides);
    }
    if let Some(nodes) = nodes {
        of.name = format!("{}-n{nodes}", of.name);
        of.nodes = nodes;
    }
    benchmark
}

/// Part of a job's name that stands for a preset or file.
fn label(workload: &str) -> String {
    let file = Path::new(workload);
    let is_file = file.extension().is_some_and(|extension| extension == "toml");
    let stem = file.file_stem().filter(|_| is_file).and_then(|stem| stem.to_str());
    stem.unwrap_or(workload).to_ascii_lowercase().replace(['.', '_'], "-")
}

fn check(jobs: &[Benchmark]) -> Result<()> {
    if jobs.len() > JOBS_MAX {
        let expected = format!("at most {JOBS_MAX}");
        return Err(Error::invalid("jobs of the matrix", jobs.len(), expected));
    }
    let mut names = BTreeSet::new();
    match jobs.iter().find(|job| !names.insert(job.name())) {
        Some(job) => Err(Error::invalid("matrix", job.name(), "each job once")),
        None => Ok(()),
    }
}
