//! The table of what happened: each test writes its rows to a file, and e2e.sh puts them together.

use std::io::Write;

use serde_json::Value;

use crate::job::{Ended, Job};

/// Where a case stands in the table, and what it is called there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) position: usize,
    pub(crate) title: &'static str,
}

impl Case {
    /// Removes the rows of an earlier run.
    pub(crate) fn begin(self, job: &Job<'_>) {
        let _ = std::fs::remove_file(self.file(job));
    }

    /// Adds a row: what followed from `event`.
    pub(crate) fn add(self, job: &Job<'_>, event: &str, ended: &Ended) {
        let record = record_of(job);
        let Ended { code, status, seconds, .. } = ended;
        let sentence = ended.sentence().replace('|', "\\|");
        let row = format!(
            "| {} | {event} | {code} | {record} | {status} | {seconds:.1} | {sentence} |\n",
            self.title
        );
        let mut file = std::fs::File::options();
        let mut file = file.create(true).append(true).open(self.file(job)).unwrap();
        file.write_all(row.as_bytes()).unwrap();
    }

    fn file(self, job: &Job<'_>) -> std::path::PathBuf {
        let folder = job.cluster.folder().join("rows");
        std::fs::create_dir_all(&folder).unwrap();
        folder.join(format!("{:02}.md", self.position))
    }
}

/// The status in the record, where there is one.
fn record_of(job: &Job<'_>) -> String {
    let text = std::fs::read_to_string(job.run().join("record.json")).unwrap_or_default();
    let record: Value = serde_json::from_str(&text).unwrap_or_default();
    record["status"].as_str().unwrap_or("none").to_owned()
}
