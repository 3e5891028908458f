//! `RUN.json`: the run that a folder of checkpoints belongs to.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::format::FORMAT;
use crate::format::limits::NOTE_BYTES_MAX;
use crate::format::sealed::{seal, unseal};
use crate::tier::Tier;

pub(super) const FILE: &str = "RUN.json";

/// Properties that all checkpoints of one folder have in common.
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
    /// Creates an identity in the format that this version writes.
    pub fn new(run: &str, workload: &str) -> Self {
        Self { format: FORMAT, run: run.to_owned(), workload: workload.to_owned() }
    }

    /// The identity of what is on a tier, `None` when it has none.
    pub(super) fn read(tier: &dyn Tier) -> Result<Option<Self>> {
        match tier.read(FILE, NOTE_BYTES_MAX) {
            Ok(bytes) => unseal(&tier.path(FILE), &bytes).map(|(identity, _)| Some(identity)),
            Err(error) if error.source.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates the file, or checks the one that is there. All ranks may call it at once.
    pub(super) fn establish(&self, tier: &dyn Tier) -> Result<()> {
        let found = match Self::read(tier)? {
            Some(found) => found,
            None => {
                tier.publish(FILE, &seal(self).0, &mut || {})?;
                Self::read(tier)?.unwrap_or_else(|| self.clone())
            }
        };
        self.check(&tier.path(FILE), &found.run, &found.workload)
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
