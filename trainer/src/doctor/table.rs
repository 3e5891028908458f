//! The report as a table: a line for what is the same everywhere, and one for each place that
//! differs.

use std::fmt;

use comfy_table::{Table, presets};
use launch::doctor::Status;

use super::report::{CheckReport, CheckResult, DoctorReport};

/// Hosts, ranks or results that are named before the rest is only counted.
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

    /// One line where all results have the same status.
    fn lines(&self, check: &CheckReport) -> Vec<[String; 5]> {
        let quiet = check.results.iter().all(|result| result.status < Status::Warn);
        if quiet && check.results.iter().all(|result| result.status == check.status) {
            let found: Vec<_> =
                check.results.iter().rev().map(|result| result.found.clone()).collect();
            let everywhere = "all".to_owned();
            let status = check.status.to_string();
            return vec![[check.name.clone(), status, everywhere, named(&found), String::new()]];
        }
        let line = |result: &CheckResult| {
            let expected = result.expected.clone().unwrap_or_default();
            let place = self.place(result);
            [check.name.clone(), result.status.to_string(), place, result.found.clone(), expected]
        };
        check.results.iter().map(line).collect()
    }

    /// As in `ranks 2, 3 (node-b)`.
    fn place(&self, result: &CheckResult) -> String {
        if result.ranks.len() == self.hosts.len() {
            return "all".to_owned();
        }
        let ranks: Vec<_> = result.ranks.iter().map(ToString::to_string).collect();
        let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
        format!("{noun} {} ({})", named(&ranks), named(&result.hosts))
    }

    /// What to do about what is not as it should be.
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

/// The first of several, and how many more there are.
fn named(all: &[String]) -> String {
    let shown = all.len().min(NAMED_MAX);
    let text = all[..shown].join(", ");
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
    use super::super::report::tests::report;

    #[test]
    fn a_check_that_all_pass_is_one_line_and_others_name_ranks_and_hosts() {
        let text = report(&[]).to_string();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = text.lines().map(words).collect();
        let expected = [
            "check status where found expected",
            "shm pass all 900 MiB free, 902 MiB free",
            "memlock FAIL ranks 2, 3 (node-b) 8 MiB, no CAP_IPC_LOCK at least 1024 MiB",
            "memlock pass ranks 0, 1 (node-a) unlimited",
            "open_files warn rank 3 (node-b) 300 536 for safety",
            "open_files pass ranks 0, 1, 2 (node-a, node-b) 1048576",
            "rdma_ports skip all no RDMA adapter",
            "clock pass all at most 0.2 ms apart",
        ];
        assert_eq!(lines[..expected.len()], expected);
        assert!(text.contains("\nto do: memlock: set LimitMEMLOCK=infinity"), "{text}");
        let summary = "2 pass, 1 skip, 1 warn, 1 fail on 4 ranks of 2 nodes in 1.5 s";
        assert!(text.ends_with(summary), "{text}");
    }
}
