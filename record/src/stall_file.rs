//! `attempts/NNN.rRRRRRR.stalled`: position of a rank in a step that does not end. Every rank
//! writes its own file, even if its training thread hangs; only a rank whose process or node is
//! gone does not.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::error_file::folder;
use crate::json;
use crate::limits::NOTE_BYTES_MAX;
use crate::phase::Phase;

/// Position of a rank in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Number of the running step; 0 before the first.
    pub step: u64,
    /// Activity of the rank.
    pub phase: Phase,
    /// Bucket whose reduction it waits for after backward, from 1; 0 if it does not wait.
    pub bucket: u32,
    /// Number of buckets.
    pub buckets: u32,
}

/// Stall file of one rank.
#[derive(Debug)]
pub struct StallFile(PathBuf);

impl StallFile {
    /// Returns the stall file of a rank in an attempt of the run in `dir`.
    pub fn new(dir: &Path, attempt: u32, rank: usize) -> Self {
        Self(folder(dir).join(format!("{attempt:03}.r{rank:06}.stalled")))
    }

    /// Writes the position of the rank.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, position: &Position) -> Result<(), Error> {
        json::write(&self.0, position)
    }

    /// Reads the position of the rank, if it has written one.
    pub fn read(&self) -> Option<Position> {
        json::read(&self.0, NOTE_BYTES_MAX, "where a rank is").ok()
    }

    /// Removes the file, as the rank makes progress again.
    pub fn remove(&self) {
        drop(fs::remove_file(&self.0)); // a reader looks at the step
    }
}
