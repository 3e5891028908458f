//! `RUN.json`: whose folder this is.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::format::sealed::{seal, unseal};
use crate::{Error, Result, durable};

/// Newest version of the on-disk format, and the one that is written.
pub(crate) const FORMAT: u32 = 1;

const FILE: &str = "RUN.json";

/// What all checkpoints of one folder have in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Version of the on-disk format.
    pub format: u32,
    /// Run id: the same over all attempts of a run.
    pub run: String,
    /// Workload id.
    pub workload: String,
}

impl Identity {
    /// An identity in the format that this version writes.
    pub fn new(run: &str, workload: &str) -> Self {
        Self { format: FORMAT, run: run.to_owned(), workload: workload.to_owned() }
    }

    /// The identity of an existing folder, `None` when it has none.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::UnknownFormat`] or [`Error::Io`].
    pub(crate) fn read(root: &Path) -> Result<Option<Self>> {
        let path = root.join(FILE);
        match fs::read(&path) {
            Ok(bytes) => unseal(&path, &bytes).map(|(identity, _)| Some(identity)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(&path, "read")(error)),
        }
    }

    /// Creates the file, or checks the one that is there. All ranks may call it at once.
    pub(crate) fn establish(&self, root: &Path) -> Result<()> {
        durable::create_folders(root)?;
        let found = match Self::read(root)? {
            Some(found) => found,
            None => {
                let tag = format!("{:08x}", durable::random()?);
                durable::publish(&root.join(FILE), &tag, &seal(self).0, || {})?;
                Self::read(root)?.unwrap_or_else(|| self.clone())
            }
        };
        let path = root.join(FILE);
        self.check(&path, "workload", &self.workload, &found.workload)?;
        self.check(&path, "run", &self.run, &found.run)
    }

    /// Compares one field.
    pub(crate) fn check(&self, path: &Path, what: &str, own: &str, found: &str) -> Result<()> {
        if own == found {
            return Ok(());
        }
        let (what, path) = (what.to_owned(), path.to_owned());
        Err(Error::Mismatch { path, what, expected: own.to_owned(), found: found.to_owned() })
    }
}
