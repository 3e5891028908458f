//! Table of the report: a line for results that are equal everywhere, and one for each place that
//! differs.

use std::collections::BTreeSet;
use std::fmt;

use comfy_table::{Table, presets};
use launch::doctor::Status;

use super::report::{CheckReport, CheckResult, DoctorReport};

/// Most hosts (where all is well) or results that are named; the rest is only counted.
const NAMED_MAX: usize = 4;

impl DoctorReport {
    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).force_no_tty();
        table.set_header(["check", "status", "where", "found", "expected"]);
        for check in &self.checks {
            table.add_rows(self.lines(check));
        }
        table
    }

    /// Returns a line for each result that warns or fails, unless many expect the same, and one for
    /// all other results of the same status.
    fn lines(&self, check: &CheckReport) -> Vec<[String; 5]> {
        let merged = |a: &CheckResult, b: &CheckResult| {
            a.status == b.status && (a.status < Status::Warn || a.expected == b.expected)
        };
        let mut results = check.results.clone();
        results.sort_by(|a, b| (b.status, &a.expected).cmp(&(a.status, &b.expected)));
        let mut lines = Vec::new();
        for group in results.chunk_by(merged) {
            if group[0].status >= Status::Warn && group.len() <= NAMED_MAX {
                lines.extend(group.iter().map(|result| self.line(check, result)));
            } else {
                lines.push(self.line(check, &together(group)));
            }
        }
        lines
    }

    fn line(&self, check: &CheckReport, result: &CheckResult) -> [String; 5] {
        let CheckResult { status, found, expected, .. } = result;
        let expected = expected.clone().unwrap_or_default();
        [check.name.clone(), status.to_string(), self.place(check, result), found.clone(), expected]
    }

    /// Returns the place of a result, as in `ranks 2-5, 8 (node-b)`. Hosts with a warning or
    /// failure are all named.
    fn place(&self, check: &CheckReport, result: &CheckResult) -> String {
        if check.results.iter().all(|other| other.status == result.status)
            && check.is_of_all_ranks(result)
        {
            return "all".to_owned();
        }
        let noun = if result.ranks.len() == 1 { "rank" } else { "ranks" };
        let hosts = match result.status >= Status::Warn {
            true => result.hosts.join(", "),
            false => named(&result.hosts, ", "),
        };
        format!("{noun} {} ({hosts})", ranges(&result.ranks))
    }

    /// Returns the remedies of checks that warn or fail.
    fn remedies(&self) -> impl Iterator<Item = String> {
        let remedy = |check: &CheckReport| {
            let text = check.remedy.as_ref()?;
            Some(format!("{}: {text}", check.name))
        };
        self.checks.iter().filter_map(remedy)
    }

    fn summary(&self) -> String {
        let of = |status| self.checks.iter().filter(|check| check.status == status).count();
        let counts = [Status::Pass, Status::Skip, Status::Warn, Status::Fail]
            .map(|status| format!("{} {}", of(status), status.to_string().to_lowercase()));
        let (ranks, nodes) = (self.hosts.len(), self.nodes);
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        format!(
            "{} on {ranks} rank{} of {nodes} node{} in {:.1} s",
            counts.join(", "),
            plural(ranks),
            plural(nodes),
            self.seconds
        )
    }
}

impl CheckReport {
    /// Returns whether a result is that of all ranks that ran the check.
    fn is_of_all_ranks(&self, result: &CheckResult) -> bool {
        let ranks: usize = self.results.iter().map(|result| result.ranks.len()).sum();
        result.ranks.len() == ranks
    }
}

/// Merges results that are alike into one.
fn together(merged: &[CheckResult]) -> CheckResult {
    let mut found: Vec<_> = merged.iter().map(|result| result.found.clone()).collect();
    found.sort();
    let mut ranks: Vec<_> = merged.iter().flat_map(|result| result.ranks.clone()).collect();
    ranks.sort_unstable();
    let hosts: BTreeSet<_> = merged.iter().flat_map(|result| result.hosts.clone()).collect();
    let hosts = hosts.into_iter().collect();
    CheckResult { found: named(&found, "; "), ranks, hosts, ..merged[0].clone() }
}

/// Formats numbers in ascending order, as in `2-5, 8`.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    runs.collect::<Vec<_>>().join(", ")
}

/// Names the first few, and counts the rest.
fn named(all: &[String], separator: &str) -> String {
    let shown = all.len().min(NAMED_MAX);
    let text = all[..shown].join(separator);
    match all.len() - shown {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

impl fmt::Display for DoctorReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.table().lines() {
            writeln!(formatter, "{}", line.trim_end())?;
        }
        writeln!(formatter)?;
        self.remedies().try_for_each(|remedy| writeln!(formatter, "to do: {remedy}"))?;
        write!(formatter, "{}", self.summary())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use launch::doctor::Finding;

    use super::super::catalog::Required;
    use super::super::report::tests::report;
    use super::super::{Found, Place, RankFindings};
    use super::*;

    #[test]
    fn a_check_that_all_pass_is_one_line_and_others_name_ranks_and_hosts() {
        let text = report(&[]).to_string();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = text.lines().map(words).collect();
        let expected = [
            "check status where found expected",
            "shm pass all 900 MiB free; 902 MiB free",
            "memlock FAIL ranks 2-3 (node-b) 8 MiB, no CAP_IPC_LOCK at least 1024 MiB",
            "memlock pass ranks 0-1 (node-a) unlimited",
            "open_files warn rank 3 (node-b) 300 536 for safety",
            "open_files pass ranks 0-2 (node-a, node-b) 1048576",
            "rdma_ports skip all no RDMA adapter",
            "clock pass all at most 0.2 ms apart",
        ];
        assert_eq!(lines[..expected.len()], expected);
        assert!(text.contains("\nto do: memlock: set LimitMEMLOCK=infinity"), "{text}");
        let summary = "2 pass, 1 skip, 1 warn, 1 fail on 4 ranks of 2 nodes in 1.5 s";
        assert!(text.ends_with(summary), "{text}");
    }
    #[test]
    fn on_hundreds_of_nodes_bad_ones_are_all_named_and_the_others_are_one_line() {
        let rank = |rank: usize| {
            let bad = matches!(rank, 7 | 100..=104);
            let shm = match bad {
                true => Finding::fail(format!("{rank} MiB"), "at least 128 MiB for 32 ranks"),
                false => Finding::pass(format!("{} MiB", 24_000 + rank)),
            };
            let host = format!("node-{rank:03}");
            let place = Place { host, node: rank, is_first_of_node: true };
            RankFindings { place, has_rdma: false, found: vec![Found::new("shm", shm)] }
        };
        let all: Vec<_> = (0..512).map(rank).collect();
        let took = Duration::from_secs(1);
        let text = DoctorReport::new(&all, Vec::new(), &Required::default(), took).to_string();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = text.lines().map(words).collect();
        assert_eq!(
            lines[1],
            "shm FAIL ranks 7, 100-104 (node-007, node-100, node-101, node-102, node-103, \
             node-104) 100 MiB; 101 MiB; 102 MiB; 103 MiB and 2 more at least 128 MiB for 32 ranks"
        );
        assert!(lines[2].starts_with("shm pass ranks 0-6, 8-99, 105-511 (node-000, "), "{text}");
        assert!(lines[2].ends_with("and 502 more"), "{text}");
        assert_eq!(lines[3], "");
    }
}
