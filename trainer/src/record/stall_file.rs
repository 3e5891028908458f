//! `attempts/NNN.rRRRRRR.stalled`: where a rank is in a step that does not end. Every rank writes
//! its own, also one whose training thread hangs; only one whose process or node is gone does not.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::Error;
use super::error_file::folder;
use super::json;
use crate::limits::NOTE_BYTES_MAX;
use crate::timing::progress::Position;

/// The file of one rank.
#[derive(Debug)]
pub(crate) struct StallFile(PathBuf);

impl StallFile {
    /// Of a rank in an attempt of the run in `dir`.
    pub(crate) fn new(dir: &Path, attempt: u32, rank: usize) -> Self {
        Self(folder(dir).join(format!("{attempt:03}.r{rank:06}.stalled")))
    }

    /// Writes where the rank is.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn write(&self, position: &Position) -> Result<(), Error> {
        json::write(&self.0, position)
    }

    /// Where the rank is, if it has said so.
    pub(crate) fn read(&self) -> Option<Position> {
        json::read(&self.0, NOTE_BYTES_MAX, "where a rank is").ok()
    }

    /// The rank goes on.
    pub(crate) fn remove(&self) {
        drop(fs::remove_file(&self.0)); // a reader looks at the step
    }
}
