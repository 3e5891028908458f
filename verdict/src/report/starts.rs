//! Time to the first step: of the first start, and of each recovery.

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Serialize;

use record::{Attempt, PodTimes, StartParts};

/// Maximum number of attempts that fit into 80 columns: the first, and the newest.
const COLUMNS_MAX: usize = 5;

/// Time to the first step of an attempt, as far as it is known.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Start {
    /// Number of the attempt.
    pub attempt: u32,
    /// Times from the creation of pods until their ssh servers listened.
    pub pods: Option<PodTimes>,
    /// Times from the launcher, or from the process of rank 0, to the end of the first step.
    pub start: Option<StartParts>,
}

/// A part of the time, and its source.
struct Part {
    name: &'static str,
    seconds: Option<f64>,
    origin: Origin,
}

/// Source of a part.
#[derive(PartialEq)]
enum Origin {
    Pods,
    Launcher,
    Rank,
}

impl Start {
    /// Returns the start of an attempt.
    pub fn of(attempt: &Attempt) -> Self {
        Self { attempt: attempt.number, pods: attempt.pods, start: attempt.start }
    }

    /// Time since the start of the launcher, or of rank 0: pods may start at the same time.
    fn total_seconds(&self) -> Option<f64> {
        let launch = self.start?.launch.map(|parts| parts.hosts_seconds + parts.mpirun_seconds);
        Some(launch.unwrap_or(0.0) + self.start?.total_seconds())
    }

    /// Parts in chronological order.
    fn parts(&self) -> [Part; 11] {
        let Self { pods, start, .. } = self;
        let launch = start.and_then(|start| start.launch);
        let of_pods = |name, part: fn(&PodTimes) -> Option<f64>| {
            let seconds = pods.as_ref().and_then(part);
            Part { name, seconds, origin: Origin::Pods }
        };
        let of_launcher = |name, seconds| Part { name, seconds, origin: Origin::Launcher };
        let of_rank = |name, part: fn(&StartParts) -> f64| Part {
            name,
            seconds: start.as_ref().map(part),
            origin: Origin::Rank,
        };
        [
            of_pods("queued", |pods| pods.queued_seconds),
            of_pods("scheduled", |pods| pods.scheduled_seconds),
            of_pods("sandbox", |pods| pods.sandbox_seconds),
            of_pods("image", |pods| pods.image_seconds),
            of_pods("ssh ready", |pods| pods.ssh_ready_seconds),
            of_launcher("hosts ready", launch.map(|launch| launch.hosts_seconds)),
            of_launcher("mpirun", launch.map(|launch| launch.mpirun_seconds)),
            of_rank("bootstrap", |start| start.bootstrap_seconds),
            of_rank("wire-up", |start| start.wire_up_seconds),
            of_rank("restore", |start| start.restore_seconds),
            of_rank("first step", |start| start.first_step_seconds),
        ]
    }
}

/// Builds rows with headings: a row for each part, a column for each attempt, in seconds. Parts of
/// pods and of the launcher are omitted if no attempt has them.
pub(super) fn rows(starts: &[Start]) -> Vec<Vec<String>> {
    let hidden = starts.len().saturating_sub(COLUMNS_MAX);
    let shown: Vec<_> = starts.iter().take(1).chain(starts.iter().skip(1 + hidden)).collect();
    let is_recorded = |origin: &Origin| match origin {
        Origin::Pods => shown.iter().any(|start| start.pods.is_some()),
        Origin::Launcher => {
            shown.iter().any(|start| start.start.is_some_and(|parts| parts.launch.is_some()))
        }
        Origin::Rank => true,
    };
    let attempts = shown.iter().map(|start| format!("attempt {}", start.attempt));
    let mut rows = vec![std::iter::once("start, s".to_owned()).chain(attempts).collect()];
    let columns: Vec<_> = shown.iter().map(|start| start.parts()).collect();
    for (index, part) in columns.first().into_iter().flatten().enumerate() {
        if is_recorded(&part.origin) {
            let cells = columns.iter().map(|parts| cell(parts[index].seconds));
            rows.push(std::iter::once(part.name.to_owned()).chain(cells).collect());
        }
    }
    let totals = shown.iter().map(|start| cell(start.total_seconds()));
    rows.push(std::iter::once("total".to_owned()).chain(totals).collect());
    rows
}

fn cell(seconds: Option<f64>) -> String {
    seconds.map_or("null".to_owned(), |seconds| format!("{seconds:.1}"))
}

/// Builds a table of these rows.
pub fn table(starts: &[Start]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).force_no_tty();
    let right = |text: &String| Cell::new(text).set_alignment(CellAlignment::Right);
    let rows = rows(starts);
    let mut rows = rows.iter().map(|row| row.iter().map(right).collect::<Vec<_>>());
    if let Some(headings) = rows.next() {
        table.set_header(headings);
    }
    table.add_rows(rows);
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::fixtures::finished;

    #[test]
    fn of_many_attempts_the_first_and_the_newest_are_shown() {
        let first = finished().attempts[0].clone();
        let starts: Vec<_> =
            (1..=9).map(|number| Start { attempt: number, ..Start::of(&first) }).collect();
        let headings = rows(&starts)[0].join(", ");
        assert_eq!(headings, "start, s, attempt 1, attempt 6, attempt 7, attempt 8, attempt 9");
    }

    #[test]
    fn what_was_not_asked_is_left_out_and_what_is_not_known_is_null() {
        let mut attempts = finished().attempts;
        attempts[1].start = None;
        let mut starts: Vec<_> = attempts.iter().map(Start::of).collect();
        let all = rows(&starts);
        assert_eq!(all.len(), 13);
        assert_eq!(all[12], ["total", "2.5", "null"]);
        assert_eq!(all[1], ["queued", "null", "null"]);
        assert_eq!(all[2], ["scheduled", "12.0", "null"]);
        assert_eq!(all[6], ["hosts ready", "1.5", "null"]);
        starts[0].pods = None;
        starts[0].start.as_mut().unwrap().launch = None;
        assert_eq!(rows(&starts)[1], ["bootstrap", "0.1", "null"]);
    }
}
