//! `attempts/NNN.json`: one attempt of a run.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::error_file::ErrorFile;
use crate::files::{IoError, Mode, create_folders};
use crate::json;
use crate::limits::ATTEMPT_BYTES_MAX;
use crate::recovery::Recovery;
use crate::sections::{Reason, Status};
use crate::steps::{read_steps, steps_path};
use crate::text::unix_time::unix_ms;

/// One start of a run and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// Attempt number, from 1.
    pub number: u32,
    /// State of the attempt.
    pub status: Status,
    /// Exit code of rank 0's process; `null` while it runs or if it was killed.
    pub exit_code: Option<u8>,
    /// Reason why it did not complete.
    pub reason: Option<Reason>,
    /// Number of ranks.
    pub world: usize,
    /// Injected faults, as on the command line of `train`. With any, the figures are not those of
    /// the machine.
    #[serde(default)]
    pub injected: Vec<String>,
    /// Number of steps in the checkpoint it resumed from; 0 if it started at step 1, `null` if it
    /// ended before that was decided.
    pub resumed_after_step: Option<u64>,
    /// Recovery of that checkpoint's state; `null` without one.
    #[serde(default)]
    pub recovery: Option<Recovery>,
    /// Step of the newest committed checkpoint: the one it resumed from, or the last that it saved;
    /// `null` for none. Later attempts require a checkpoint unless this is `null`, and warn about
    /// an older one.
    pub committed_step: Option<u64>,
    /// Last completed step, whether or not a checkpoint holds it.
    pub last_step: u64,
    /// Start times of its pods before the attempt; `null` if their status was not given.
    #[serde(default)]
    pub pods: Option<PodTimes>,
    /// Start time by part, on rank 0; `null` before the end of the first step.
    #[serde(default)]
    pub start: Option<StartParts>,
    /// Time of the steps of earlier attempts that it repeats, because no checkpoint held them.
    #[serde(default)]
    pub repeated_seconds: f64,
    /// Start, Unix time in milliseconds.
    pub started_unix_ms: u64,
    /// End, Unix time in milliseconds, by the clock at its start, even if that clock was set since.
    /// Time of its last step if it was killed; `null` if unknown.
    pub ended_unix_ms: Option<u64>,
}

/// Times before a start, where `yardstick launch` started the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct LaunchParts {
    /// Time from the start of the launcher, or from the loss that it recovers from, until enough
    /// hosts had an address and answered over ssh.
    pub hosts_seconds: f64,
    /// Time from then until the process of rank 0 started: `mpirun`.
    pub mpirun_seconds: f64,
}

/// Consecutive parts of a start.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct StartParts {
    /// Times before the process; `null` unless `yardstick launch` started it.
    #[serde(default)]
    pub launch: Option<LaunchParts>,
    /// Time from the start of the process until the ranks have found each other.
    pub bootstrap_seconds: f64,
    /// Time until communication is set up, and the ranks agree on configuration and folder.
    pub wire_up_seconds: f64,
    /// Time until the state is allocated, and initialised or restored.
    pub restore_seconds: f64,
    /// Time until the first step is done, including opening NVML and the first hardware reading.
    pub first_step_seconds: f64,
}

impl StartParts {
    /// Parts of the start within the process, by name.
    pub fn of_process(&self) -> [(&'static str, f64); 4] {
        [
            ("bootstrap", self.bootstrap_seconds),
            ("wire_up", self.wire_up_seconds),
            ("restore", self.restore_seconds),
            ("first_step", self.first_step_seconds),
        ]
    }

    /// Sum of the parts within the process.
    pub fn total_seconds(&self) -> f64 {
        self.of_process().iter().map(|(_, seconds)| seconds).sum()
    }
}

/// Outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptEnd {
    /// Final state.
    pub status: Status,
    /// Exit code of rank 0's process.
    pub exit_code: u8,
    /// Reason why it did not complete.
    pub reason: Option<Reason>,
    /// Last completed step.
    pub last_step: u64,
    /// Run time by a monotonic clock; `None` if another process records the end.
    pub ran: Option<Duration>,
}

/// Parts of the start of an attempt's pods, each the maximum over all pods; `null` if a part is not
/// yet complete, or the cluster does not report it. After a loss they cover the pods created since,
/// and not those that stayed.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PodTimes {
    /// Time from the creation of the job until that of its first pod, as in a Kueue queue; `null`
    /// if the job is not in the given list.
    pub queued_seconds: Option<f64>,
    /// Time from the creation of a pod until it had a node.
    pub scheduled_seconds: Option<f64>,
    /// Time until volumes and network were ready; not reported before Kubernetes 1.29, where the
    /// next part includes it.
    pub sandbox_seconds: Option<f64>,
    /// Time until the image was pulled and the container ran.
    pub image_seconds: Option<f64>,
    /// Time until the ssh server of a worker listened.
    pub ssh_ready_seconds: Option<f64>,
}

impl Attempt {
    /// Starts attempt `number` and returns all attempts so far, the new one last.
    ///
    /// Earlier attempts that did not record their end were killed; this call records that. Call it
    /// on rank 0, before telemetry truncates the steps that show how far those attempts got.
    ///
    /// # Errors
    /// [`Error`] when the folder's attempts or steps cannot be read or written.
    pub fn begin(
        dir: &Path,
        number: u32,
        world: usize,
        injected: Vec<String>,
    ) -> Result<Vec<Self>, Error> {
        let mut attempts = Self::read_all(dir)?;
        attempts.retain(|attempt| attempt.number < number);
        for attempt in attempts.iter_mut().filter(|attempt| attempt.status == Status::Running) {
            attempt.record_kill(dir)?;
        }
        let attempt = Self {
            number,
            status: Status::Running,
            exit_code: None,
            reason: None,
            world,
            injected,
            resumed_after_step: None,
            recovery: None,
            committed_step: None,
            pods: None,
            start: None,
            repeated_seconds: 0.0,
            last_step: 0,
            started_unix_ms: unix_ms(),
            ended_unix_ms: None,
        };
        attempt.write(dir)?;
        attempts.push(attempt);
        Ok(attempts)
    }

    /// Records immediately the step that this attempt resumes from, as it may be killed before its
    /// end.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn resumed(
        &mut self,
        dir: &Path,
        step: u64,
        recovery: Option<Recovery>,
    ) -> Result<(), Error> {
        self.resumed_after_step = Some(step);
        self.recovery = recovery;
        self.last_step = step;
        self.committed_step = Some(step).filter(|&step| step > 0);
        self.write(dir)
    }

    /// Records the parts of the start, once the first step is done.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn started(&mut self, dir: &Path, parts: StartParts) -> Result<(), Error> {
        self.start = Some(parts);
        self.write(dir)
    }

    /// Records a checkpoint of this attempt, once it is committed.
    ///
    /// # Errors
    /// [`Error::Io`]; the next write records it.
    pub fn committed(&mut self, dir: &Path, step: u64) -> Result<(), Error> {
        self.committed_step = self.committed_step.max(Some(step));
        self.write(dir)
    }

    /// Records how this attempt ended.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error`] when the end has to be read from its steps and they cannot be read.
    pub fn end(&mut self, dir: &Path, end: AttemptEnd) -> Result<(), Error> {
        self.status = end.status;
        self.exit_code = Some(end.exit_code);
        self.reason = end.reason;
        self.last_step = end.last_step;
        match end.ran {
            Some(ran) => self.ended_unix_ms = Some(self.started_unix_ms + ran.as_millis() as u64),
            None if self.ended_unix_ms.is_some() => {}
            None => self.ended_unix_ms = self.end_by_steps(dir)?.map(|end| end.unix_ms),
        }
        self.write(dir)
    }

    /// Run time in milliseconds; 0 while its end is unknown.
    pub fn ran_ms(&self) -> u64 {
        self.ended_unix_ms.map_or(0, |ended| ended.saturating_sub(self.started_unix_ms))
    }

    /// Reads the attempts in a run's folder, sorted by number; none without a folder `attempts`.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Malformed`] for a file that is not an attempt.
    pub fn read_all(dir: &Path) -> Result<Vec<Self>, Error> {
        let folder = dir.join("attempts");
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(IoError::at(&folder, "list"))?,
        };
        let mut attempts: Vec<Self> = Vec::new();
        for entry in entries {
            let path = entry.map_err(IoError::at(&folder, "list"))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                attempts.push(json::read(&path, ATTEMPT_BYTES_MAX, "an attempt")?);
            }
        }
        attempts.sort_by_key(|attempt| attempt.number);
        Ok(attempts)
    }

    /// Records that this attempt was killed, with the evidence of its steps and error files.
    fn record_kill(&mut self, dir: &Path) -> Result<(), Error> {
        if let Some(end) = self.end_by_steps(dir)? {
            self.last_step = end.step;
            self.ended_unix_ms = Some(end.unix_ms);
        }
        self.status = Status::Failed;
        self.reason = Some(ErrorFile::of_attempt(dir, self.number).map_or_else(
            || {
                let text = "ended without an error: killed, or its machine was lost".to_owned();
                Reason { step: Some(self.last_step), text, ..Reason::default() }
            },
            |file| file.reason,
        ));
        self.write(dir)
    }

    /// Returns the last step according to the steps of rank 0; without steps, the last step of this
    /// record.
    ///
    /// # Errors
    /// [`Error`] when the steps cannot be read.
    pub fn last_recorded_step(&self, dir: &Path) -> Result<u64, Error> {
        Ok(self.end_by_steps(dir)?.map_or(self.last_step, |end| end.step))
    }

    /// Returns the end of this attempt according to the steps of rank 0; `None` without any.
    fn end_by_steps(&self, dir: &Path) -> Result<Option<EndBySteps>, Error> {
        let lines = read_steps(&steps_path(dir, 0))?.map_while(Result::ok);
        let mut wall_ns = 0;
        let own = lines.filter(|line| line.sample.attempt == self.number);
        let last = own.inspect(|line| wall_ns += line.sample.phases.wall_ns()).last();
        // A clock that was set back does not shorten the attempt.
        let at_least = self.started_unix_ms + wall_ns / 1_000_000;
        Ok(last
            .map(|last| EndBySteps { step: last.sample.step, unix_ms: last.unix_ms.max(at_least) }))
    }

    fn path(dir: &Path, number: u32) -> PathBuf {
        dir.join("attempts").join(format!("{number:03}.json"))
    }

    fn write(&self, dir: &Path) -> Result<(), Error> {
        let folder = dir.join("attempts");
        create_folders(&folder, Mode::Run)?;
        json::write(&Self::path(dir, self.number), self)
    }
}

/// The last step of an attempt that did not record its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct EndBySteps {
    step: u64,
    unix_ms: u64,
}

/// Combines rank 0's reason for the loss that ended an attempt with the reason that a supervisor
/// recorded before: a rank that was cut off ends later than its launch.
pub fn with_recorded_loss(folder: &Path, attempt: u32, own: Reason) -> Reason {
    let attempts = Attempt::read_all(folder).unwrap_or_default();
    let mut recorded = attempts.into_iter().filter(|recorded| recorded.number == attempt);
    match recorded.find_map(|recorded| recorded.reason) {
        Some(known) => known.merged_with(own),
        None => own,
    }
}
