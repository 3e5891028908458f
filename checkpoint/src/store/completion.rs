//! Commits that were interrupted between the nodes, completed after a restore.

use super::{Status, Store};
use crate::error::Result;
use crate::format::manifest::{MANIFEST, Manifest};
use crate::format::name::CheckpointName;

impl Store {
    /// Publishes the manifest of a checkpoint that other nodes have committed, if this one has
    /// intact files of some ranks and no manifest. If that fails, retention leaves the files here:
    /// the next attempt tries again.
    pub(crate) fn complete(
        &self,
        name: &CheckpointName,
        manifest: &Manifest,
        text: &str,
    ) -> Result<()> {
        match self.status(name) {
            Status::Uncommitted => {}
            // It cannot be read now, so it is not known whether there is one.
            Status::Refused(_) => {
                return self.manifest(name).map(drop).inspect_err(|_| self.hold(name));
            }
            _ => return Ok(()),
        }
        self.publish_elsewhere_committed(name, manifest, text).inspect_err(|_| self.hold(name))
    }

    fn publish_elsewhere_committed(
        &self,
        name: &CheckpointName,
        manifest: &Manifest,
        text: &str,
    ) -> Result<()> {
        let here = self.ranks_here(name, manifest)?;
        let mut damaged = Vec::new();
        for &rank in &here {
            match self.check_files(name, manifest, [rank]) {
                Err(error) if error.is_damage() => damaged.push(rank),
                checked => checked?,
            }
        }
        if damaged.len() == here.len() {
            return Ok(()); // also where nothing is here
        }
        for rank in damaged {
            self.reject_rank(name, rank)?;
        }
        // Another rank of the node writes the same bytes.
        self.tier().publish(&name.key(MANIFEST), text.as_bytes(), &mut || {})?;
        Ok(())
    }
}
