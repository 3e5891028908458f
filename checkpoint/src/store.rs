//! A folder of checkpoints: what is in it, and in which state.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::format::manifest::{MANIFEST, Manifest, REJECTED, TOMBSTONE};
use crate::format::sealed::unseal;
use crate::name::Name;
use crate::{Digest, Error, Identity, Result};

/// How files are cut, which readers take from the files, and how they are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Bytes of one digest, and of one read: 16 MiB by default.
    pub chunk_bytes: u64,
    /// Largest data of one shard file, unless a single box is larger: 8 GiB by default.
    pub file_bytes_max: u64,
    /// Ranks that share one `dNN` folder: 64 by default.
    pub ranks_per_folder: usize,
    /// How long a resume waits for a file that a manifest names: another machine's view of a shared
    /// file system may lag behind the commit. 5 seconds by default.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            chunk_bytes: 16 << 20,
            file_bytes_max: 8 << 30,
            ranks_per_folder: 64,
            patience: Duration::from_secs(5),
        }
    }
}

/// State of a checkpoint's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// It has a valid manifest. Whether its data is intact is for [`Store::verify`] to say.
    Committed {
        /// Ranks that wrote it.
        world: usize,
        /// Bytes of tensor data.
        bytes: u64,
    },
    /// A save that was cut short, or still goes on.
    Uncommitted,
    /// Its removal was cut short.
    Deleted,
    /// Its manifest cannot be used; the reason.
    Damaged(String),
    /// Its data was found damaged by [`Store::resume`], which went back to an older one. It does
    /// not count, and goes when it is old. The manifest is called `MANIFEST.rejected`.
    Rejected,
    /// Its manifest is of another run, workload or newer format, or cannot be read now; the
    /// reason.
    Refused(String),
}

/// One line of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Name of its folder, by which [`Store::restore`] and [`Store::verify`] take it.
    pub name: String,
    /// Steps done.
    pub step: u64,
    /// The run's attempt that wrote it.
    pub epoch: u64,
    /// What state it is in.
    pub status: Status,
}

/// A folder of checkpoints of one run.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    identity: Identity,
    options: Options,
    /// Attempts of this process that may have left remains (rank 0).
    pub(crate) created: Mutex<Vec<Name>>,
    /// Nothing that is old is removed any more.
    pub(crate) leaves_old: AtomicBool,
}

impl Store {
    /// Opens a folder; creates it and its `RUN.json`, or checks the one that is there.
    ///
    /// Not collective: all ranks may call it at once.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for a folder of another run or workload, [`Error::UnknownFormat`],
    /// [`Error::Damaged`] or [`Error::Io`].
    pub fn open(root: &Path, identity: &Identity) -> Result<Self> {
        identity.establish(root)?;
        let identity = identity.clone();
        let (root, options, created) = (root.to_owned(), Options::default(), Mutex::default());
        let leaves_old = AtomicBool::new(false);
        Ok(Self { root, identity, options, created, leaves_old })
    }

    /// Opens an existing folder as whatever it says it is, to look at it.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`] when there is no `RUN.json`, and as [`Store::open`].
    pub fn find(root: &Path) -> Result<Self> {
        match Identity::read(root)? {
            Some(identity) => Self::open(root, &identity),
            None => Err(Error::NoCheckpoint { root: root.to_owned(), rejected: Vec::new() }),
        }
    }

    /// The same store with other sizes.
    ///
    /// # Panics
    /// When one of them is 0.
    #[must_use]
    pub fn with_options(mut self, options: Options) -> Self {
        let Options { chunk_bytes, file_bytes_max, ranks_per_folder, .. } = options;
        assert!(chunk_bytes > 0 && file_bytes_max > 0 && ranks_per_folder > 0, "{options:?}");
        self.options = options;
        self
    }

    /// The folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Whose folder it is.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Everything that is a checkpoint by name, newest first: later epochs before earlier ones,
    /// then later steps before earlier ones. Foreign files are left out.
    ///
    /// # Errors
    /// [`Error::Io`] when the folder cannot be read.
    pub fn list(&self) -> Result<Vec<Listed>> {
        let list = |name: Name| Listed {
            name: name.to_string(),
            step: name.step,
            epoch: name.epoch,
            status: self.status(&name),
        };
        Ok(self.scan()?.into_iter().map(list).collect())
    }

    /// The newest committed checkpoint.
    ///
    /// # Errors
    /// As [`Store::list`].
    pub fn newest(&self) -> Result<Option<Listed>> {
        let is_newest = |listed: &&Listed| matches!(listed.status, Status::Committed { .. });
        loop {
            let listed = self.list()?;
            if let Some(newest) = listed.iter().find(is_newest) {
                return Ok(Some(newest.clone()));
            }
            // A run may have removed what was the last, after it had committed another.
            if self.list()? == listed {
                return Ok(None);
            }
        }
    }

    /// Whether a committed checkpoint of this name is there, damaged or not.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`] when it is no checkpoint's name.
    pub fn holds(&self, checkpoint: &str) -> Result<bool> {
        Ok(is_committed(&self.folder(&self.parse_name(checkpoint)?)))
    }

    /// Names of all folders that are checkpoints by name, newest first.
    pub(crate) fn scan(&self) -> Result<Vec<Name>> {
        scan(&self.root)
    }

    pub(crate) fn folder(&self, name: &Name) -> PathBuf {
        self.root.join(name.to_string())
    }

    pub(crate) fn status(&self, name: &Name) -> Status {
        let folder = self.folder(name);
        if folder.join(TOMBSTONE).exists() {
            return Status::Deleted;
        }
        if !has_manifest(&folder) {
            let is_rejected = is_rejected(&folder);
            return if is_rejected { Status::Rejected } else { Status::Uncommitted };
        }
        match self.manifest(name) {
            Ok((manifest, _)) => Status::Committed { world: manifest.world, bytes: manifest.bytes },
            Err(error) if error.is_damage() => Status::Damaged(error.to_string()),
            Err(error) => Status::Refused(error.to_string()),
        }
    }

    /// The manifest, checked.
    pub(crate) fn manifest(&self, name: &Name) -> Result<(Manifest, Digest)> {
        let path = self.folder(name).join(MANIFEST);
        let bytes = fs::read(&path).map_err(Error::io(&path, "read"))?;
        self.parse_manifest(name, &bytes)
    }

    /// A manifest's text, checked: digest, format, owner, and that it is not of another folder.
    pub(crate) fn parse_manifest(&self, name: &Name, bytes: &[u8]) -> Result<(Manifest, Digest)> {
        let path = self.folder(name).join(MANIFEST);
        let (manifest, digest): (Manifest, _) = unseal(&path, bytes)?;
        self.identity.check(&path, "workload", &self.identity.workload, &manifest.workload)?;
        self.identity.check(&path, "run", &self.identity.run, &manifest.run)?;
        if manifest.checkpoint != name.to_string() {
            return Err(Error::damaged(&path, 0, name, manifest.checkpoint));
        }
        let root = Digest::merkle(manifest.ranks.iter().map(|rank| &rank.index));
        if root != manifest.root || manifest.ranks.len() != manifest.world {
            return Err(Error::damaged(&path, 0, format!("root {}", manifest.root), root));
        }
        Ok((manifest, digest))
    }

    /// The name of a checkpoint in this store.
    pub(crate) fn parse_name(&self, text: &str) -> Result<Name> {
        let rejected = Vec::new();
        text.parse().map_err(|()| Error::NoCheckpoint { root: self.root.join(text), rejected })
    }
}

/// Whether a folder holds a checkpoint that was ever committed, damaged or not: one that
/// [`Store::resume`] restores, or does not pass over in silence. Changes nothing, and asks for no
/// identity; a folder that is not there holds none.
///
/// # Errors
/// [`Error::Io`] when the folder cannot be read.
pub fn holds_any(root: &Path) -> Result<bool> {
    if !root.try_exists().map_err(Error::io(root, "look for"))? {
        return Ok(false);
    }
    let mut folders = scan(root)?.into_iter().map(|name| root.join(name.to_string()));
    Ok(folders.any(|folder| is_committed(&folder) || is_rejected(&folder)))
}

fn scan(root: &Path) -> Result<Vec<Name>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root).map_err(Error::io(root, "list"))? {
        let entry = entry.map_err(Error::io(root, "list"))?;
        let name = entry.file_name().to_str().and_then(|text| text.parse().ok());
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        names.extend(name.filter(|_: &Name| is_folder));
    }
    names.sort_by(|a, b| b.cmp(a));
    Ok(names)
}

/// Whether a folder was committed and nobody has begun to remove it.
pub(crate) fn is_committed(folder: &Path) -> bool {
    has_manifest(folder) && !folder.join(TOMBSTONE).exists()
}

/// Whether a folder was committed and set aside as damaged.
pub(crate) fn is_rejected(folder: &Path) -> bool {
    !folder.join(TOMBSTONE).exists() && folder.join(REJECTED).exists()
}

/// Whether a folder was committed. Anything but a clear no is a yes: the manifest is then read,
/// and what is wrong with it reported.
pub(crate) fn has_manifest(folder: &Path) -> bool {
    folder.join(MANIFEST).try_exists().unwrap_or(true)
}
