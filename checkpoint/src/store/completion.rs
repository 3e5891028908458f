//! Commits that were interrupted between the nodes, completed after a restore.

use super::{Status, Store};
use crate::error::Result;
use crate::format::manifest::{MANIFEST, Manifest};
use crate::format::name::CheckpointName;

impl Store {
    /// Publishes the manifest of a checkpoint that other nodes have committed, if all files of some
    /// ranks are on this node and it has no manifest.
    pub(crate) fn complete(
        &self,
        name: &CheckpointName,
        manifest: &Manifest,
        text: &str,
    ) -> Result<()> {
        if self.status(name) != Status::Uncommitted {
            return Ok(());
        }
        let ranks = self.ranks_here(name, manifest)?;
        if ranks.is_empty() {
            return Ok(());
        }
        self.check_files(name, manifest, ranks)?;
        // Another rank of the node writes the same bytes.
        self.tier().publish(&name.key(MANIFEST), text.as_bytes(), &mut || {})?;
        Ok(())
    }
}
