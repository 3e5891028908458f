//! Log file for the operator, beside stderr: a pod's log is gone with its pod.

use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use chrono::{SecondsFormat, Utc};
use device::threads;

use super::say;

/// Time that the end of a process waits for unwritten lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Log file to which a thread of its own appends lines, since storage may hang.
#[derive(Debug)]
pub(super) struct LogFile {
    /// Present until the end.
    lines: Option<Sender<String>>,
    /// Disconnected once everything is written.
    written: Receiver<()>,
}

impl LogFile {
    /// Starts to create the file and its folders; if that fails, stderr says so.
    pub(super) fn new(path: PathBuf) -> Self {
        let (lines, received) = mpsc::channel();
        let (end, written) = mpsc::channel();
        let shown = path.display().to_string();
        let complain = move |error: &dyn Display| say("launch", &format!("--log {shown}: {error}"));
        let write = {
            let complain = complain.clone();
            move || {
                append(&path, &received).unwrap_or_else(|error| complain(&error));
                drop(end);
            }
        };
        if let Err(error) = threads::spawn("log-file", write) {
            complain(&error);
        }
        Self { lines: Some(lines), written }
    }

    pub(super) fn say(&self, line: &str) {
        if let Some(lines) = &self.lines {
            let now = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
            // Fails if the file could not be created.
            let _ = lines.send(format!("{now} {line}\n"));
        }
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        self.lines = None;
        let _ = self.written.recv_timeout(FLUSH_TIMEOUT);
    }
}

fn append(path: &Path, lines: &Receiver<String>) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    lines.iter().try_for_each(|line| file.write_all(line.as_bytes()))
}
