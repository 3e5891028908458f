//! Download of an object to a file: several ranges at a time, each written to its place.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use record::files::{IoError, Mode, create_folders, regular_file};

use super::Cache;
use super::entry::{self, Entry, Object};
use crate::data::error::DataError;
use crate::data::ranges::for_ranges;

/// Size of one request: large enough for its latency not to matter.
const RANGE_BYTES: u64 = 16 << 20;
/// Requests in flight: a single connection rarely fills a network link.
const IN_FLIGHT: usize = 8;

impl Cache {
    /// Downloads an object to its file, which appears only when complete.
    pub(super) fn download(&self, object: &Object) -> Result<(), DataError> {
        let file = self.file(&object.url);
        tracing::info!("downloads {} ({} bytes)", object.url, object.info.size_bytes);
        create_folders(file.parent().unwrap_or(&self.folder), Mode::Umask)?;
        let mut temporary = file.clone().into_os_string();
        temporary.push(".tmp");
        let temporary = Path::new(&temporary);
        let digest = self.download_to(object, temporary).inspect_err(|_| {
            drop(fs::remove_file(temporary)); // the error before it is the one to report
        })?;
        fs::rename(temporary, &file).map_err(IoError::at(&file, "rename"))?;
        let entry = Entry {
            url: object.url.clone(),
            etag: object.info.etag.clone(),
            size_bytes: object.info.size_bytes,
            digest,
        };
        Ok(entry.write(&self.entry_path(&object.url))?)
    }

    fn download_to(&self, object: &Object, path: &Path) -> Result<String, DataError> {
        let file = regular_file::create_anew(path, Mode::Umask)?;
        transfer(object, |range_start, bytes| {
            file.write_all_at(bytes, range_start).map_err(IoError::at(path, "write"))
        })?;
        file.sync_data().map_err(IoError::at(path, "fdatasync"))?;
        entry::digest(path)
    }
}

/// Reads an object in ranges, in any order. All are of the same version of the object.
pub(in crate::data) fn transfer(
    object: &Object,
    write: impl Fn(u64, &[u8]) -> Result<(), IoError> + Sync,
) -> Result<(), IoError> {
    let Object { remote, name, info, .. } = object;
    let read = |range: Range<u64>| {
        let start = range.start;
        write(start, &remote.read_range(name, range, info.etag.as_deref())?)
    };
    for_ranges(info.size_bytes, RANGE_BYTES, IN_FLIGHT, || read)
}
