//! Reading manifests and indexes: each is checked before it is used.

use std::fs;
use std::path::{Path, PathBuf};

use super::Store;
use crate::error::{Error, Result};
use crate::format::index::{Index, ShardEntry, index_file};
use crate::format::manifest::{MANIFEST, Manifest, rank_folder};
use crate::format::name::CheckpointName;
use crate::format::sealed::unseal;

impl Store {
    /// The manifest, checked.
    pub(crate) fn manifest(&self, name: &CheckpointName) -> Result<Manifest> {
        let path = self.folder(name).join(MANIFEST);
        let bytes = fs::read(&path).map_err(Error::io(&path, "read"))?;
        self.parse_manifest(name, &bytes)
    }

    /// A manifest's text, checked: digest, format, run, and that it is not of another folder.
    pub(crate) fn parse_manifest(&self, name: &CheckpointName, bytes: &[u8]) -> Result<Manifest> {
        let path = self.folder(name).join(MANIFEST);
        let (manifest, _): (Manifest, _) = unseal(&path, bytes)?;
        self.identity().check(&path, &manifest.run, &manifest.workload)?;
        if manifest.checkpoint != name.to_string() {
            return Err(Error::damaged(&path, 0, name, manifest.checkpoint));
        }
        if manifest.ranks.len() != manifest.world {
            let expected = format!("entries of {} ranks", manifest.world);
            return Err(Error::damaged(&path, 0, expected, manifest.ranks.len()));
        }
        Ok(manifest)
    }

    /// The folder of a rank's files.
    pub(crate) fn rank_path(
        &self,
        name: &CheckpointName,
        manifest: &Manifest,
        rank: usize,
    ) -> PathBuf {
        self.folder(name).join(rank_folder(rank, manifest.ranks_per_folder))
    }

    /// The index of a rank, checked.
    pub(crate) fn index(
        &self,
        name: &CheckpointName,
        manifest: &Manifest,
        rank: usize,
    ) -> Result<Index> {
        let text = self.index_text(name, manifest, rank)?;
        self.parse_index(name, manifest, rank, &text)
    }

    pub(crate) fn index_text(
        &self,
        name: &CheckpointName,
        manifest: &Manifest,
        rank: usize,
    ) -> Result<String> {
        read_text(&self.rank_path(name, manifest, rank).join(index_file(rank)))
    }

    /// An index's text, checked: that it is the one the manifest names, and that its sizes are
    /// consistent.
    pub(crate) fn parse_index(
        &self,
        name: &CheckpointName,
        manifest: &Manifest,
        rank: usize,
        text: &str,
    ) -> Result<Index> {
        let path = self.rank_path(name, manifest, rank).join(index_file(rank));
        let (index, digest): (Index, _) = unseal(&path, text.as_bytes())?;
        let expected = &manifest.ranks[rank].index;
        if digest != *expected {
            return Err(Error::damaged(&path, 0, format!("digest {expected}"), digest));
        }
        if !index.files.iter().all(ShardEntry::is_consistent) {
            return Err(Error::damaged(&path, 0, "consistent sizes", "others"));
        }
        Ok(index)
    }
}

/// A file as text; a file that is not UTF-8 is damaged.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let bytes = fs::read(path).map_err(Error::io(path, "read"))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to() as u64;
        Error::damaged(path, at, "UTF-8", "other bytes")
    })
}
