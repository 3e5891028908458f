//! Report of the findings of all ranks, merged: equal findings of several ranks are one result.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use launch::doctor::{CheckDesc, Finding, Group, Scope, Status};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::catalog::{Required, catalog};
use super::{Found, RankFindings};

/// Version of the schema.
const SCHEMA: u32 = 1;

/// Report of `yardstick doctor`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorReport {
    /// Version of this schema.
    pub(crate) schema: u32,
    /// Version of yardstick.
    pub(crate) yardstick: String,
    /// Worst status of all checks; `pass` if none warns or fails. `fail` is exit code 3.
    pub(crate) status: Status,
    /// Host of every rank.
    pub(crate) hosts: Vec<String>,
    /// Number of nodes.
    pub(crate) nodes: usize,
    /// Duration in seconds.
    pub(crate) seconds: f64,
    /// All checks that ran.
    pub(crate) checks: Vec<CheckReport>,
}

/// Results of a check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct CheckReport {
    /// Name of the check.
    pub(crate) name: String,
    /// Subject of the check.
    pub(crate) group: Group,
    /// Worst status of its results.
    pub(crate) status: Status,
    /// True if `--require` names it: warnings and skips are then failures.
    pub(crate) required: bool,
    /// Action to take; `null` unless it warns or fails.
    pub(crate) remedy: Option<String>,
    /// Different results, the worst first.
    pub(crate) results: Vec<CheckResult>,
}

/// Result that some ranks have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct CheckResult {
    /// Status of the result.
    pub(crate) status: Status,
    /// Description of what was found, or the reason of a skip.
    pub(crate) found: String,
    /// Expectation; `null` if it was met.
    pub(crate) expected: Option<String>,
    /// Ranks with this result: the first rank of each node for checks of nodes, and all ranks for
    /// checks of the whole job.
    pub(crate) ranks: Vec<usize>,
    /// Hosts of these ranks, each once.
    pub(crate) hosts: Vec<String>,
}

impl DoctorReport {
    /// Merges the findings of each rank, and those of all ranks together.
    pub(super) fn new(
        all: &[RankFindings],
        together: Vec<Found>,
        required: &Required,
        took: Duration,
    ) -> Self {
        let report = |desc: &&'static CheckDesc| {
            let found = Gathered::of(desc, all, &together);
            CheckReport::new(desc, found, all, required.contains(desc.name))
        };
        let checks: Vec<_> = catalog().iter().filter_map(report).collect();
        let nodes: BTreeSet<_> = all.iter().map(|rank| rank.place.node).collect();
        Self {
            schema: SCHEMA,
            yardstick: record::Program::current().build.to_owned(),
            status: overall(&checks),
            hosts: all.iter().map(|rank| rank.place.host.clone()).collect(),
            nodes: nodes.len(),
            seconds: took.as_secs_f64(),
            checks,
        }
    }
}

/// Returns the worst status; `pass` if all are better than a warning, as skips are.
fn overall(checks: &[CheckReport]) -> Status {
    let worst = checks.iter().map(|check| check.status).max();
    worst.filter(|status| *status >= Status::Warn).unwrap_or(Status::Pass)
}

/// Findings of one check, each with the ranks that found it.
struct Gathered(BTreeMap<Finding, Vec<usize>>);

impl Gathered {
    fn of(desc: &CheckDesc, all: &[RankFindings], together: &[Found]) -> Self {
        let mut gathered = Self(BTreeMap::new());
        if desc.scope == Scope::World {
            for found in together.iter().filter(|found| found.check == desc.name) {
                gathered.0.insert(found.finding.clone(), (0..all.len()).collect());
            }
            return gathered;
        }
        for (rank, findings) in all.iter().enumerate() {
            for found in findings.found.iter().filter(|found| found.check == desc.name) {
                gathered.0.entry(found.finding.clone()).or_default().push(rank);
            }
        }
        gathered
    }
}

impl CheckReport {
    /// Creates the report of a check; `None` if it did not run.
    fn new(
        desc: &CheckDesc,
        Gathered(found): Gathered,
        all: &[RankFindings],
        required: bool,
    ) -> Option<Self> {
        let result = |(finding, ranks): (Finding, Vec<usize>)| {
            let Finding { status, found, expected } = finding;
            let mut hosts: Vec<_> =
                ranks.iter().map(|rank| all[*rank].place.host.clone()).collect();
            hosts.dedup();
            let is_failure = required && status != Status::Pass;
            let status = if is_failure { Status::Fail } else { status };
            let by_request = || is_failure.then(|| "a pass, by --require".to_owned());
            let expected = expected.or_else(by_request);
            CheckResult { status, found, expected, ranks, hosts }
        };
        // Findings are sorted by status, the best first.
        let results: Vec<_> = found.into_iter().rev().map(result).collect();
        let status = results.iter().map(|result| result.status).max()?;
        Some(Self {
            name: desc.name.to_owned(),
            group: desc.group,
            status,
            required,
            remedy: (status >= Status::Warn).then(|| desc.remedy.to_owned()),
            results,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::super::Place;
    use super::*;

    /// Returns a report of two ranks on each of two nodes: node-b may lock little memory, and rank
    /// 3 has few files.
    pub(in super::super) fn report(required: &[&str]) -> DoctorReport {
        let rank = |rank: usize| {
            let is_first = rank.is_multiple_of(2);
            let host = if rank < 2 { "node-a" } else { "node-b" };
            let place = Place { host: host.to_owned(), node: rank / 2, is_first_of_node: is_first };
            let memlock = match host {
                "node-a" => Finding::pass("unlimited"),
                _ => Finding::fail("8 MiB, no CAP_IPC_LOCK", "at least 1024 MiB"),
            };
            let files = match rank {
                3 => Finding::warn("300", "536 for safety"),
                _ => Finding::pass("1048576"),
            };
            let mut found = vec![Found::new("memlock", memlock), Found::new("open_files", files)];
            if is_first {
                found.push(Found::new("shm", Finding::pass(format!("{} MiB free", 900 + rank))));
                found.push(Found::new("rdma_ports", Finding::skip("no RDMA adapter")));
            }
            RankFindings { place, has_rdma: false, found }
        };
        let required: Vec<_> = required.iter().map(|name| (*name).to_owned()).collect();
        let together = vec![Found::new("clock", Finding::pass("at most 0.2 ms apart"))];
        let all: Vec<_> = (0..4).map(rank).collect();
        let required = Required::of(&required).unwrap();
        DoctorReport::new(&all, together, &required, Duration::from_millis(1500))
    }

    #[test]
    fn what_is_the_same_is_one_result_and_the_worst_is_first() {
        let report = report(&[]);
        assert_eq!((report.status, report.nodes), (Status::Fail, 2));
        let check = |name: &str| report.checks.iter().find(|check| check.name == name).unwrap();
        let memlock = check("memlock");
        assert_eq!((memlock.status, memlock.results.len()), (Status::Fail, 2));
        assert_eq!(memlock.results[0].ranks, [2, 3]);
        assert_eq!(memlock.results[0].hosts, ["node-b"]);
        assert!(memlock.remedy.as_ref().is_some_and(|text| text.contains("LimitMEMLOCK")));
        let files = check("open_files");
        assert_eq!((files.status, &files.results[0].ranks[..]), (Status::Warn, &[3][..]));
        assert_eq!(check("clock").results[0].ranks, [0, 1, 2, 3]);
        assert_eq!((check("shm").status, check("shm").remedy.as_ref()), (Status::Pass, None));
    }

    #[test]
    fn what_is_required_fails_where_it_warns_or_is_skipped() {
        let report = report(&["open_files", "rdma_ports", "shm"]);
        let status = |name: &str| {
            let mut checks = report.checks.iter().filter(|check| check.name == name);
            checks.next().map(|check| check.status).unwrap()
        };
        assert_eq!(status("open_files"), Status::Fail);
        assert_eq!(status("rdma_ports"), Status::Fail);
        assert_eq!(status("shm"), Status::Pass);
    }

    /// Compares the schema. To rewrite it:
    /// `YARDSTICK_UPDATE_GOLDEN=1 cargo test --profile testing --workspace doctor`.
    #[test]
    fn the_committed_schema_is_that_of_the_types() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/doctor.schema.json");
        let schema = schemars::schema_for!(DoctorReport);
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("YARDSTICK_UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(committed, text, "the report's types have changed");
    }
}
