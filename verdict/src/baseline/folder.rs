//! Store in a folder, for tests of this crate and of its dependents.

use std::fs;
use std::path::{Path, PathBuf};

use record::files::{self, Mode, create_folders, regular_file};

use super::{Entry, Storage, StorageError};

#[derive(Debug)]
struct Folder(PathBuf);

/// Opens the store in a folder.
///
/// # Errors
/// None.
pub fn open_folder(address: &str) -> Result<Box<dyn Storage>, StorageError> {
    Ok(Box::new(Folder(PathBuf::from(address))))
}

impl Storage for Folder {
    fn list(&self, folder: &str) -> Result<Vec<Entry>, StorageError> {
        let Ok(found) = fs::read_dir(self.path(folder)) else { return Ok(Vec::new()) };
        let mut entries = Vec::new();
        for found in found {
            let found = found?;
            let name = found.file_name().to_string_lossy().into_owned();
            entries.push(Entry { name, is_folder: found.path().is_dir() });
        }
        entries.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(entries)
    }

    fn exists(&self, name: &str) -> Result<bool, StorageError> {
        Ok(self.path(name).exists())
    }

    fn read(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>, StorageError> {
        Ok(regular_file::read(&self.path(name), bytes_max)?)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
        let path = self.path(name);
        create_folders(path.parent().unwrap_or(Path::new(".")), Mode::Umask)?;
        Ok(files::replace_with(&path, bytes, Mode::Umask)?)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}
