//! Reading a shard chunk by chunk, each checked by its digest.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::format::digest::Crc64;
use crate::format::index::ShardEntry;

/// An open shard, whose size and header are right.
pub(super) struct ShardReader<'a> {
    path: PathBuf,
    file: File,
    shard: &'a ShardEntry,
}

impl<'a> ShardReader<'a> {
    pub(super) fn open(path: PathBuf, shard: &'a ShardEntry) -> Result<Self> {
        let file = File::open(&path).map_err(Error::io(&path, "open"))?;
        let found = file.metadata().map_err(Error::io(&path, "stat"))?.len();
        if found != shard.bytes {
            return Err(Error::damaged_size(&path, shard.bytes, found));
        }
        let reader = Self { path, file, shard };
        let mut header = vec![0; shard.header_bytes as usize];
        reader.read(0, &mut header, shard.header_crc64)?;
        Ok(reader)
    }

    /// Reads one chunk and checks it. The buffer then holds the chunk and nothing else.
    pub(super) fn read_chunk(&self, chunk: u64, buffer: &mut Vec<u8>) -> Result<()> {
        let start = chunk * self.shard.chunk_bytes;
        let bytes = self.shard.chunk_bytes.min(self.shard.data_bytes() - start);
        buffer.resize(bytes as usize, 0);
        let expected = self.shard.chunk_crc64[chunk as usize];
        self.read(self.shard.header_bytes + start, buffer, expected)
    }

    fn read(&self, offset: u64, buffer: &mut [u8], expected: Crc64) -> Result<()> {
        self.file.read_exact_at(buffer, offset).map_err(Error::io(&self.path, "read"))?;
        let found = Crc64::of(buffer);
        if found != expected {
            let expected = format!("CRC64/NVME {expected} over {} bytes", buffer.len());
            return Err(Error::damaged(&self.path, offset, expected, found));
        }
        Ok(())
    }
}
