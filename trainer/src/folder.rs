//! A run's folder: what lies where, and whether this run may use it.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use checkpoint::Published;
use serde::{Deserialize, Serialize};

use crate::durability::checkpoint_failure;
use crate::failure::{ExitCode, Failure, Outcome};
use crate::record::{Attempt, Record, Status, atomic};
use crate::run::RunOptions;

/// `DIR/{config.toml, record.json, attempts/, steps/, checkpoints/}`.
#[derive(Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    /// Held by rank 0 while it lives, so that no second run writes here.
    lock: Option<File>,
}

/// `identity.json`: whose folder this is. The first file that is written, and never again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunIdentity {
    /// Random, so that two runs of one workload are told apart wherever their files go.
    pub(crate) run: String,
    /// Workload id.
    pub(crate) workload: String,
}

impl RunIdentity {
    fn draw(workload: &str) -> std::io::Result<Self> {
        let mut bytes = [0; 8];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let run = format!("{:016x}", u64::from_le_bytes(bytes));
        Ok(Self { run, workload: workload.to_owned() })
    }
}

/// What a folder is ready for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Prepared {
    /// An attempt of this number, from 1, of this run.
    Attempt {
        /// From 1.
        number: u32,
        /// Id of the run.
        run: String,
    },
    /// Nothing is left to do.
    Complete,
}

impl Folder {
    /// The folder at a path, which need not exist yet.
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), lock: None }
    }

    /// A new folder under `runs/` for a run without `--out`: nobody else gets the same one.
    pub(crate) fn create_new(workload: &str) -> Outcome<Self> {
        let parent = Path::new("runs");
        std::fs::create_dir_all(parent)?;
        loop {
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let root = parent.join(format!("{workload}-{}", since_1970.as_millis()));
            match std::fs::create_dir(&root) {
                Ok(()) => return Ok(Self::new(root)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The folder itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where checkpoints lie.
    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    fn identity(&self) -> PathBuf {
        self.root.join("identity.json")
    }

    /// Whether there is more than what a start leaves that was killed before it wrote its identity.
    fn is_occupied(&self) -> bool {
        let staged = |name: &str| name.starts_with("identity.") && name.ends_with(".tmp");
        let begun = |name: &OsStr| name == "lock" || name.to_str().is_some_and(staged);
        let entries = std::fs::read_dir(&self.root).into_iter().flatten();
        entries.flatten().any(|entry| !begun(&entry.file_name()))
    }

    /// Makes the folder ready for one more attempt of a workload, unless all that is asked for is
    /// done already.
    ///
    /// The identity is written first and once, whole, and under the lock: a kill at any point
    /// leaves a folder that the same command takes (without hard links, all but one).
    ///
    /// # Errors
    /// Exit code 2 when the folder holds another workload, or with `fresh` anything at all; 6 when
    /// it had a checkpoint once and has none.
    pub(crate) fn prepare(
        &mut self,
        options: &RunOptions,
        workload_id: &str,
        last_step: u64,
    ) -> Outcome<Prepared> {
        let shown = self.root.display().to_string();
        let refuse = |error: &dyn Display| Failure::usage(format!("--out {shown}: {error}"));
        if self.root.to_str().is_none() {
            return Err(refuse(&"expected a name in UTF-8, which all ranks can be told"));
        }
        let look = |folder: &Self| -> Outcome<Option<RunIdentity>> {
            if !folder.is_occupied() {
                return Ok(None);
            }
            if options.fresh {
                return Err(refuse(
                    &"--fresh expects an empty folder, and this one is not\n  \
                      hint: name a new folder, or leave --fresh out to resume",
                ));
            }
            folder.check_identity(workload_id).map(Some)
        };
        if look(self)?.is_some() && self.is_complete(last_step, options.target_loss) {
            return Ok(Prepared::Complete);
        }
        std::fs::create_dir_all(&self.root).map_err(|error| refuse(&error))?;
        self.lock()?;
        // Looked at again: until the lock was taken another start may have come first.
        let identity = loop {
            if let Some(found) = look(self)? {
                break found;
            }
            if let Some(own) = self.take(workload_id).map_err(|error| refuse(&error))? {
                break own;
            }
        };
        let attempts = Attempt::read_all(&self.root).map_err(|error| refuse(&error))?;
        self.require_checkpoint(&attempts)?;
        let text = options.config.to_toml();
        let path = self.root.join("config.toml");
        atomic::write(&path, text.as_bytes()).map_err(|error| refuse(&error))?;
        let number = attempts.last().map_or(1, |attempt| attempt.number + 1);
        Ok(Prepared::Attempt { number, run: identity.run })
    }

    /// Refuses to start again at step 1 where an earlier attempt had a committed checkpoint: that
    /// would replace the run's steps and record, while its state may only be out of sight.
    fn require_checkpoint(&self, attempts: &[Attempt]) -> Outcome<()> {
        let had = |attempt: &Attempt| attempt.committed_step.map(|step| (attempt.number, step));
        let Some((number, step)) = attempts.iter().rev().find_map(had) else { return Ok(()) };
        let folder = self.checkpoints();
        if checkpoint::holds_any(&folder).map_err(checkpoint_failure)? {
            return Ok(());
        }
        let error = anyhow::anyhow!(
            "--out {}: expected a checkpoint in {}, as attempt {number} had one of step {step} or \
             later, found none\n  hint: mount or put back what was there; to begin at step 1, name \
             a new folder (--out NEW --fresh)",
            self.root.display(),
            folder.display()
        );
        Err(Failure::new(ExitCode::Checkpoint, error))
    }

    /// Writes a new run's identity, unless another start was first: locks do not work everywhere.
    fn take(&self, workload_id: &str) -> anyhow::Result<Option<RunIdentity>> {
        let own = RunIdentity::draw(workload_id)?;
        let text = serde_json::to_vec(&own)?;
        let published = checkpoint::publish(&self.identity(), &own.run, &text, || {})?;
        Ok(matches!(published, Published::New | Published::Same).then_some(own))
    }

    /// Takes the folder for this process; file systems without locks are used without.
    fn lock(&mut self) -> Outcome<()> {
        let path = self.root.join("lock");
        let file = File::create(&path)
            .map_err(|error| Failure::usage(format!("--out {}: {error}", path.display())))?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(Failure::usage(format!(
                "--out {}: another run is writing here\n  hint: wait for it, or name a new folder",
                self.root.display()
            )));
        }
        self.lock = Some(file);
        Ok(())
    }

    /// Whether the record says that as many steps, or as low a loss, were reached.
    fn is_complete(&self, last_step: u64, target_loss: Option<f64>) -> bool {
        let Ok(record) = Record::read(&self.root) else { return false };
        let Some(steps) = record.steps.filter(|_| record.status == Status::Complete) else {
            return false;
        };
        let loss = steps.evaluation_loss_last.or(steps.loss_last);
        let reached = loss.zip(target_loss).is_some_and(|(loss, target)| loss <= target);
        steps.completed >= last_step || reached
    }

    fn check_identity(&self, workload_id: &str) -> Outcome<RunIdentity> {
        let shown = self.root.display();
        let bytes = std::fs::read(self.identity()).map_err(|error| {
            Failure::usage(match error.kind() {
                ErrorKind::NotFound => format!(
                    "--out {shown}: not empty and not the folder of a run\n  \
                     hint: name a new folder"
                ),
                _ => format!("--out {shown}: cannot read identity.json: {error}"),
            })
        })?;
        let found: RunIdentity = serde_json::from_slice(&bytes).map_err(|error| {
            Failure::usage(format!(
                "--out {shown}: expected the run's id in identity.json, found {} bytes that are \
                 none ({error})\n  hint: a start that was killed while it wrote them left nothing \
                 else: name a new folder, or remove the file",
                bytes.len()
            ))
        })?;
        if found.workload != workload_id {
            return Err(Failure::usage(format!(
                "--out {shown}: holds a run of workload {}, expected {workload_id}\n  \
                 hint: what is computed has changed; name a new folder",
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
    fn of_two_first_starts_without_locks_one_gives_the_run_its_identity() {
        let folder = tempfile::tempdir().unwrap();
        let identities = std::thread::scope(|scope| {
            let start = || Folder::new(folder.path()).take("6ad31c0f9e21").unwrap();
            let starts: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            let taken: Vec<_> = starts.into_iter().filter_map(|it| it.join().unwrap()).collect();
            taken
        });
        let found = Folder::new(folder.path()).check_identity("6ad31c0f9e21").unwrap();
        assert_eq!(identities, [found]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
