//! Reading manifests and indexes, each checked before it is used, and renaming manifests.

use std::collections::HashSet;

use super::Store;
use crate::error::{Error, Result};
use crate::format::index::{Index, index_file, rejected_index_file};
use crate::format::limits::{INDEX_BYTES_MAX, MANIFEST_BYTES_MAX};
use crate::format::manifest::{MANIFEST, Manifest};
use crate::format::name::CheckpointName;
use crate::format::sealed::unseal;
use crate::tier::Scope;

/// Manifest or index that was read and checked.
pub(crate) struct Checked<T> {
    pub(crate) text: String,
    pub(crate) value: T,
}

impl Store {
    /// The manifest, checked.
    pub(crate) fn manifest(&self, name: &CheckpointName) -> Result<Manifest> {
        Ok(self.read_manifest(name, MANIFEST)?.value)
    }

    /// The manifest in the file of this name, checked.
    pub(crate) fn read_manifest(
        &self,
        name: &CheckpointName,
        file: &str,
    ) -> Result<Checked<Manifest>> {
        let key = name.key(file);
        self.read_checked(&key, |_| {
            let text = self.read_text(&key, MANIFEST_BYTES_MAX)?;
            let value = self.parse_manifest(name, text.as_bytes())?;
            Ok(Checked { text, value })
        })
    }

    /// Parses and checks a manifest: digest, format, run, and every field that a reader relies on.
    pub(crate) fn parse_manifest(&self, name: &CheckpointName, bytes: &[u8]) -> Result<Manifest> {
        let path = self.tier().path(&name.key(MANIFEST));
        let (manifest, _): (Manifest, _) = unseal(&path, bytes)?;
        self.identity().check(&path, &manifest.run, &manifest.workload)?;
        manifest.check(&path, name)?;
        Ok(manifest)
    }

    /// Renames the manifest, durably, to a name that marks the state of the checkpoint. No tier but
    /// a file system can rename: a crash in between leaves both files. Ranks of a node may do it at
    /// once; a late one gets an [absence](Error::is_absence).
    pub(crate) fn rename_manifest(
        &self,
        name: &CheckpointName,
        from: &str,
        to: &str,
    ) -> Result<()> {
        self.copy_manifest(name, from, to)?;
        Ok(self.tier().delete(&name.key(from))?)
    }

    /// The first half of [`Store::rename_manifest`]: both files exist afterwards.
    pub(crate) fn copy_manifest(&self, name: &CheckpointName, from: &str, to: &str) -> Result<()> {
        let bytes = match self.read_manifest(name, from) {
            Ok(manifest) => manifest.text.into_bytes(),
            Err(_) => self.read_damaged(&name.key(from), MANIFEST_BYTES_MAX)?,
        };
        // Another process writes the same bytes under that name.
        self.tier().publish(&name.key(to), &bytes, &mut || {})?;
        Ok(())
    }

    /// Content of a file that may be damaged, nothing where a disk cannot read it: such a checkpoint
    /// must not count for ever.
    pub(super) fn read_damaged(&self, key: &str, bytes_max: u64) -> Result<Vec<u8>> {
        match self.tier().read(key, bytes_max).map_err(Error::from) {
            Err(error) if error.is_damage() && !error.is_absence() => Ok(Vec::new()),
            read => read,
        }
    }

    /// Writes which checkpoint is the newest, for people.
    pub(crate) fn write_latest(&self, name: &CheckpointName) -> Result<()> {
        Ok(self.tier().replace("LATEST", format!("{name}\n").as_bytes())?)
    }

    /// The index of a rank, checked.
    pub(crate) fn index(
        &self,
        name: &CheckpointName,
        manifest: &Manifest,
        rank: usize,
    ) -> Result<Index> {
        Ok(self.read_index(name, manifest, rank)?.value)
    }

    /// The index of a rank, checked, and its text.
    pub(crate) fn read_index(
        &self,
        name: &CheckpointName,
        manifest: &Manifest,
        rank: usize,
    ) -> Result<Checked<Index>> {
        self.read_index_in(name, manifest, rank, &index_file(rank))
    }

    /// The index of a rank in the file of this name, checked.
    pub(crate) fn read_index_in(
        &self,
        name: &CheckpointName,
        manifest: &Manifest,
        rank: usize,
        file: &str,
    ) -> Result<Checked<Index>> {
        let key = manifest.rank_key(name, rank, file);
        self.read_checked(&key, |_| {
            let text = self.read_text(&key, INDEX_BYTES_MAX)?;
            let value = self.parse_index(name, manifest, rank, &text)?;
            Ok(Checked { text, value })
        })
    }

    /// Parses and checks an index: that it is the one the manifest names, and every field that a
    /// reader relies on.
    pub(crate) fn parse_index(
        &self,
        name: &CheckpointName,
        manifest: &Manifest,
        rank: usize,
        text: &str,
    ) -> Result<Index> {
        let path = self.tier().path(&manifest.rank_key(name, rank, &index_file(rank)));
        let (index, digest): (Index, _) = unseal(&path, text.as_bytes())?;
        let expected = &manifest.ranks[rank].index;
        if digest != *expected {
            return Err(Error::damaged(&path, 0, format!("digest {expected}"), digest));
        }
        index.check(&path, name, rank)?;
        manifest.check_index(&path, &index)?;
        Ok(index)
    }

    /// The ranks whose indexes are here: all of them, or on a tier of node scope those of the node.
    pub(crate) fn ranks_here(
        &self,
        name: &CheckpointName,
        manifest: &Manifest,
    ) -> Result<Vec<usize>> {
        if self.scope() == Scope::Shared {
            return Ok((0..manifest.world).collect());
        }
        self.ranks_with(name, manifest, index_file)
    }

    /// The ranks whose files a restore has rejected here, while those of others count.
    pub(crate) fn rejected_ranks(
        &self,
        name: &CheckpointName,
        manifest: &Manifest,
    ) -> Result<Vec<usize>> {
        if self.scope() == Scope::Shared {
            return Ok(Vec::new());
        }
        self.ranks_with(name, manifest, rejected_index_file)
    }

    /// The ranks that have a file of this name here.
    fn ranks_with(
        &self,
        name: &CheckpointName,
        manifest: &Manifest,
        file_of: fn(usize) -> String,
    ) -> Result<Vec<usize>> {
        let mut found = HashSet::new();
        for folder in self.tier().list(&name.to_string())? {
            if folder.is_folder {
                let files = self.tier().list(&name.key(&folder.name))?;
                found.extend(
                    files.into_iter().map(|file| name.key(&folder.name) + "/" + &file.name),
                );
            }
        }
        let is_here =
            |&rank: &usize| found.contains(&manifest.rank_key(name, rank, &file_of(rank)));
        Ok((0..manifest.world).filter(is_here).collect())
    }

    /// Reads a file as text; a file that is not UTF-8 is damaged.
    pub(crate) fn read_text(&self, key: &str, bytes_max: u64) -> Result<String> {
        String::from_utf8(self.tier().read(key, bytes_max)?).map_err(|error| {
            let at = error.utf8_error().valid_up_to() as u64;
            Error::damaged(&self.tier().path(key), at, "UTF-8", "other bytes")
        })
    }
}
