//! Benchmark of writing, reading and listing a tier, without training.
//!
//! Every thread stands for a process of a checkpoint: it writes a file of its own, makes it
//! durable, and reads another thread's file from cold storage. A duration is that of the slowest
//! thread; throughput is all bytes divided by it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use checkpoint::Error;
use checkpoint::tier::Tier;
use device::threads;
use record::files::Filesystem;
use record::files::IoError;
use serde::Serialize;

use super::bench_folder::{LOCK, locked, new_name, remove_abandoned};
use super::open::place;
use crate::data::bench::drop_pages;

/// Size of one write and of one read: a chunk of a checkpoint.
const PIECE_BYTES: usize = 16 << 20;
/// Number and size of the small files of each thread.
const SMALL_FILES: usize = 32;
const SMALL_BYTES: usize = 4096;
/// Number of times that each thread lists its folder.
const LISTS: usize = 8;

/// Load to measure on each tier.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Bytes of all threads together.
    pub bytes: u64,
    /// Threads that write and read.
    pub threads: usize,
}

/// Rates of one tier.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TierRates {
    /// Path or URL of the tier.
    pub address: String,
    /// Kind of file system; `None` for an object store.
    pub filesystem: Option<String>,
    /// Threads that write and read.
    pub threads: usize,
    /// Bytes of all threads together.
    pub bytes: u64,
    /// Seconds to write all bytes durably.
    pub write_seconds: f64,
    /// Write rate.
    pub write_gib_per_second: f64,
    /// Seconds to read all bytes.
    pub read_seconds: f64,
    /// Read rate.
    pub read_gib_per_second: f64,
    /// True if the files were absent from the page cache when they were read; false if the kernel
    /// keeps them there or cannot say. `None` for an object store.
    pub read_is_cold: Option<bool>,
    /// Rate of creating small files, each durable.
    pub creates_per_second: f64,
    /// Rate of reading the size of small files.
    pub stats_per_second: f64,
    /// Rate of listing a folder with as many small files as each thread creates.
    pub lists_per_second: f64,
    /// Rate of removing small files.
    pub deletes_per_second: f64,
}

/// Measures the tier at an address. Everything that it writes is in one folder. The folder is
/// removed, also after an error, and so are parent folders that did not exist, and folders that
/// processes killed more than a day ago have left.
///
/// # Errors
/// If its files cannot be written, read or removed.
pub fn bench(address: &str, load: Load) -> Result<TierRates, Error> {
    let is_local = !address.contains("://");
    let created = if is_local { absent_folders(Path::new(address)) } else { Vec::new() };
    let scratch =
        Scratch { tier: place(address, Duration::MAX)?, folder: new_name(), is_local, created };
    let measured = scratch.measure_locked(address, load);
    let removed = scratch.remove();
    if is_local {
        remove_abandoned(&*scratch.tier, Path::new(address));
    }
    let rates = measured?;
    removed?;
    Ok(rates)
}

/// Returns the folders that writing will create, the deepest first.
fn absent_folders(root: &Path) -> Vec<PathBuf> {
    let is_absent = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    root.ancestors().take_while(is_absent).map(Path::to_owned).collect()
}

/// Folder on a tier that nobody else uses.
struct Scratch {
    tier: Arc<dyn Tier>,
    folder: String,
    is_local: bool,
    created: Vec<PathBuf>,
}

impl Scratch {
    /// Measures with the folder locked, until before it is removed: NFS keeps files that are open.
    fn measure_locked(&self, address: &str, load: Load) -> Result<TierRates, Error> {
        let lock = || locked(&self.tier.path(&self.folder));
        let _lock = self.is_local.then(lock).transpose()?;
        self.measure(address, load)
    }

    fn measure(&self, address: &str, Load { bytes, threads }: Load) -> Result<TierRates, Error> {
        let per_thread = bytes / threads as u64;
        let bytes = per_thread * threads as u64;
        let content = incompressible(2 * PIECE_BYTES);
        let write_seconds = slowest(threads, |thread| self.write(thread, per_thread, &content))?;
        // The folder exists only after the write.
        let filesystem =
            if self.is_local { Some(Filesystem::of(Path::new(address))?) } else { None };
        let is_cold = if self.is_local { Some(self.drop_pages(threads)?) } else { None };
        let other = |thread: usize| (thread + 1) % threads;
        let read_seconds = slowest(threads, |thread| self.read(other(thread)))?;
        let small = |act: &(dyn Fn(&str) -> Result<(), IoError> + Sync)| {
            let files = |thread| {
                let mut names = (0..SMALL_FILES).map(|number| format!("small-{number:04}"));
                names.try_for_each(|name| act(&self.key(thread, &name)))
            };
            let seconds = slowest(threads, files)?;
            Ok::<_, Error>((threads * SMALL_FILES) as f64 / seconds)
        };
        let creates = small(&|key| self.tier.replace(key, &content[..SMALL_BYTES]))?;
        let stats = small(&|key| self.tier.exists(key).map(|_| ()))?;
        let list_seconds = slowest(threads, |thread| {
            let folder = format!("{}/t{thread:03}", self.folder);
            (0..LISTS).try_for_each(|_| self.tier.list(&folder).map(|_| ()))
        })?;
        let deletes = small(&|key| self.tier.delete(key))?;
        let gib = bytes as f64 / f64::from(1 << 30);
        Ok(TierRates {
            address: address.to_owned(),
            filesystem: filesystem.map(|filesystem| filesystem.name),
            threads,
            bytes,
            write_seconds,
            write_gib_per_second: gib / write_seconds,
            read_seconds,
            read_gib_per_second: gib / read_seconds,
            read_is_cold: is_cold,
            creates_per_second: creates,
            stats_per_second: stats,
            lists_per_second: (threads * LISTS) as f64 / list_seconds,
            deletes_per_second: deletes,
        })
    }

    fn key(&self, thread: usize, file: &str) -> String {
        format!("{}/t{thread:03}/{file}", self.folder)
    }

    /// Writes a file, which is durable at the end.
    fn write(&self, thread: usize, bytes: u64, content: &[u8]) -> Result<(), IoError> {
        let mut upload = self.tier.create(&self.key(thread, "data"))?;
        let mut left = bytes;
        let mut piece = thread;
        while left > 0 {
            // Other bytes in each block, for storage that deduplicates.
            let start = piece * 4099 % PIECE_BYTES;
            let now = left.min(PIECE_BYTES as u64);
            upload.write(&content[start..start + now as usize])?;
            left -= now;
            piece += 1009;
        }
        upload.finish()
    }

    fn read(&self, thread: usize) -> Result<(), IoError> {
        let reader = self.tier.open(&self.key(thread, "data"))?;
        let size = reader.size_bytes();
        let mut buffer = vec![0; PIECE_BYTES.min(size as usize)];
        let mut offset = 0;
        while offset < size {
            let now = (size - offset).min(PIECE_BYTES as u64);
            reader.read_exact_at(&mut buffer[..now as usize], offset)?;
            offset += now;
        }
        Ok(())
    }

    /// Drops the files from the page cache and returns whether that worked.
    fn drop_pages(&self, threads: usize) -> Result<bool, IoError> {
        let mut is_cold = true;
        for thread in 0..threads {
            let path = self.tier.path(&self.key(thread, "data"));
            let drop = || {
                let file = File::open(&path)?;
                drop_pages(&file, file.metadata()?.len())
            };
            is_cold &= drop().map_err(IoError::at(&path, "drop from memory"))?;
        }
        Ok(is_cold)
    }

    fn remove(&self) -> Result<(), IoError> {
        self.tier.delete_folder(&self.folder, LOCK)?;
        for folder in &self.created {
            if std::fs::remove_dir(folder).is_err() {
                break; // another process uses it now
            }
        }
        Ok(())
    }
}

/// Returns the seconds of the slowest thread; all threads start at once.
fn slowest(
    threads: usize,
    act: impl Fn(usize) -> Result<(), IoError> + Sync,
) -> Result<f64, Error> {
    let start_line = RwLock::new(());
    let timed = |thread| {
        drop(start_line.read());
        let start = Instant::now();
        act(thread)?;
        Ok(start.elapsed().as_secs_f64())
    };
    std::thread::scope(|scope| {
        let timed = &timed;
        let closed = start_line.write();
        let running = (0..threads)
            .map(|thread| threads::spawn_scoped(scope, "bench", move || timed(thread)))
            .collect::<Result<Vec<_>, _>>();
        drop(closed);
        let mut slowest = 1e-9; // a rate is finite
        for thread in running? {
            let seconds: Result<f64, IoError> = thread.join().expect("a thread does not panic");
            slowest = seconds?.max(slowest);
        }
        Ok(slowest)
    })
}

/// Returns bytes of xorshift64, which no file system can compress.
fn incompressible(size: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load { bytes: 5_000_000, threads: 2 };

    #[test]
    fn nothing_stays_on_the_tier() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("a/b");
        let rates = bench(&root.to_string_lossy(), LOAD).unwrap();
        assert_eq!((rates.bytes, rates.threads), (5_000_000, 2));
        assert!(rates.filesystem.is_some() && rates.read_is_cold.is_some());
        for rate in [
            rates.write_gib_per_second,
            rates.read_gib_per_second,
            rates.creates_per_second,
            rates.stats_per_second,
            rates.lists_per_second,
            rates.deletes_per_second,
        ] {
            assert!(rate.is_finite() && rate > 0.0, "{rates:?}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a/ did not exist");
    }

    #[test]
    fn nothing_stays_after_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = Scratch {
            tier: place(&folder.path().join("tier").to_string_lossy(), Duration::MAX).unwrap(),
            folder: "bench".to_owned(),
            is_local: true,
            created: vec![folder.path().join("tier")],
        };
        scratch.write(0, 10, &incompressible(2 * PIECE_BYTES)).unwrap();
        scratch.read(1).unwrap_err();
        scratch.remove().unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
