//! Reading manifests and indexes, each checked before it is used, and renaming manifests.

use std::collections::HashSet;

use super::Store;
use crate::error::{Error, Result};
use crate::format::index::{Index, index_file};
use crate::format::limits::{INDEX_BYTES_MAX, MANIFEST_BYTES_MAX};
use crate::format::manifest::{MANIFEST, Manifest, rejected_rank};
use crate::format::name::CheckpointName;
use crate::format::sealed::unseal;
use crate::tier::{Entry, Scope};

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
            Err(_) => self.read_damaged(&name.key(from))?,
        };
        // Another process writes the same bytes under that name.
        self.tier().publish(&name.key(to), &bytes, &mut || {})?;
        Ok(())
    }

    /// Content of a damaged manifest, nothing where a disk cannot read it: such a checkpoint must
    /// not count for ever.
    fn read_damaged(&self, key: &str) -> Result<Vec<u8>> {
        match self.tier().read(key, MANIFEST_BYTES_MAX).map_err(Error::from) {
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
        let key = manifest.rank_key(name, rank, &index_file(rank));
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

    /// The ranks whose files are here, by their indexes: all of them, or on a tier of node scope
    /// those of the node. Without those whose files were rejected.
    pub(crate) fn ranks_here(
        &self,
        name: &CheckpointName,
        manifest: &Manifest,
    ) -> Result<Vec<usize>> {
        let entries = self.tier().list(&name.to_string())?;
        let rejected: HashSet<_> = rejected_among(&entries).collect();
        let ranks = (0..manifest.world).filter(|rank| !rejected.contains(rank));
        if self.scope() == Scope::Shared {
            return Ok(ranks.collect());
        }
        let mut indexes = HashSet::new();
        for folder in entries.iter().filter(|entry| entry.is_folder) {
            let files = self.tier().list(&name.key(&folder.name))?;
            indexes.extend(files.into_iter().map(|file| name.key(&folder.name) + "/" + &file.name));
        }
        let is_here =
            |rank: &usize| indexes.contains(&manifest.rank_key(name, *rank, &index_file(*rank)));
        Ok(ranks.filter(is_here).collect())
    }

    /// The ranks whose files were rejected here, while those of others count.
    pub(crate) fn rejected_ranks(&self, name: &CheckpointName) -> Result<Vec<usize>> {
        Ok(rejected_among(&self.tier().list(&name.to_string())?).collect())
    }

    /// Reads a file as text; a file that is not UTF-8 is damaged.
    pub(crate) fn read_text(&self, key: &str, bytes_max: u64) -> Result<String> {
        String::from_utf8(self.tier().read(key, bytes_max)?).map_err(|error| {
            let at = error.utf8_error().valid_up_to() as u64;
            Error::damaged(&self.tier().path(key), at, "UTF-8", "other bytes")
        })
    }
}

fn rejected_among(entries: &[Entry]) -> impl Iterator<Item = usize> + '_ {
    entries.iter().filter_map(|entry| rejected_rank(&entry.name))
}
