//! `yardstick export`.

use std::path::{Path, PathBuf};

use checkpoint::Store;
use clap::Args;

use super::ckpt::RunTiers;
use super::print;
use record::ExitCode;
use record::Record;
use trainer::config::Config;
use trainer::failure::{Failure, Outcome};
use trainer::hugging_face;

/// Attempts to read the newest checkpoint, which a run in progress may remove meanwhile.
const TRIES: usize = 10;

/// Export the weights of a run to a Hugging Face folder.
///
/// The folder has `config.json` and `model.safetensors`, in f32. `GPT2LMHeadModel` and
/// `LlamaForCausalLM` load it, and so does `yardstick train --init-from`.
#[derive(Debug, Args)]
pub(super) struct Export {
    /// Folder of the run, or of one of its checkpoints.
    #[arg(value_name = "RUN")]
    folder: PathBuf,
    /// Folder to write; it must be empty or not exist.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Name of the checkpoint [default: the newest committed one].
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,
}

impl Export {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let (run, named) = self.source()?;
        let tiers = RunTiers::open(run)?;
        let store = &tiers.most_recent_shared()?.store;
        let config = Config::of_run(run)?;
        let model = &config.workload.model;
        let exported = from_active_run(
            named,
            || newest(store, run),
            |checkpoint| store.holds(checkpoint).unwrap_or(false),
            |checkpoint| hugging_face::export(store, checkpoint, model, &self.out),
        )?;
        let workload = Record::read(run).ok().map(|record| format!(" of {}", record.workload.name));
        print(format!(
            "{}: {} tensors, {} bytes,{} after step {}",
            self.out.display(),
            exported.tensors,
            exported.bytes,
            workload.unwrap_or_default(),
            exported.step
        ))
    }

    /// Returns the folder of the run, and the name of the checkpoint if the path or --checkpoint
    /// has one.
    fn source(&self) -> Outcome<(&Path, Option<String>)> {
        let is_run = self.folder.join("checkpoints").is_dir();
        let parent = self.folder.parent().filter(|parent| parent.ends_with("checkpoints"));
        let parent = parent.filter(|_| !is_run);
        let (Some(run), Some(name)) = (parent.and_then(Path::parent), self.folder.file_name())
        else {
            return Ok((&self.folder, self.checkpoint.clone()));
        };
        if self.checkpoint.is_some() {
            let shown = self.folder.display();
            return Err(Failure::usage(format!("{shown}: a checkpoint, and --checkpoint as well")));
        }
        Ok((run, Some(name.to_string_lossy().into_owned())))
    }
}

fn newest(store: &Store, folder: &Path) -> Outcome<String> {
    let newest = store.newest().map_err(|error| Failure::new(ExitCode::Checkpoint, error))?;
    newest.map(|newest| newest.name).ok_or_else(|| {
        let error = anyhow::anyhow!("{}: nothing is committed", folder.display());
        Failure::new(ExitCode::Checkpoint, error)
    })
}

/// Reads a checkpoint of a run that may still be training and may remove it meanwhile. If it is
/// removed, reads the newest one at that time; if it was named, returns an error.
fn from_active_run<T>(
    named: Option<String>,
    newest: impl Fn() -> Outcome<String>,
    holds: impl Fn(&str) -> bool,
    read: impl Fn(&str) -> Outcome<T>,
) -> Outcome<T> {
    let tries = if named.is_some() { 1 } else { TRIES };
    let mut last = None;
    for _ in 0..tries {
        let checkpoint = named.clone().map_or_else(&newest, Ok)?;
        // The newest checkpoint existed when it was found.
        let existed = named.is_none() || holds(&checkpoint);
        let removed = |failure: &Failure| {
            failure.code == ExitCode::Checkpoint && existed && !holds(&checkpoint)
        };
        match read(&checkpoint) {
            Err(failure) if removed(&failure) => last = Some((checkpoint, failure)),
            outcome => return outcome,
        }
    }
    let (checkpoint, failure) = last.expect("tried at least once");
    let tries =
        if tries > 1 { format!(", as it did with {} others", tries - 1) } else { String::new() };
    Err(failure.context(format!(
        "{checkpoint}: the run removed it while it was read{tries}\n  \
         hint: export the newest, or train with a larger checkpoint.keep"
    )))
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// Reads checkpoints that are removed meanwhile, except for read number `sound`.
    fn read(named: Option<&str>, sound: usize) -> (Outcome<String>, usize) {
        read_failing(ExitCode::Checkpoint, named, sound)
    }

    fn read_failing(code: ExitCode, named: Option<&str>, sound: usize) -> (Outcome<String>, usize) {
        let there = RefCell::new("s1".to_owned());
        let reads = Cell::new(0);
        let outcome = from_active_run(
            named.map(str::to_owned),
            || Ok(there.borrow().clone()),
            |name| *there.borrow() == name,
            |name| {
                reads.set(reads.get() + 1);
                if reads.get() == sound {
                    return Ok(name.to_owned());
                }
                *there.borrow_mut() = format!("s{}", reads.get() + 1);
                Err(Failure::new(code, anyhow::anyhow!("No such file")))
            },
        );
        (outcome, reads.get())
    }

    #[test]
    fn the_newest_may_be_removed_before_it_is_read() {
        let reads = Cell::new(0);
        let read = |name: &str| {
            reads.set(reads.get() + 1);
            let gone = || Failure::new(ExitCode::Checkpoint, anyhow::anyhow!("No such file"));
            if reads.get() > 1 { Ok(name.to_owned()) } else { Err(gone()) }
        };
        let newest = || Ok("s1".to_owned());
        assert_eq!(from_active_run(None, newest, |_| false, read).unwrap(), "s1");
    }

    #[test]
    fn a_failure_of_another_kind_is_returned_unchanged() {
        let (outcome, reads) = read_failing(ExitCode::Usage, None, 2);
        assert_eq!((outcome.unwrap_err().to_string().as_str(), reads), ("No such file", 1));
    }

    #[test]
    fn the_next_newest_is_read_when_the_run_removes_the_newest() {
        assert_eq!(read(None, 3).0.unwrap(), "s3");
        let (outcome, reads) = read(None, TRIES + 1);
        let failure = outcome.unwrap_err();
        assert_eq!((failure.code, reads), (ExitCode::Checkpoint, TRIES));
        let message = failure.to_string();
        assert!(message.starts_with(&format!("s{TRIES}: the run removed it")), "{message}");
    }

    #[test]
    fn a_named_checkpoint_that_was_removed_is_an_error() {
        let (outcome, reads) = read(Some("s1"), 2);
        let message = outcome.unwrap_err().to_string();
        assert!(message.starts_with("s1: the run removed it while it was read\n"), "{message}");
        assert!(message.ends_with("No such file"), "{message}");
        assert_eq!(reads, 1);
        let never = read(Some("s9"), 2).0.unwrap_err().to_string();
        assert_eq!(never, "No such file", "it was not there before either");
    }
}
