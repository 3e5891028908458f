//! `attempts/NNN.json`: one start of a run.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{Error, Reason, Status, Word, parse, write_json};
use crate::telemetry::{read_sound_steps, steps_path};

/// One start of a run and how it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// From 1.
    pub number: u32,
    /// How far it came.
    pub status: Status,
    /// Exit code of rank 0's process; `null` when it could not say.
    pub exit_code: Option<u8>,
    /// Why it did not complete.
    pub reason: Option<Reason>,
    /// Number of ranks.
    pub world: usize,
    /// Steps that the checkpoint held from which it started; 0 for a start from nothing, `null`
    /// when it ended before that was known.
    pub resumed_after_step: Option<u64>,
    /// Step of the first checkpoint that it knew to be committed: the one it started from, or the
    /// first that it saved; `null` for none. Whoever goes on requires a checkpoint then.
    pub committed_step: Option<u64>,
    /// Last step it made, whether or not a checkpoint holds it.
    pub last_step: u64,
    /// Milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Milliseconds since 1970; of its last step if it was killed, `null` if that is not known.
    pub ended_unix_ms: Option<u64>,
}

impl Attempt {
    /// Starts attempt `number` and returns all attempts so far, the new one last.
    ///
    /// Earlier attempts that never said how they ended were killed: that is written down now. To
    /// be called by rank 0, before telemetry cuts back the steps, which know how far they came.
    ///
    /// # Errors
    /// [`Error`] when the folder's attempts or steps cannot be read or written.
    pub fn begin(dir: &Path, number: u32, world: usize) -> Result<Vec<Self>, Error> {
        let mut attempts = Self::read_all(dir)?;
        attempts.retain(|attempt| attempt.number < number);
        for attempt in attempts.iter_mut().filter(|attempt| attempt.status == Status::Running) {
            attempt.note_killed(dir)?;
        }
        let begun = Self {
            number,
            status: Status::Running,
            exit_code: None,
            reason: None,
            world,
            resumed_after_step: None,
            committed_step: None,
            last_step: 0,
            started_unix_ms: unix_ms(),
            ended_unix_ms: None,
        };
        begun.write(dir)?;
        attempts.push(begun);
        Ok(attempts)
    }

    /// Writes down from which step this attempt goes on: it may be killed before it says more.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn resumed(&mut self, dir: &Path, step: u64) -> Result<(), Error> {
        (self.resumed_after_step, self.last_step) = (Some(step), step);
        self.committed_step = Some(step).filter(|&step| step > 0);
        self.write(dir)
    }

    /// Writes down the first checkpoint of this attempt, once it is committed.
    ///
    /// # Errors
    /// [`Error::Io`]; the next one is then written down.
    pub fn committed(&mut self, dir: &Path, step: u64) -> Result<(), Error> {
        if self.committed_step.is_some() {
            return Ok(());
        }
        self.committed_step = Some(step);
        self.write(dir).inspect_err(|_| self.committed_step = None)
    }

    /// Writes down how this attempt ended, now.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn end(
        &mut self,
        dir: &Path,
        status: Status,
        exit_code: u8,
        reason: Option<Reason>,
        last_step: u64,
    ) -> Result<(), Error> {
        (self.status, self.exit_code, self.reason) = (status, Some(exit_code), reason);
        (self.last_step, self.ended_unix_ms) = (last_step, Some(unix_ms()));
        self.write(dir)
    }

    /// The attempts in a run's folder, by number; none where there is no folder of attempts.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Malformed`] for a file that is not an attempt.
    pub fn read_all(dir: &Path) -> Result<Vec<Self>, Error> {
        let folder = dir.join("attempts");
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(Error::io("list", &folder))?,
        };
        let mut attempts: Vec<Self> = Vec::new();
        for entry in entries {
            let path = entry.map_err(Error::io("list", &folder))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
                attempts.push(parse(&path, &bytes, "an attempt")?);
            }
        }
        attempts.sort_by_key(|attempt| attempt.number);
        Ok(attempts)
    }

    fn note_killed(&mut self, dir: &Path) -> Result<(), Error> {
        let lines = read_sound_steps(&steps_path(dir, 0))?;
        if let Some(last) = lines.iter().rev().find(|line| line.sample.attempt == self.number) {
            self.last_step = last.sample.step;
            self.ended_unix_ms = Some(last.unix_ms);
        }
        self.status = Status::Failed;
        self.reason = Some(Word::of(dir, self.number).map_or_else(
            || {
                let text = "ended without a word: killed, or its machine was lost".to_owned();
                Reason { step: Some(self.last_step), text, ..Reason::default() }
            },
            |word| word.reason,
        ));
        self.write(dir)
    }

    fn path(dir: &Path, number: u32) -> PathBuf {
        dir.join("attempts").join(format!("{number:03}.json"))
    }

    fn write(&self, dir: &Path) -> Result<(), Error> {
        let folder = dir.join("attempts");
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        write_json(&Self::path(dir, self.number), self)
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
