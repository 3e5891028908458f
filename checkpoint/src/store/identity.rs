//! `RUN.json`: which run a folder of checkpoints belongs to.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::durable::{create_folders, publish};
use crate::error::{Error, Result};
use crate::format::FORMAT;
use crate::format::sealed::{seal, unseal};

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
    pub(super) fn read(root: &Path) -> Result<Option<Self>> {
        let path = root.join(FILE);
        match fs::read(&path) {
            Ok(bytes) => unseal(&path, &bytes).map(|(identity, _)| Some(identity)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(&path, "read")(error)),
        }
    }

    /// Creates the file, or checks the one that is there. All ranks may call it at once.
    pub(super) fn establish(&self, root: &Path) -> Result<()> {
        create_folders(root)?;
        let path = root.join(FILE);
        let found = match Self::read(root)? {
            Some(found) => found,
            None => {
                publish(&path, &seal(self).0)?;
                Self::read(root)?.unwrap_or_else(|| self.clone())
            }
        };
        self.check(&path, &found.run, &found.workload)
    }

    /// Compares the run and the workload that a file names.
    pub(super) fn check(&self, path: &Path, run: &str, workload: &str) -> Result<()> {
        let fields = [("workload", &self.workload, workload), ("run", &self.run, run)];
        for (what, own, found) in fields {
            if own != found {
                return Err(Error::Mismatch {
                    path: path.to_owned(),
                    what: what.to_owned(),
                    expected: own.clone(),
                    found: found.to_owned(),
                });
            }
        }
        Ok(())
    }
}
