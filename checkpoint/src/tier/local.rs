//! Tier that is a folder of a file system: of this node, or shared by all.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{Advice, fadvise};

use super::{Entry, Reader, Tier, Upload};
use record::files::{
    DirectFile, IoError, Mode, Published, create_folders, publish_with, regular_file,
    remove_folder, replace_with, sync_parent,
};
use record::machine::boot_id;

/// A folder of a file system. It and folders of keys are created with the first file in them.
#[derive(Debug, Clone)]
pub struct LocalTier {
    root: PathBuf,
    mode: Mode,
}

impl LocalTier {
    /// The tier in this folder. Touches nothing.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), mode: Mode::Run }
    }

    /// Sets a mode of new files and folders other than that of a run's files.
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// The path of a file whose folder exists.
    fn path_to_write(&self, key: &str) -> Result<PathBuf, IoError> {
        let path = self.path(key);
        path.parent().map_or(Ok(()), |folder| create_folders(folder, self.mode))?;
        Ok(path)
    }
}

impl Tier for LocalTier {
    fn path(&self, key: &str) -> PathBuf {
        if key.is_empty() { self.root.clone() } else { self.root.join(key) }
    }

    fn read(&self, key: &str, bytes_max: u64) -> Result<Vec<u8>, IoError> {
        regular_file::read(&self.path(key), bytes_max)
    }

    fn open(&self, key: &str) -> Result<Box<dyn Reader>, IoError> {
        let path = self.path(key);
        let file = regular_file::open_to_read(&path)?;
        let stat = |file: &File| -> std::io::Result<_> {
            let metadata = file.metadata()?;
            Ok((metadata.len(), metadata.modified()?))
        };
        let (size_bytes, modified) = stat(&file).map_err(IoError::at(&path, "stat"))?;
        Ok(Box::new(LocalReader { path, file, size_bytes, modified }))
    }

    /// The kernel's number of the folder, which names it on this machine whatever path a container
    /// sees it at.
    fn disk(&self) -> Option<String> {
        let (machine, folder) = (boot_id(), fs::metadata(&self.root).ok()?);
        (!machine.is_empty()).then(|| format!("{machine} {}:{}", folder.dev(), folder.ino()))
    }

    fn drop_cache(&self, key: &str) {
        if let Ok(file) = regular_file::open_to_read(&self.path(key)) {
            // A file system without it reads from its cache again.
            let _ = fadvise(file, 0, None, Advice::DontNeed);
        }
    }

    fn exists(&self, key: &str) -> Result<bool, IoError> {
        let path = self.path(key);
        match fs::symlink_metadata(&path) {
            Ok(metadata) => Ok(!metadata.is_dir()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(IoError::at(&path, "stat")(error)),
        }
    }

    fn replace(&self, key: &str, bytes: &[u8]) -> Result<(), IoError> {
        replace_with(&self.path_to_write(key)?, bytes, self.mode)
    }

    /// Also makes all folders above the file durable, whichever process has created them.
    fn publish(
        &self,
        key: &str,
        bytes: &[u8],
        midway: &mut dyn FnMut(),
    ) -> Result<Published, IoError> {
        let path = self.path_to_write(key)?;
        let published = publish_with(&path, bytes, self.mode, midway)?;
        let is_above = |folder: &&Path| folder.starts_with(&self.root) && **folder != self.root;
        path.ancestors().skip(1).take_while(is_above).try_for_each(sync_parent)?;
        Ok(published)
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>, IoError> {
        Ok(Box::new(DirectFile::create(&self.path_to_write(key)?, self.mode)?))
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>, IoError> {
        let path = self.path(folder);
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(IoError::at(&path, "list"))?,
        };
        let mut listed = Vec::new();
        for entry in entries {
            let entry = entry.map_err(IoError::at(&path, "list"))?;
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            // Names that are not UTF-8 are not ours.
            listed
                .extend(entry.file_name().into_string().ok().map(|name| Entry { name, is_folder }));
        }
        listed.sort();
        Ok(listed)
    }

    fn delete(&self, key: &str) -> Result<(), IoError> {
        let path = self.path(key);
        let removed = fs::remove_file(&path).map_err(IoError::at(&path, "unlink"));
        unless_absent(removed)?;
        // Also when it did not exist: the process that removed it may have been killed before.
        unless_absent(sync_parent(&path))
    }

    fn delete_folder(&self, folder: &str, last: &str) -> Result<(), IoError> {
        let path = self.path(folder);
        unless_absent(remove_folder(&path, last))?;
        unless_absent(sync_parent(&path))
    }
}

fn unless_absent(result: Result<(), IoError>) -> Result<(), IoError> {
    result.or_else(
        |error| {
            if error.source.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) }
        },
    )
}

#[derive(Debug)]
struct LocalReader {
    path: PathBuf,
    file: File,
    size_bytes: u64,
    modified: SystemTime,
}

impl Reader for LocalReader {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn modified(&self) -> SystemTime {
        self.modified
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), IoError> {
        self.file.read_exact_at(buffer, offset).map_err(IoError::at(&self.path, "read"))
    }
}

impl Upload for DirectFile {
    fn write(&mut self, bytes: &[u8]) -> Result<(), IoError> {
        Self::write(self, bytes)
    }

    fn finish(self: Box<Self>) -> Result<(), IoError> {
        Self::finish(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::contract;
    use record::files::BUFFER_BYTES;

    #[test]
    fn keeps_the_contract_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("run/checkpoints");
        contract::run_all(&LocalTier::new(&root), BUFFER_BYTES);
        assert_eq!(fs::read_dir(root).unwrap().count(), 0);
    }

    #[test]
    fn keeps_the_contract_in_memory() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        contract::run_all(&LocalTier::new(folder.path()), BUFFER_BYTES);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_is_not_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let tier = LocalTier::new(folder.path());
        tier.replace("folder/file", b"x").unwrap();
        assert!(tier.exists("folder/file").unwrap() && !tier.exists("folder").unwrap());
    }

    #[test]
    fn a_killed_upload_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let tier = LocalTier::new(folder.path());
        fs::write(tier.path("x.tmp"), "half of it").unwrap();
        let mut upload = tier.create("x").unwrap();
        upload.write(b"all").unwrap();
        upload.finish().unwrap();
        assert_eq!(tier.read("x", 100).unwrap(), b"all");
        assert_eq!(tier.list("").unwrap().len(), 1);
    }
}
