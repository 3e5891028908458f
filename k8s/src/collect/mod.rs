//! Results of a batch of jobs: which jobs are complete, their speed, and how it scales with the
//! number of nodes.

mod place;
mod scaling;
mod table;
mod unreadable;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use crate::benchmark::Benchmark;
use record::{RankRecord, Record, Status};
use verdict::report::Start;

pub(crate) use place::Collected;
pub use place::Found;
use unreadable::Unreadable;

/// Results of jobs.
#[derive(Debug, Serialize)]
pub struct Collection {
    /// One row for each run, in the order of workloads, settings and nodes.
    pub runs: Vec<RunRow>,
    /// Expected jobs that have left no record.
    pub missing: Vec<String>,
    /// Records that cannot be read.
    pub unreadable: Vec<Unreadable>,
}

/// A job that should have left a record.
#[derive(Debug, Clone)]
pub struct Expected {
    /// Name of the job.
    pub name: String,
    /// Number of ranks.
    pub ranks: usize,
}

impl Expected {
    /// Returns the job of a benchmark.
    pub fn of(benchmark: &Benchmark) -> Self {
        Self { name: benchmark.name().to_owned(), ranks: benchmark.world() }
    }
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct RunRow {
    /// Name of the run's folder or file.
    pub name: String,
    /// Name of the job, which may have several runs.
    pub job: String,
    /// Name of the workload.
    pub workload: String,
    /// Id of the workload.
    pub workload_id: String,
    /// Settings that differ from the defaults of `[run]`, `[parallel]` and `[collectives]`, as
    /// `key=value`.
    pub settings: Vec<String>,
    /// Number of different nodes, or of hosts if their nodes are not known.
    pub nodes: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of ranks that the job should have had, if known.
    pub expected_ranks: Option<usize>,
    /// Start of the last attempt.
    pub started_unix_ms: u64,
    /// True for the newest run of its job, which the job is judged by.
    pub is_newest: bool,
    pub status: Status,
    /// Reason why the run is not complete.
    pub reason: Option<String>,
    /// Faults that were injected.
    pub injected: Vec<String>,
    /// True if its step times had settled; `null` without measured steps.
    pub is_steady: Option<bool>,
    /// Rate of all ranks, by the step clock, as in `compare` and `report`; `null` if the run is not
    /// complete, or faults were injected.
    pub tokens_per_second: Option<f64>,
    /// Tokens per second and node, relative to the fewest nodes on which the same workload with the
    /// same settings was complete.
    pub scaling_efficiency: Option<f64>,
    /// Parts of the start of each attempt, up to its first step.
    pub starts: Vec<Start>,
}

impl Collection {
    /// Builds the collection of these runs. `expected` are jobs that should have left a run, and
    /// `defaults` the settings of a run without any of its own, by section.
    pub fn of(found: &Found, expected: &[Expected], defaults: &Value) -> Self {
        let row = |collected| RunRow::of(collected, defaults);
        let mut runs: Vec<_> = found.runs.iter().map(row).collect();
        for run in &mut runs {
            let job = expected.iter().find(|job| job.name == run.job);
            run.expected_ranks = job.map(|job| job.ranks);
        }
        let mut unreadable = found.unreadable.clone();
        scaling::fill_in(&mut runs);
        find_newest(&mut runs, &mut unreadable);
        runs.sort_by(|a, b| a.key().cmp(&b.key()));
        let is_missing = |name: &&String| {
            !runs.iter().any(|run| run.job == **name)
                && !unreadable.iter().any(|it| it.job.as_ref() == Some(*name))
        };
        let missing = expected.iter().map(|job| &job.name).filter(is_missing).cloned().collect();
        Self { runs, missing, unreadable }
    }

    /// Returns whether every job has a record, and the newest of each job is complete, with figures
    /// of the machine.
    pub fn is_whole(&self) -> bool {
        let mut newest = self.runs.iter().filter(|run| run.is_newest);
        self.missing.is_empty()
            && newest.all(RunRow::is_result)
            && !self.unreadable.iter().any(|it| it.is_newest)
    }
}

/// Marks the newest run of each job. A record that cannot be read, and may be of any job, counts as
/// newest unless the newest run of every job is later.
fn find_newest(runs: &mut [RunRow], unreadable: &mut [Unreadable]) {
    let mut newest: BTreeMap<String, u64> = BTreeMap::new();
    for run in runs.iter() {
        let time = newest.entry(run.job.clone()).or_default();
        *time = run.started_unix_ms.max(*time);
    }
    for run in runs {
        run.is_newest = newest[&run.job] == run.started_unix_ms;
    }
    for it in unreadable {
        it.is_newest = match &it.job {
            Some(job) => newest.get(job).is_none_or(|time| *time <= it.unix_ms),
            None => newest.is_empty() || newest.values().any(|time| *time <= it.unix_ms),
        };
    }
}

impl RunRow {
    fn of(collected: &Collected, defaults: &Value) -> Self {
        let Collected { name, job, record } = collected;
        // One node may run several pods.
        let node = |rank: &'_ RankRecord| rank.node.clone().unwrap_or_else(|| rank.host.clone());
        let nodes: BTreeSet<_> = record.ranks.iter().map(node).collect();
        let injected: Vec<_> = record.injected().map(str::to_owned).collect();
        Self {
            name: name.clone(),
            job: job.clone(),
            workload: record.workload.name.clone(),
            workload_id: record.workload.id.clone(),
            settings: settings(record, defaults),
            nodes: nodes.len(),
            ranks: record.ranks.len(),
            expected_ranks: None,
            started_unix_ms: record.attempts.last().map_or(0, |last| last.started_unix_ms),
            is_newest: true,
            status: record.status,
            reason: record.reason.as_ref().map(|reason| reason.text.clone()),
            injected,
            is_steady: record.steps.as_ref().map(|steps| steps.is_steady),
            tokens_per_second: record.result_rate(),
            scaling_efficiency: None,
            starts: record.attempts.iter().map(Start::of).collect(),
        }
    }

    fn is_result(&self) -> bool {
        let is_whole = self.expected_ranks.is_none_or(|ranks| ranks == self.ranks);
        self.status == Status::Complete && self.injected.is_empty() && is_whole
    }

    /// Sort key.
    fn key(&self) -> (&str, &[String], usize, &str) {
        (&self.workload, &self.settings, self.nodes, &self.name)
    }
}

/// Sections that change the speed of the same workload.
const SECTIONS: [&str; 3] = ["run", "parallel", "collectives"];

/// Values of these sections that differ from the defaults of this version.
fn settings(record: &Record, defaults: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for section in SECTIONS {
        let Some(values) = record.run[section].as_object() else { continue };
        let differing = values.iter().filter(|(key, value)| defaults[section][*key] != **value);
        found.extend(differing.map(|(key, value)| match value.as_str() {
            Some(text) => format!("{section}.{key}={text}"),
            None => format!("{section}.{key}={value}"),
        }));
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Default settings of the test's runs.
    fn defaults() -> Value {
        serde_json::json!({"run": {"engine": "fused"}, "collectives": {"bucket_bytes": 1 << 20}})
    }

    use record::fixtures::finished;

    fn run(name: &str, nodes: usize, tokens_per_second: f64) -> Collected {
        let mut record = finished();
        let rank = record.ranks[0].clone();
        let of_node =
            |node| RankRecord { rank: node, host: format!("node-{node}"), ..rank.clone() };
        record.ranks = (0..nodes).map(of_node).collect();
        record.tokens_per_second.as_mut().unwrap().step.total = tokens_per_second;
        Collected { name: name.to_owned(), job: name.to_owned(), record }
    }

    fn job_of(name: &str, ranks: usize) -> Expected {
        Expected { name: name.to_owned(), ranks }
    }

    fn found<const N: usize>(runs: [Collected; N]) -> Found {
        Found { runs: runs.into(), unreadable: Vec::new() }
    }

    /// A run of the job "nightly".
    fn of_night(night: u64, status: Status) -> Collected {
        let mut run = run(&format!("night-{night}"), 2, 100.0);
        run.job = "nightly".to_owned();
        run.record.status = status;
        run.record.attempts.last_mut().unwrap().started_unix_ms = night;
        run
    }

    fn torn(job: Option<&str>, unix_ms: u64) -> Unreadable {
        let text = "torn/record.json, line 3: expected a record".to_owned();
        Unreadable { unix_ms, text, ..Unreadable::new("torn".to_owned(), job.map(str::to_owned)) }
    }

    #[test]
    fn a_job_is_judged_by_its_newest_record() {
        let (complete, failed) = (Status::Complete, Status::Failed);
        let nights =
            |statuses: [Status; 2]| found([of_night(2, statuses[1]), of_night(1, statuses[0])]);
        let is_whole =
            |found: &Found| Collection::of(found, &[job_of("nightly", 2)], &defaults()).is_whole();
        assert!(is_whole(&nights([failed, complete])), "an older night that failed");
        assert!(!is_whole(&nights([complete, failed])));
        let mut drill = nights([complete, complete]);
        let attempt = drill.runs[0].record.attempts.last_mut().unwrap();
        attempt.injected = vec!["slow-compute@rank=1,percent=40".to_owned()];
        assert!(!is_whole(&drill), "with a fault");
        let mut smaller = nights([complete, complete]);
        smaller.runs[0].record.ranks.pop();
        assert!(!is_whole(&smaller), "on one rank");
        for (job, unix_ms, expected) in [
            (Some("nightly"), 1, true),
            (Some("nightly"), 3, false),
            (Some("other"), 1, false),
            (None, 1, true),
            (None, 3, false),
        ] {
            let mut found = nights([complete, complete]);
            found.unreadable.push(torn(job, unix_ms));
            assert_eq!(is_whole(&found), expected, "{job:?} at {unix_ms}");
            found.keep_jobs(&[job_of("nightly", 2)]);
            let is_other = job == Some("other");
            assert_eq!(is_whole(&found), expected || is_other, "{job:?} at {unix_ms}");
            let text = Collection::of(&found, &[], &defaults()).to_string();
            assert_eq!(text.contains("torn: not readable: torn/record.json"), !is_other, "{text}");
        }
    }

    #[test]
    fn a_record_that_cannot_be_read_is_one() {
        let found = Found { runs: Vec::new(), unreadable: vec![torn(Some("nightly"), 1)] };
        let collection = Collection::of(&found, &[job_of("nightly", 2)], &defaults());
        assert!(collection.missing.is_empty() && !collection.is_whole());
    }

    #[test]
    fn efficiency_is_relative_to_the_fewest_nodes_of_the_same_settings() {
        let mut sharded = run("sharded-n2", 2, 150.0);
        sharded.record.run["parallel"]["sharded"] = "optimizer".into();
        let mut sharded_one = run("sharded-n1", 1, 100.0);
        sharded_one.record.run["parallel"]["sharded"] = "optimizer".into();
        let mut failed = run("failed-n8", 8, 1.0);
        failed.record.status = Status::Failed;
        let runs = [
            run("n4", 4, 720.0),
            run("n2", 2, 400.0),
            run("n2-again", 2, 380.0),
            sharded,
            sharded_one,
            failed,
        ];
        let collection =
            Collection::of(&found(runs), &[job_of("n2", 2), job_of("n16", 16)], &defaults());
        let efficiency = |name: &str| {
            let row = collection.runs.iter().find(|row| row.name == name).unwrap();
            row.scaling_efficiency.map(|share| (share * 1e3).round() / 1e3)
        };
        // The two runs on two nodes have a median of 390, that is 195 a node.
        assert_eq!(efficiency("n4"), Some(0.923));
        assert_eq!(efficiency("n2"), Some(1.026));
        assert_eq!(efficiency("sharded-n1"), Some(1.0));
        assert_eq!(efficiency("sharded-n2"), Some(0.75));
        assert_eq!(efficiency("failed-n8"), None);
        assert_eq!(collection.missing, ["n16"]);
        assert!(!collection.is_whole());
    }

    #[test]
    fn a_sharded_optimizer_of_an_earlier_version_is_the_setting_of_today() {
        let mut run = run("n2", 2, 1.0);
        run.record.run["run"]["shard_optimizer"] = true.into();
        let bytes = serde_json::to_vec(&run.record.sealed()).unwrap();
        run.record = Record::parse(std::path::Path::new("record.json"), &bytes).unwrap();
        let mut defaults = defaults();
        defaults["parallel"] = serde_json::json!({
            "data": 1, "shard": 0, "sharded": "none", "gather_ahead": 1, "reshard": true,
        });
        let collection = Collection::of(&found([run]), &[], &defaults);
        assert_eq!(collection.runs[0].settings, ["parallel.sharded=optimizer"]);
    }

    #[test]
    fn the_table_names_what_is_not_there() {
        let mut failed = run("n2", 2, 1.0);
        failed.record.status = Status::Failed;
        failed.record.reason = Some(record::Reason {
            text: "host node-1 was lost".to_owned(),
            ..record::Reason::default()
        });
        let runs = [run("n1", 1, 1000.0), failed];
        let text = Collection::of(&found(runs), &[job_of("n4", 4)], &defaults()).to_string();
        assert!(text.contains("| n1 "), "{text}");
        assert!(text.contains("n2: failed: host node-1 was lost"), "{text}");
        assert!(text.contains("n4: no record"), "{text}");
    }
}
