//! Reading a shard chunk by chunk, each checked by its digest.

use std::fmt::Display;
use std::io::ErrorKind;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use device::threads;

use crate::error::{Error, Result};
use crate::format::digest::Crc64;
use crate::format::index::ShardEntry;
use crate::store::Store;
use crate::tier::Reader;

/// Number of chunks of a shard that are read at the same time: one thread does not fill a fast
/// disk.
const READERS: usize = 3;

/// An open shard, whose size and header are right.
pub(crate) struct ShardReader<'a> {
    store: &'a Store,
    key: String,
    file: Box<dyn Reader>,
    shard: &'a ShardEntry,
    /// Bytes before the data.
    pub(crate) header: Vec<u8>,
}

impl<'a> ShardReader<'a> {
    pub(crate) fn open(store: &'a Store, key: &str, shard: &'a ShardEntry) -> Result<Self> {
        let file = store.read_checked(key, |_| open(store, key, shard))?;
        let mut reader = Self { store, key: key.to_owned(), file, shard, header: Vec::new() };
        let mut header = vec![0; shard.header_bytes as usize];
        reader.read(0, &mut header, shard.header_crc64)?;
        reader.header = header;
        Ok(reader)
    }

    /// Reads one chunk and checks it. The buffer then holds the chunk and nothing else.
    pub(crate) fn read_chunk(&self, chunk: u64, buffer: &mut Vec<u8>) -> Result<()> {
        let start = chunk * self.shard.chunk_bytes;
        let bytes = self.shard.chunk_bytes.min(self.shard.data_bytes() - start);
        buffer.resize(bytes as usize, 0);
        let expected = self.shard.chunk_crc64[chunk as usize];
        self.read(self.shard.header_bytes + start, buffer, expected)
    }

    /// Reads these chunks, each checked, and passes them to `take`, in any order: while one is
    /// taken, other chunks are read and checked. After an error few more are read.
    pub(crate) fn read_chunks(
        &self,
        chunks: impl Iterator<Item = u64> + Send,
        take: impl FnMut(u64, &[u8]) + Send,
    ) -> Result<()> {
        let chunks = Mutex::new(chunks.fuse());
        let failed = AtomicBool::new(false);
        let take = Mutex::new(take);
        let read = || {
            let mut buffer = Vec::new();
            while !failed.load(Relaxed) {
                let Some(chunk) = lock(&chunks).next() else { break };
                self.read_chunk(chunk, &mut buffer).inspect_err(|_| failed.store(true, Relaxed))?;
                lock(&take)(chunk, &buffer);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let others: Vec<_> =
                (1..READERS).map(|_| threads::spawn_scoped(scope, "restore", read)).collect();
            let own = read();
            // A thread that cannot be started leaves its chunks to the other threads.
            let joined = others.into_iter().flatten().map(|other| other.join());
            joined.fold(own, |result, other| result.and(other.unwrap_or_else(|p| resume_unwind(p))))
        })
    }

    /// Reads and checks bytes. A file that is read again is opened again: on an object store that
    /// is another request.
    fn read(&self, offset: u64, buffer: &mut [u8], expected: Crc64) -> Result<()> {
        self.store.read_checked(&self.key, |is_again| {
            if is_again {
                let reopened = open(self.store, &self.key, self.shard)?;
                self.read_from(&*reopened, offset, buffer, expected)
            } else {
                self.read_from(&*self.file, offset, buffer, expected)
            }
        })
    }

    fn read_from(
        &self,
        file: &dyn Reader,
        offset: u64,
        buffer: &mut [u8],
        digest: Crc64,
    ) -> Result<()> {
        let expected = format!("CRC64/NVME {digest} over {} bytes", buffer.len());
        let damaged = |found: &dyn Display| {
            let path = self.store.tier().path(&self.key);
            Error::damaged(&path, offset, &expected, found)
        };
        match file.read_exact_at(buffer, offset) {
            Err(error) if error.source.kind() == ErrorKind::UnexpectedEof => {
                return Err(damaged(&error.source));
            }
            read => read?,
        }
        let found = Crc64::of(buffer);
        if found == digest { Ok(()) } else { Err(damaged(&found)) }
    }
}

/// Opens a shard of the right size.
fn open(store: &Store, key: &str, shard: &ShardEntry) -> Result<Box<dyn Reader>> {
    let file = store.tier().open(key)?;
    let found = file.size_bytes();
    if found != shard.bytes {
        return Err(Error::damaged_size(&store.tier().path(key), shard.bytes, found));
    }
    Ok(file)
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
