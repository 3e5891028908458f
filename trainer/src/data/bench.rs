//! Benchmark of reading token files: from their store, from the disk, and from memory.

use std::fs::File;
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use record::files::IoError;
use record::text::is_remote;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use serde::Serialize;

use super::cache::{Object, transfer};
use super::error::DataError;
use super::locations::{LocalFile, Locations};
use super::ranges::for_ranges;

/// Size of one read.
const BLOCK_BYTES: u64 = 4 << 20;
/// Reads in flight: a single one leaves most disks idle.
const READERS: usize = 8;
/// Number of offsets at which a file is sampled for being in memory.
const SAMPLES: u64 = 64;

/// Rates of one file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FileRates {
    /// Path or URL.
    pub file: PathBuf,
    /// Size of the file.
    pub size_bytes: u64,
    /// Rate from the object store to memory; `None` for a path.
    pub download_bytes_per_second: Option<f64>,
    /// Rate from the disk, with nothing of the file in memory. `None` where the kernel kept the
    /// file in memory (a file system in memory, or another process has it mapped) or cannot say.
    pub cold_bytes_per_second: Option<f64>,
    /// Rate from memory.
    pub warm_bytes_per_second: f64,
}

/// Reads files one after the other. Files of object stores are downloaded, and stay in the cache.
///
/// # Errors
/// If a file cannot be read.
pub fn bench(names: &[String], locations: &Locations) -> Result<Vec<FileRates>, DataError> {
    let downloads = names.iter().map(|name| download_rate(name, locations));
    let downloads = downloads.collect::<Result<Vec<_>, _>>()?;
    locations.open_files(names, |files| {
        let files = files.iter().zip(&downloads);
        files.map(|(file, download)| read_rates(file, *download)).collect()
    })
}

fn download_rate(name: &str, locations: &Locations) -> Result<Option<f64>, DataError> {
    if !is_remote(name) {
        return Ok(None);
    }
    let object = Object::find(name, &locations.cache.remote)?;
    let start = Instant::now();
    transfer(&object, |_, _| Ok(()))?;
    Ok(Some(per_second(object.info.size_bytes, start)))
}

fn read_rates(file: &LocalFile, download: Option<f64>) -> Result<FileRates, DataError> {
    let LocalFile { path, name, .. } = file;
    let opened = File::open(path).map_err(IoError::at(path, "open"))?;
    let size_bytes = opened.metadata().map_err(IoError::at(path, "read the size"))?.len();
    let is_cold = drop_pages(&opened, size_bytes).map_err(IoError::at(path, "drop from memory"))?;
    let first = read_all(&opened, path, size_bytes)?;
    Ok(FileRates {
        file: name.clone(),
        size_bytes,
        download_bytes_per_second: download,
        cold_bytes_per_second: is_cold.then_some(first),
        warm_bytes_per_second: read_all(&opened, path, size_bytes)?,
    })
}

/// Removes a file from the page cache, and returns whether that worked.
pub(crate) fn drop_pages(file: &File, size: u64) -> std::io::Result<bool> {
    file.sync_data()?; // what is not on the disk yet stays in memory
    fadvise(file, 0, None, Advice::DontNeed)?;
    let mut byte = [0];
    for sample in 0..SAMPLES.min(size) {
        let offset = size / SAMPLES.min(size) * sample;
        let mut buffers = [IoSliceMut::new(&mut byte)];
        match preadv2(file, &mut buffers, offset, ReadWriteFlags::NOWAIT) {
            Err(Errno::AGAIN) => {} // not in memory
            Ok(_) | Err(Errno::OPNOTSUPP) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// Returns the bytes per second of reading a whole file, in blocks and by several threads.
fn read_all(file: &File, path: &Path, size: u64) -> Result<f64, IoError> {
    let reader = || {
        let mut block = vec![0; BLOCK_BYTES as usize];
        move |range: Range<u64>| {
            let bytes = (range.end - range.start) as usize;
            file.read_exact_at(&mut block[..bytes], range.start)
        }
    };
    let start = Instant::now();
    for_ranges(size, BLOCK_BYTES, READERS, reader).map_err(IoError::at(path, "read"))?;
    Ok(per_second(size, start))
}

fn per_second(bytes: u64, start: Instant) -> f64 {
    bytes as f64 / start.elapsed().as_secs_f64().max(1e-9)
}
