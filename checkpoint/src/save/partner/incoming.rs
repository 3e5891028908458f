//! The files of another rank, written to this node's disk as they arrive.

use std::io::{self, ErrorKind};

use crate::error::{Error, Result};
use crate::format::digest::Crc64;
use crate::format::index::{Index, ShardEntry, index_file};
use crate::format::manifest::Manifest;
use crate::save::chunk_writer::{ChunkWriter, Midway};
use crate::save::protocol::Participant;
use record::files::IoError;

/// Writes the stream that [`Outgoing`](super::Outgoing) reads on the other rank. Every byte is
/// verified before the copy counts: the index by its digest in that rank's vote, all else by the
/// index. The index is written last.
#[derive(Debug)]
pub(super) struct Incoming {
    /// The rank whose files these are.
    saved: usize,
    /// Text of the index, as far as it has arrived.
    text: Vec<u8>,
    index_bytes: usize,
    /// The index when all of it has arrived.
    index: Option<Index>,
    /// Number of the file that arrives now.
    number: usize,
    open: Option<Open>,
}

/// A file that is being written.
#[derive(Debug)]
struct Open {
    writer: ChunkWriter,
    /// Everything before the data, as far as it has arrived.
    header: Vec<u8>,
    /// Bytes of the file that have not arrived.
    left_bytes: u64,
}

impl Incoming {
    pub(super) fn new(saved: usize, index_bytes: u64) -> Self {
        Self {
            saved,
            text: Vec::new(),
            index_bytes: index_bytes as usize,
            index: None,
            number: 0,
            open: None,
        }
    }

    /// Takes the next bytes.
    pub(super) fn take(
        &mut self,
        participant: &Participant<'_>,
        manifest: &Manifest,
        mut bytes: &[u8],
    ) -> Result<()> {
        while !bytes.is_empty() {
            let taken = match self.index.take() {
                None => self.take_index(participant, manifest, bytes)?,
                Some(index) => {
                    let shard = &index.files[self.number];
                    let key = manifest.rank_key(&participant.name(), self.saved, &shard.file);
                    let taken = self.take_shard(participant, shard, &key, bytes)?;
                    self.index = Some(index);
                    taken
                }
            };
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// Makes the copy complete, durably.
    ///
    /// # Errors
    /// Also when a file has not arrived: an index vouches for all of them.
    pub(super) fn finish(
        &mut self,
        participant: &Participant<'_>,
        manifest: &Manifest,
    ) -> Result<()> {
        let key = self.index_key(participant, manifest);
        let Some(index) = &self.index else {
            let path = participant.store.tier().path(&key);
            return Err(Error::damaged_size(
                &path,
                self.index_bytes as u64,
                self.text.len() as u64,
            ));
        };
        if let Some(shard) = index.files.get(self.number) {
            let key = manifest.rank_key(&participant.name(), self.saved, &shard.file);
            let left_bytes = self.open.as_ref().map_or(shard.bytes, |open| open.left_bytes);
            let path = participant.store.tier().path(&key);
            return Err(Error::damaged_size(&path, shard.bytes, shard.bytes - left_bytes));
        }
        participant.store.set_at(Some(&key));
        Ok(participant.store.tier().replace(&key, &self.text)?)
    }

    /// Takes bytes of the index, and returns how many.
    fn take_index(
        &mut self,
        participant: &Participant<'_>,
        manifest: &Manifest,
        bytes: &[u8],
    ) -> Result<usize> {
        let Participant { store, .. } = participant;
        let key = self.index_key(participant, manifest);
        let path = store.tier().path(&key);
        if self.text.is_empty() && store.tier().exists(&key)? {
            let reason = format!(
                "rank {} has written it: both nodes have the same disk, so a copy would be lost \
                 with it",
                self.saved
            );
            let exists = io::Error::new(ErrorKind::AlreadyExists, reason);
            return Err(IoError::at(&path, "copy")(exists).into());
        }
        let taken = bytes.len().min(self.index_bytes - self.text.len());
        self.text.extend_from_slice(&bytes[..taken]);
        if self.text.len() == self.index_bytes {
            let text = str::from_utf8(&self.text).map_err(|error| {
                Error::damaged(&path, error.valid_up_to() as u64, "UTF-8", "other bytes")
            })?;
            let name = participant.name();
            self.index = Some(store.parse_index(&name, manifest, self.saved, text)?);
        }
        Ok(taken)
    }

    /// Takes bytes of a shard, and returns how many.
    fn take_shard(
        &mut self,
        participant: &Participant<'_>,
        shard: &ShardEntry,
        key: &str,
        bytes: &[u8],
    ) -> Result<usize> {
        let Participant { store, failpoints, .. } = participant;
        let open = match &mut self.open {
            Some(open) => open,
            None => {
                store.set_at(Some(key));
                let writer = ChunkWriter::new(store.tier().create(key)?, shard.chunk_bytes);
                let left_bytes = shard.bytes;
                self.open.insert(Open { writer, header: Vec::new(), left_bytes })
            }
        };
        let path = store.tier().path(key);
        let damaged = |offset, expected: Crc64, found: Crc64| {
            let expected = format!("CRC64/NVME {expected} as rank {} wrote it", self.saved);
            Err(Error::damaged(&path, offset, expected, found))
        };
        let header_left = shard.header_bytes as usize - open.header.len();
        let taken = if header_left > 0 {
            let taken = bytes.len().min(header_left);
            open.header.extend_from_slice(&bytes[..taken]);
            if taken == header_left {
                let found = Crc64::of(&open.header);
                if found != shard.header_crc64 {
                    return damaged(0, shard.header_crc64, found);
                }
                open.writer.write_header(&open.header)?;
            }
            taken
        } else {
            let taken = (bytes.len() as u64).min(open.left_bytes) as usize;
            open.writer.write_data(&bytes[..taken], &mut Midway::new(&[], *failpoints))?;
            taken
        };
        open.left_bytes -= taken as u64;
        if open.left_bytes == 0
            && let Some(Open { writer, .. }) = self.open.take()
        {
            let found = writer.finish()?;
            let mut chunks = (0..).zip(shard.chunk_crc64.iter().zip(&found));
            if let Some((chunk, (expected, found))) = chunks.find(|(_, (a, b))| a != b) {
                return damaged(shard.header_bytes + chunk * shard.chunk_bytes, *expected, *found);
            }
            self.number += 1;
        }
        Ok(taken)
    }

    fn index_key(&self, participant: &Participant<'_>, manifest: &Manifest) -> String {
        manifest.rank_key(&participant.name(), self.saved, &index_file(self.saved))
    }
}
