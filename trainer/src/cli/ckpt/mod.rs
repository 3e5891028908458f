//! `yardstick ckpt`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint::tier::LocalTier;
use checkpoint::{Listed, Status, Store};
use clap::{Args, Subcommand};
use comfy_table::{Table, presets::NOTHING};
use serde_json::{Value, json};

use super::{print, print_json};
use crate::failure::{ExitCode, Failure, Outcome};

/// List or verify the checkpoints of a run.
#[derive(Debug, Args)]
pub(super) struct Ckpt {
    #[command(subcommand)]
    command: CkptCommand,
}

#[derive(Debug, Subcommand)]
enum CkptCommand {
    /// List the checkpoints and their state, newest first.
    Ls(Ls),
    /// Read a checkpoint and check every byte against its digests.
    Verify(Verify),
}

#[derive(Debug, Args)]
struct Ls {
    /// Folder of the run.
    #[arg(value_name = "RUN")]
    folder: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Verify {
    /// Folder of the run.
    #[arg(value_name = "RUN")]
    folder: PathBuf,
    /// Name of the checkpoint [default: the newest committed one].
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,
}

impl Ckpt {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        match self.command {
            CkptCommand::Ls(ls) => ls.run(),
            CkptCommand::Verify(verify) => verify.run(),
        }
    }
}

/// The checkpoints of a run. A missing folder is bad usage.
pub(super) fn store(folder: &Path) -> Outcome<Store> {
    let path = crate::run::Folder::new(folder).checkpoints();
    if !path.is_dir() {
        let message =
            format!("{}: expected a run's folder with checkpoints/ in it", folder.display());
        return Err(Failure::usage(message));
    }
    Store::find(Arc::new(LocalTier::new(path))).map_err(unusable)
}

/// Name of the newest committed checkpoint of a run.
pub(super) fn newest(store: &Store, folder: &Path) -> Outcome<String> {
    let newest = store.newest().map_err(unusable)?;
    newest.map(|newest| newest.name).ok_or_else(|| {
        let error = anyhow::anyhow!("{}: nothing is committed", folder.display());
        Failure::new(ExitCode::Checkpoint, error)
    })
}

fn unusable(error: checkpoint::Error) -> Failure {
    Failure::new(ExitCode::Checkpoint, error)
}

impl Ls {
    fn run(self) -> Outcome<ExitCode> {
        let listed = store(&self.folder)?.list().map_err(unusable)?;
        if self.json {
            return print_json(&listed.iter().map(row).collect::<Vec<_>>());
        }
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(["checkpoint", "step", "state", "ranks", "MiB"]);
        for checkpoint in &listed {
            let row = row(checkpoint);
            let text = |key: &str| match &row[key] {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let mebibytes = row["bytes"].as_u64().map(|n| n as f64 / f64::from(1 << 20));
            table.add_row([
                text("name"),
                text("step"),
                text("state"),
                text("ranks"),
                mebibytes.map_or(String::new(), |size| format!("{size:.1}")),
            ]);
        }
        print(table)
    }
}

fn row(listed: &Listed) -> Value {
    let (state, ranks, bytes) = match &listed.status {
        Status::Committed { world, bytes } => ("committed".to_owned(), Some(world), Some(bytes)),
        Status::Uncommitted => ("uncommitted".to_owned(), None, None),
        Status::Rejected => ("rejected".to_owned(), None, None),
        Status::Deleted => ("deleted".to_owned(), None, None),
        Status::Damaged(reason) => (format!("damaged: {reason}"), None, None),
        Status::Refused(reason) => (format!("refused: {reason}"), None, None),
        _ => ("unknown".to_owned(), None, None),
    };
    json!({
        "name": listed.name,
        "step": listed.step,
        "attempt": listed.attempt,
        "state": state,
        "ranks": ranks,
        "bytes": bytes,
    })
}

impl Verify {
    fn run(self) -> Outcome<ExitCode> {
        let store = store(&self.folder)?;
        let name = match self.checkpoint {
            Some(name) => name,
            None => newest(&store, &self.folder)?,
        };
        let report = store.verify(&name).map_err(unusable)?;
        if report.problems.is_empty() {
            return print(format!(
                "{name}: ok, {} files, {} chunks, {} bytes",
                report.files, report.chunks, report.bytes
            ));
        }
        for problem in &report.problems {
            print(format!("{name}: {problem}"))?;
        }
        let error = anyhow::anyhow!("{name}: {} problems", report.problems.len());
        Err(Failure::new(ExitCode::Checkpoint, error))
    }
}
