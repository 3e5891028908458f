//! `yardstick report`.

use std::path::PathBuf;

use clap::Args;

use super::{print, print_json};
use crate::failure::{ExitCode, Failure, Outcome};

/// Summarize a run: speed, time per phase, loss, checkpoints.
#[derive(Debug, Args)]
pub(super) struct Report {
    /// Folder of the run.
    #[arg(value_name = "RUN")]
    folder: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Report {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let report = crate::report::report(&self.folder)
            .map_err(|error| Failure::new(ExitCode::Usage, error))?;
        if self.json { print_json(&report) } else { print(report) }
    }
}
