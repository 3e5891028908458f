//! The files of this rank as one stream of bytes: its index, then its shards.

use crate::error::{Error, Result};
use crate::format::index::index_file;
use crate::format::manifest::Manifest;
use crate::save::protocol::Participant;
use crate::tier::Reader;

/// Reads the files of a rank in the order in which [`Incoming`](super::Incoming) expects them.
#[derive(Debug)]
pub(super) struct Outgoing {
    rank: usize,
    /// Files that are not read yet, the next one last; `None` before the index is read.
    files: Option<Vec<StoredFile>>,
    open: Option<Open>,
}

#[derive(Debug)]
struct StoredFile {
    key: String,
    bytes: u64,
}

/// A file that is being read.
#[derive(Debug)]
struct Open {
    file: Box<dyn Reader>,
    /// Bytes that were read, and those of the whole file.
    position: u64,
    bytes: u64,
}

impl Outgoing {
    pub(super) fn new(rank: usize) -> Self {
        Self { rank, files: None, open: None }
    }

    /// Fills a buffer with the next bytes. They are not verified here: the receiver does that, and
    /// a file that is damaged already must not be copied either.
    pub(super) fn fill(
        &mut self,
        participant: &Participant<'_>,
        manifest: &Manifest,
        mut buffer: &mut [u8],
    ) -> Result<()> {
        if self.files.is_none() {
            self.files = Some(self.list(participant, manifest)?);
        }
        while !buffer.is_empty() {
            let Open { file, position, bytes } = match &mut self.open {
                Some(open) => open,
                None => {
                    let next = self.files.as_mut().and_then(Vec::pop).expect("bytes are left");
                    self.open.insert(Open::new(participant, &next)?)
                }
            };
            let left = *bytes - *position;
            let (now, rest) = buffer.split_at_mut(left.min(buffer.len() as u64) as usize);
            file.read_exact_at(now, *position)?;
            *position += now.len() as u64;
            if position == bytes {
                self.open = None;
            }
            buffer = rest;
        }
        Ok(())
    }

    fn list(&self, participant: &Participant<'_>, manifest: &Manifest) -> Result<Vec<StoredFile>> {
        let name = participant.name();
        let index = participant.store.read_index(&name, manifest, self.rank)?;
        let stored = |file: &str, bytes| StoredFile {
            key: manifest.rank_key(&name, self.rank, file),
            bytes,
        };
        let shards = index.value.files.iter().rev().map(|shard| stored(&shard.file, shard.bytes));
        Ok(shards.chain([stored(&index_file(self.rank), index.text.len() as u64)]).collect())
    }
}

impl Open {
    fn new(participant: &Participant<'_>, stored: &StoredFile) -> Result<Self> {
        let StoredFile { key, bytes } = stored;
        let tier = participant.store.tier();
        participant.store.set_at(Some(key));
        let file = tier.open(key)?;
        if file.size_bytes() != *bytes {
            return Err(Error::damaged_size(&tier.path(key), *bytes, file.size_bytes()));
        }
        Ok(Self { file, position: 0, bytes: *bytes })
    }
}
