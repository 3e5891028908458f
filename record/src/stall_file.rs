//! `attempts/NNN.rRRRRRR.stalled`: where a rank is in a step that does not end. Every rank writes
//! its own, also one whose training thread hangs; only one whose process or node is gone does not.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::error_file::folder;
use crate::json;
use crate::limits::NOTE_BYTES_MAX;
use crate::phase::Phase;

/// Where a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Number of the running step; 0 before the first.
    pub step: u64,
    /// What it does.
    pub phase: Phase,
    /// The bucket whose reduction it waits for after backward, from 1; 0 if it does not.
    pub bucket: u32,
    /// How many there are.
    pub buckets: u32,
}

/// The file of one rank.
#[derive(Debug)]
pub struct StallFile(PathBuf);

impl StallFile {
    /// Of a rank in an attempt of the run in `dir`.
    pub fn new(dir: &Path, attempt: u32, rank: usize) -> Self {
        Self(folder(dir).join(format!("{attempt:03}.r{rank:06}.stalled")))
    }

    /// Writes where the rank is.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, position: &Position) -> Result<(), Error> {
        json::write(&self.0, position)
    }

    /// Where the rank is, if it has said so.
    pub fn read(&self) -> Option<Position> {
        json::read(&self.0, NOTE_BYTES_MAX, "where a rank is").ok()
    }

    /// The rank goes on.
    pub fn remove(&self) {
        drop(fs::remove_file(&self.0)); // a reader looks at the step
    }
}
