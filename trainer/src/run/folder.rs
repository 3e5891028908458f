//! Folder of a run: its layout, and the checks before this run may use it.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use checkpoint::tier::LocalTier;
use chrono::Utc;
use record::files::{self, IoError, Mode, Published, create_folders, regular_file, sync_parent};
use serde::{Deserialize, Serialize};

use super::options::RunOptions;
use super::stop::target_loss;
use crate::checkpoints::tiers::{self};
use crate::config::Variables;
use crate::failure::{self, Failure, Outcome};
use record::ExitCode;
use record::benchmark_file;
use record::limits::NOTE_BYTES_MAX;
use record::text::in_user_words;
use record::{Attempt, IDENTITY, Record, Status, TargetLoss, read_steps, steps_path};

/// Folder `DIR/{config.toml, record.json, attempts/, steps/, checkpoints/}`; in a Kubernetes job
/// also the benchmark file that the job was rendered from.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    /// Lock that rank 0 holds until its process ends, so that no second run writes to the folder.
    lock: Option<File>,
}

/// Time to wait for a lock that another process holds.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Content of `identity.json`: the run that the folder belongs to. Written once, before any other
/// file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunIdentity {
    /// Random id, so that two runs of one workload differ even if their files are moved.
    pub(super) run: String,
    /// Workload id.
    pub(super) workload: String,
}

impl RunIdentity {
    fn random(workload: &str) -> Result<Self, IoError> {
        let source = Path::new("/dev/urandom");
        let mut bytes = [0; 8];
        File::open(source)
            .and_then(|mut random| random.read_exact(&mut bytes))
            .map_err(IoError::at(source, "read"))?;
        let run = format!("{:016x}", u64::from_le_bytes(bytes));
        Ok(Self { run, workload: workload.to_owned() })
    }
}

/// Newest checkpoint that an attempt has recorded as committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Committed {
    attempt: u32,
    step: u64,
}

impl Committed {
    /// Returns a warning if a run resumes from an older checkpoint.
    pub(super) fn warning(&self, resumed_after_step: u64) -> Option<String> {
        let Self { attempt, step } = self;
        (resumed_after_step < *step).then(|| {
            format!(
                "resumes from the checkpoint of step {resumed_after_step}, although attempt \
                 {attempt} has committed one of step {step}: it was removed, or a tier does not \
                 show it; the steps between are repeated"
            )
        })
    }
}

/// Result of preparing a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Prepared {
    /// The folder is ready for an attempt.
    Attempt {
        /// Number of the attempt, from 1.
        number: u32,
        /// Id of the run.
        run: String,
        /// Newest checkpoint that earlier attempts have recorded as committed.
        committed: Option<Committed>,
    },
    /// The run is complete already.
    Complete,
}

/// Returns a name with the current time in UTC, as in `smoke-2026-11-25T02-00-07Z`.
pub fn dated(name: &str) -> String {
    format!("{name}-{}", Utc::now().format("%Y-%m-%dT%H-%M-%SZ"))
}

/// Returns the error of an unusable folder: a usage error, or one of the environment if the system
/// refuses the folder to this process.
fn refused(error: impl Into<anyhow::Error>) -> Failure {
    let error = error.into();
    let is_by_system = failure::is_refused_by_system(&error);
    let code = if is_by_system { ExitCode::Environment } else { ExitCode::Usage };
    Failure::new(code, error)
}

/// Returns the number of the attempt after these, the last of which is the newest.
fn next_number(attempts: &[Attempt]) -> anyhow::Result<u32> {
    let Some(newest) = attempts.last().map(|attempt| attempt.number) else { return Ok(1) };
    newest.checked_add(1).with_context(|| {
        format!("attempts/: expected numbers of attempts below {newest}, found {newest}")
    })
}

impl Folder {
    /// Names the folder at a path, which may not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), lock: None }
    }

    /// Creates a unique folder under `runs/`, for a run without `--out`.
    pub(super) fn create_new(workload: &str) -> Outcome<Self> {
        let parent = Path::new("runs");
        create_folders(parent, Mode::Run)?;
        let name = dated(workload);
        let further = (2..).map(|number| format!("{name}-{number}"));
        for name in std::iter::once(name.clone()).chain(further) {
            let root = parent.join(name);
            match DirBuilder::new().mode(Mode::Run.folder()).create(&root) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                created => {
                    created.map_err(IoError::at(&root, "create"))?;
                    sync_parent(&root)?;
                    return Ok(Self::new(root));
                }
            }
        }
        unreachable!("there is always one more name")
    }

    /// Returns the path of the folder.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of the checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// Returns the identity of the run, if this is the folder of a run.
    pub fn stored_identity(&self) -> Option<checkpoint::Identity> {
        let bytes = regular_file::read(&self.identity_path(), NOTE_BYTES_MAX).ok()?;
        let RunIdentity { run, workload } = serde_json::from_slice(&bytes).ok()?;
        Some(checkpoint::Identity::new(&run, &workload))
    }

    fn identity_path(&self) -> PathBuf {
        self.root.join(IDENTITY)
    }

    /// Returns whether the folder holds anything, except leftovers of a process that was killed
    /// before it had written the identity.
    fn is_occupied(&self) -> bool {
        let is_temporary = |name: &str| name.starts_with("identity.") && name.ends_with(".tmp");
        let is_leftover = |name: &OsStr| name == "lock" || name.to_str().is_some_and(is_temporary);
        let entries = std::fs::read_dir(&self.root).into_iter().flatten();
        entries.flatten().any(|entry| !is_leftover(&entry.file_name()))
    }

    /// Prepares the folder for another attempt of a workload, unless the run is complete already.
    ///
    /// The identity is written first, atomically, and while the lock is held, so that after a kill
    /// at any point the same command accepts the folder (on file systems without hard links there
    /// is a short window in which a kill prevents that).
    ///
    /// # Errors
    /// Exit code 2 if the folder holds another workload, or with `fresh` anything at all; 3 if the
    /// system refuses it; 6 if its checkpoints are gone.
    pub(super) fn prepare(
        &mut self,
        options: &RunOptions,
        workload_id: &str,
        last_step: u64,
    ) -> Outcome<Prepared> {
        if self.root.to_str().is_none() {
            let what = "expected a path in UTF-8, which can be sent to all ranks";
            return Err(self.unusable(anyhow::anyhow!(what)));
        }
        let existing_identity = |folder: &Self| -> Outcome<Option<RunIdentity>> {
            if !folder.is_occupied() {
                return Ok(None);
            }
            if options.fresh {
                return Err(folder.unusable(anyhow::anyhow!(
                    "--fresh expects an empty folder, and this one is not\n  \
                      hint: name a new folder, or omit --fresh to resume"
                )));
            }
            folder.check_identity(workload_id).map(Some)
        };
        if existing_identity(self)?.is_some() && self.is_complete(options, last_step) {
            if options.refuse_complete {
                let what = "measured completely before\n  hint: name a new folder";
                return Err(self.unusable(anyhow::anyhow!(what)));
            }
            return Ok(Prepared::Complete);
        }
        create_folders(&self.root, Mode::Run).map_err(|error| self.unusable(error))?;
        self.lock()?;
        // Checked again: another process may have written an identity before this process had the
        // lock.
        let identity = loop {
            if let Some(found) = existing_identity(self)? {
                break found;
            }
            if let Some(own) = self.claim(workload_id).map_err(|error| self.unusable(error))? {
                break own;
            }
        };
        let attempts = Attempt::read_all(&self.root).map_err(|error| self.unusable(error))?;
        let committed = |attempt: &Attempt| {
            let step = attempt.committed_step?;
            Some(Committed { attempt: attempt.number, step })
        };
        let committed = attempts.iter().rev().find_map(committed);
        // With other tiers, the resume checks this.
        let folder = self.checkpoints();
        let tiers = tiers::planned(
            &options.config.settings.checkpoint,
            Variables::read(),
            &folder,
            &identity.run,
        );
        if tiers.iter().all(|tier| Path::new(&tier.address) == folder)
            && let Some(committed) = &committed
            && !checkpoint::holds_any(&LocalTier::new(&folder))?
        {
            let places = folder.display().to_string();
            return Err(self.checkpoint_is_missing(committed, &places));
        }
        let text = options.config.to_toml();
        let path = self.root.join("config.toml");
        files::replace(&path, text.as_bytes()).map_err(|error| self.unusable(error))?;
        if let Some(benchmark) = benchmark_file::of_environment()? {
            let path = self.root.join("benchmark.toml");
            files::replace(&path, benchmark.text.as_bytes())
                .map_err(|error| self.unusable(error))?;
        }
        let number = next_number(&attempts).map_err(|error| self.unusable(error))?;
        Ok(Prepared::Attempt { number, run: identity.run, committed })
    }

    fn unusable(&self, error: impl Into<anyhow::Error>) -> Failure {
        let place = format!("--out {}", self.root.display());
        refused(error).context(place)
    }

    /// Returns the error of a run that would restart at step 1 although an earlier attempt had a
    /// committed checkpoint: that would overwrite the steps and record of a run whose checkpoints
    /// may just not be mounted.
    pub(super) fn checkpoint_is_missing(&self, committed: &Committed, places: &str) -> Failure {
        let Committed { attempt, step } = committed;
        let error = anyhow::anyhow!(
            "--out {}: expected a checkpoint in {places}, because attempt {attempt} had one of \
             step {step}, found none\n  hint: mount or restore the checkpoints; to start \
             at step 1, name a new folder (--out NEW --fresh)",
            self.root.display()
        );
        Failure::new(ExitCode::Checkpoint, error)
    }

    /// Writes the identity of a new run, unless another process was first (on file systems without
    /// locks).
    fn claim(&self, workload_id: &str) -> anyhow::Result<Option<RunIdentity>> {
        let own = RunIdentity::random(workload_id)?;
        let text = serde_json::to_vec(&own)?;
        let published = files::publish(&self.identity_path(), &text)?;
        Ok((published == Published::Ours).then_some(own))
    }

    /// Locks the folder for this process, if the file system has locks.
    fn lock(&mut self) -> Outcome<()> {
        if self.lock_soon()? {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "--out {}: another run is writing to this folder\n  hint: wait for it, or name a new \
             folder",
            self.root.display()
        )))
    }

    /// Locks the folder for as long as this value lives, if the file system has locks. Returns
    /// false if another process holds the lock for longer than a process that asks whether the run
    /// is dead.
    ///
    /// # Errors
    /// If the lock file cannot be opened.
    pub fn lock_soon(&mut self) -> Outcome<bool> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        while !self.try_lock()? {
            if Instant::now() > deadline {
                return Ok(false);
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        Ok(true)
    }

    /// Locks the folder for as long as this value lives, if the file system has locks. Returns
    /// whether no other process has locked it.
    ///
    /// # Errors
    /// If the lock file cannot be opened.
    pub fn try_lock(&mut self) -> Outcome<bool> {
        let path = self.root.join("lock");
        let file = regular_file::open_to_append(&path, Mode::Run).map_err(refused)?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Ok(false);
        }
        self.lock = Some(file);
        Ok(true)
    }

    /// Returns whether the recorded run has reached this step, its target loss, or enough steady
    /// steps.
    fn is_complete(&self, options: &RunOptions, last_step: u64) -> bool {
        let Ok(record) = Record::read(&self.root) else { return false };
        let Some(steps) = record.steps.filter(|_| record.status == Status::Complete) else {
            return false;
        };
        let has_measured = |wanted: u64| steps.is_steady && steps.measured >= wanted;
        steps.completed >= last_step
            || options.steady_steps.is_some_and(has_measured)
            || target_loss(options).is_some_and(|target| self.has_reached(target))
    }

    /// Returns whether a step on file has reached this loss. The record has only the last losses,
    /// and not every step has a held-out loss.
    fn has_reached(&self, target: TargetLoss) -> bool {
        let Ok(lines) = read_steps(&steps_path(&self.root, 0)) else { return false };
        let mut samples = lines.map_while(Result::ok).map(|line| line.sample);
        samples.any(|sample| target.is_reached(sample.loss, sample.evaluation_loss))
    }

    fn check_identity(&self, workload_id: &str) -> Outcome<RunIdentity> {
        let shown = self.root.display();
        let path = self.identity_path();
        let bytes = regular_file::read(&path, NOTE_BYTES_MAX);
        let bytes = bytes.map_err(|error| match error.source.kind() {
            ErrorKind::NotFound => Failure::usage(format!(
                "--out {shown}: not empty, and not the folder of a run\n  hint: name a new folder"
            )),
            _ => self.unusable(error),
        })?;
        let found: RunIdentity = serde_json::from_slice(&bytes).map_err(|error| {
            Failure::usage(format!(
                "--out {shown}: expected the run's id in identity.json, found {} bytes that are \
                 not valid ({})\n  hint: if a run was killed while it wrote the file, nothing \
                 is lost: name a new folder, or remove the file",
                bytes.len(),
                in_user_words(&error.to_string())
            ))
        })?;
        if found.workload != workload_id {
            return Err(Failure::usage(format!(
                "--out {shown}: holds a run of workload {}, expected {workload_id}\n  \
                 hint: the configuration of the workload has changed; name a new folder",
                found.workload
            )));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_concurrent_starts_without_locks_one_writes_the_identity() {
        let folder = tempfile::tempdir().unwrap();
        let identities = std::thread::scope(|scope| {
            let claim = || Folder::new(folder.path()).claim("6ad31c0f9e21").unwrap();
            let claims: Vec<_> = (0..8).map(|_| scope.spawn(claim)).collect();
            claims.into_iter().filter_map(|it| it.join().unwrap()).collect::<Vec<_>>()
        });
        let found = Folder::new(folder.path()).check_identity("6ad31c0f9e21").unwrap();
        assert_eq!(identities, [found]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
