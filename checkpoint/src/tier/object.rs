//! Tier that is a prefix of an object store.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::SystemTime;

use super::{Entry, Reader, Tier, Upload};
use crate::remote::{ExclusivePut, Multipart, Remote};
use record::files::{IoError, Published};

/// Largest range of one request.
const RANGE_BYTES_MAX: usize = 32 << 20;
/// Number of times a file is published while the store neither has it nor gives a reason.
const PUBLISH_ATTEMPTS: usize = 3;

/// A prefix of an object store. The store must honour `If-None-Match`, as
/// [`Remote::honours_exclusive_put`] finds out: otherwise competing processes replace each other's
/// files.
#[derive(Debug, Clone)]
pub struct ObjectTier {
    remote: Remote,
    part_bytes: usize,
}

impl ObjectTier {
    /// Size of a part of an upload, unless another one is chosen: S3 allows 10,000 of them. An
    /// upload holds one in memory.
    pub const PART_BYTES: usize = 32 << 20;

    /// The tier under this prefix. Sends nothing.
    pub fn new(remote: Remote) -> Self {
        Self { remote, part_bytes: Self::PART_BYTES }
    }

    /// Sets another size of parts, of 5 MiB or more: S3 refuses smaller ones.
    #[must_use]
    pub fn with_part_bytes(self, part_bytes: usize) -> Self {
        Self { part_bytes, ..self }
    }
}

impl Tier for ObjectTier {
    fn path(&self, key: &str) -> PathBuf {
        self.remote.url(key)
    }

    fn read(&self, key: &str, bytes_max: u64) -> Result<Vec<u8>, IoError> {
        self.remote.read(key, bytes_max).map(Vec::from)
    }

    fn open(&self, key: &str) -> Result<Box<dyn Reader>, IoError> {
        let found = self.remote.stat(key)?;
        Ok(Box::new(ObjectReader {
            remote: self.remote.clone(),
            key: key.to_owned(),
            size_bytes: found.size_bytes,
            modified: found.modified,
            etag: found.etag,
        }))
    }

    fn exists(&self, key: &str) -> Result<bool, IoError> {
        self.remote.exists(key)
    }

    fn replace(&self, key: &str, bytes: &[u8]) -> Result<(), IoError> {
        self.remote.put(key, bytes.to_owned())
    }

    /// Whoever cannot be sure to have created the object reads it back: after a lost answer a retry
    /// collides with itself.
    fn publish(
        &self,
        key: &str,
        bytes: &[u8],
        _midway: &mut dyn FnMut(),
    ) -> Result<Published, IoError> {
        let mut attempts = 1;
        loop {
            let put = self.remote.put_exclusive(key, bytes.to_owned())?;
            if matches!(put, ExclusivePut::Created) {
                return Ok(Published::Ours);
            }
            match self.remote.read(key, bytes.len() as u64) {
                Ok(found) if found == bytes => return Ok(Published::Ours),
                Ok(_) => return Ok(Published::Taken),
                Err(larger) if larger.source.kind() == ErrorKind::InvalidData => {
                    return Ok(Published::Taken);
                }
                Err(error) if error.source.kind() != ErrorKind::NotFound => return Err(error),
                Err(absent) if attempts == PUBLISH_ATTEMPTS => {
                    return Err(match put {
                        ExclusivePut::InDoubt(doubt) => doubt,
                        _ => absent,
                    });
                }
                Err(_) => attempts += 1,
            }
        }
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>, IoError> {
        Ok(Box::new(ObjectUpload {
            remote: self.remote.clone(),
            key: key.to_owned(),
            part_bytes: self.part_bytes,
            buffer: Vec::new(),
            multipart: None,
            parts: Vec::new(),
            uploaded_bytes: 0,
        }))
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>, IoError> {
        let found = self.remote.list(folder)?;
        let folders = found.folders.into_iter().map(|name| Entry { name, is_folder: true });
        let files = found.objects.into_iter().map(|name| Entry { name, is_folder: false });
        let mut entries: Vec<Entry> = folders.chain(files).collect();
        entries.sort();
        Ok(entries)
    }

    fn delete(&self, key: &str) -> Result<(), IoError> {
        self.remote.delete(key)
    }

    fn delete_folder(&self, folder: &str, last: &str) -> Result<(), IoError> {
        let last = format!("{folder}/{last}");
        let mut keys = self.remote.list_all(folder)?;
        self.remote.abort_journaled(&keys)?;
        keys.retain(|key| *key != last);
        self.remote.delete_many(&keys)?;
        self.remote.delete(&last)
    }

    fn count_open_uploads(&self, folder: &str) -> Result<usize, IoError> {
        Ok(self.remote.list_journals(folder)?.len())
    }

    fn abort_open_uploads(&self, folder: &str) -> Result<(), IoError> {
        let journals = self.remote.list_journals(folder)?;
        self.remote.abort_journaled(&journals)?;
        self.remote.delete_many(&journals)
    }
}

#[derive(Debug)]
struct ObjectReader {
    remote: Remote,
    key: String,
    size_bytes: u64,
    modified: SystemTime,
    /// Etag of the object: all ranges are of the same one, even if it is replaced in between.
    etag: Option<String>,
}

impl Reader for ObjectReader {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn modified(&self) -> SystemTime {
        self.modified
    }

    fn read_exact_at(&self, buffer: &mut [u8], mut offset: u64) -> Result<(), IoError> {
        if offset.saturating_add(buffer.len() as u64) > self.size_bytes {
            let source = io::Error::from(ErrorKind::UnexpectedEof);
            return Err(IoError::at(&self.remote.url(&self.key), "read")(source));
        }
        for piece in buffer.chunks_mut(RANGE_BYTES_MAX) {
            let end = offset + piece.len() as u64;
            let found = self.remote.read_range(&self.key, offset..end, self.etag.as_deref())?;
            piece.copy_from_slice(&found);
            offset = end;
        }
        Ok(())
    }
}

/// Upload with one request for a file that fits into a part, otherwise in parts.
#[derive(Debug)]
struct ObjectUpload {
    remote: Remote,
    key: String,
    part_bytes: usize,
    /// The next part, as far as it is written.
    buffer: Vec<u8>,
    /// Upload in parts, from the first part until it is completed.
    multipart: Option<Multipart>,
    /// Ids of the parts.
    parts: Vec<String>,
    uploaded_bytes: u64,
}

impl ObjectUpload {
    fn upload_part(&mut self) -> Result<(), IoError> {
        let multipart = match self.multipart.take() {
            Some(started) => started,
            None => self.remote.create_journaled(&self.key)?,
        };
        let multipart = self.multipart.insert(multipart);
        let part = std::mem::take(&mut self.buffer);
        let bytes = part.len() as u64;
        self.parts.push(self.remote.put_part(multipart, self.parts.len(), part)?);
        self.uploaded_bytes += bytes;
        Ok(())
    }

    /// Completes the upload. A lost answer looks like a failure, and like an upload that does not
    /// exist when the client tries again: the object decides.
    fn complete(&self, multipart: &Multipart) -> Result<(), IoError> {
        self.remote.complete_multipart(multipart, &self.parts).or_else(|error| {
            match self.remote.stat(&self.key) {
                Ok(found) if found.size_bytes == self.uploaded_bytes => Ok(()),
                _ => Err(error),
            }
        })
    }
}

impl Upload for ObjectUpload {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), IoError> {
        while !bytes.is_empty() {
            if self.buffer.len() == self.part_bytes {
                self.upload_part()?;
            }
            let (piece, rest) =
                bytes.split_at(bytes.len().min(self.part_bytes - self.buffer.len()));
            self.buffer.extend_from_slice(piece);
            bytes = rest;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), IoError> {
        if self.multipart.is_none() {
            return self.remote.put(&self.key, std::mem::take(&mut self.buffer));
        }
        self.upload_part()?; // never empty: a full buffer is kept until there is more
        if let Some(multipart) = &self.multipart {
            self.complete(multipart)?;
            self.remote.delete_journal(multipart);
        }
        self.multipart = None;
        Ok(())
    }
}

impl Drop for ObjectUpload {
    /// The store would keep the parts of an upload that nobody completes.
    fn drop(&mut self) {
        // The error before it is the one to report. The journal of an upload that may still be
        // there stays with it.
        if let Some(multipart) = &self.multipart
            && self.remote.abort_multipart(multipart).is_ok()
        {
            self.remote.delete_journal(multipart);
        }
    }
}
