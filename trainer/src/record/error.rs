//! What can go wrong with the files that tell of a run.

use std::path::{Path, PathBuf};

/// A failure to write or to read a run's record or steps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system refused; check space and permissions.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// What was tried, as in `create`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The folder has no record: it is not, or not yet, the folder of a run.
    #[error(
        "{}: expected the record of a run, found no such file\n  hint: name the folder of --out",
        path.display()
    )]
    NoRecord {
        /// Where the record should be.
        path: PathBuf,
    },
    /// The content is not what this program writes; the file was damaged or edited.
    #[error("{}, line {line}: expected {expected}: {source}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What should be there.
        expected: &'static str,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// The run's own losses are not all there; the file was cut, replaced or removed.
    #[error(
        "{}: expected the {expected} steps of the checkpoint, found {found} without a gap",
        path.display()
    )]
    LostSteps {
        /// The file.
        path: PathBuf,
        /// Steps that were durable when the checkpoint was committed.
        expected: u64,
        /// Steps that are there.
        found: u64,
    },
    /// The record has a schema that this program does not know; use the program that wrote it.
    #[error(
        "{}: expected a record of schema {supported} or older, found schema {found}\n  \
         hint: read it with the version of yardstick that wrote it, or a newer one",
        path.display()
    )]
    Schema {
        /// The file.
        path: PathBuf,
        /// Schema of the file.
        found: u64,
        /// Newest schema that is understood.
        supported: u32,
    },
}

impl Error {
    /// For `map_err`: an I/O failure at a path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
