//! Table of the outcomes: each test writes its rows to a file, and e2e.sh combines them.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::job::{Ended, Job};

/// Position and title of a case in the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) position: usize,
    pub(crate) title: &'static str,
}

/// Outcome of an event.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    pub(crate) event: &'a str,
    /// Exit code of the launcher, or of the task that judged.
    pub(crate) code: i64,
    /// The run's folder.
    pub(crate) run: &'a Path,
    /// Status that the controller reports.
    pub(crate) status: &'a str,
    pub(crate) seconds: f64,
    pub(crate) sentence: &'a str,
}

impl Case {
    /// Removes the rows of an earlier run.
    pub(crate) fn begin(self, cluster: &Cluster) {
        let _ = std::fs::remove_file(self.file(cluster));
    }

    /// Adds a row: how a job ended after an event.
    pub(crate) fn add(self, job: &Job<'_>, event: &str, ended: &Ended) {
        let row = Row {
            event,
            code: ended.code,
            run: &job.run(),
            status: &ended.status,
            seconds: ended.seconds,
            sentence: ended.sentence(),
        };
        self.write(job.cluster, &row);
    }

    pub(crate) fn write(self, cluster: &Cluster, row: &Row<'_>) {
        let Row { event, code, run, status, seconds, sentence } = row;
        let record = record_of(run);
        let sentence = sentence.replace('|', "\\|");
        let title = self.title;
        let row = format!(
            "| {title} | {event} | {code} | {record} | {status} | {seconds:.1} | {sentence} |\n"
        );
        let mut file = std::fs::File::options();
        let mut file = file.create(true).append(true).open(self.file(cluster)).unwrap();
        file.write_all(row.as_bytes()).unwrap();
    }

    fn file(self, cluster: &Cluster) -> PathBuf {
        let folder = cluster.folder().join("rows");
        std::fs::create_dir_all(&folder).unwrap();
        folder.join(format!("{:02}.md", self.position))
    }
}

/// The status in the record, where there is one.
fn record_of(run: &Path) -> String {
    let text = std::fs::read_to_string(run.join("record.json")).unwrap_or_default();
    let record: Value = serde_json::from_str(&text).unwrap_or_default();
    record["status"].as_str().unwrap_or("none").to_owned()
}
