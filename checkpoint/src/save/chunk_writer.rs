//! Writing a shard's data, with a digest of each chunk.

use crc_fast::CrcAlgorithm;

use crate::failpoints::{Failpoint, Failpoints};
use crate::format::digest::Crc64;
use crate::tensor::TensorBox;
use crate::tier::Upload;
use record::files::IoError;

/// Size of a write: small enough that it is in a cache after the digest.
const PIECE_BYTES: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct ChunkWriter {
    upload: Box<dyn Upload>,
    digest: crc_fast::Digest,
    chunk_bytes: usize,
    /// Bytes left in this chunk.
    left: usize,
    chunks: Vec<Crc64>,
}

impl ChunkWriter {
    pub(super) fn new(upload: Box<dyn Upload>, chunk_bytes: u64) -> Self {
        let chunk_bytes = chunk_bytes as usize;
        Self {
            upload,
            digest: crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme),
            chunk_bytes,
            left: chunk_bytes,
            chunks: Vec::new(),
        }
    }

    /// Writes the bytes before the data, which are in no chunk.
    pub(super) fn write_header(&mut self, header: &[u8]) -> Result<(), IoError> {
        self.upload.write(header)
    }

    pub(super) fn write_data(
        &mut self,
        mut data: &[u8],
        midway: &mut Midway<'_>,
    ) -> Result<(), IoError> {
        while !data.is_empty() {
            let bytes = midway.limit(data.len().min(PIECE_BYTES).min(self.left));
            let (piece, rest) = data.split_at(bytes);
            self.digest.update(piece);
            self.upload.write(piece)?;
            self.left -= bytes;
            if self.left == 0 {
                self.close_chunk();
            }
            midway.advance(bytes);
            data = rest;
        }
        Ok(())
    }

    fn close_chunk(&mut self) {
        self.chunks.push(Crc64(self.digest.finalize_reset()));
        self.left = self.chunk_bytes;
    }

    /// Makes the file visible and durable, and returns the digests of its chunks.
    pub(super) fn finish(mut self) -> Result<Vec<Crc64>, IoError> {
        if self.left < self.chunk_bytes {
            self.close_chunk();
        }
        self.upload.finish()?;
        Ok(self.chunks)
    }
}

/// Hits [`Failpoint::MidShard`] when half of a rank's bytes are written.
pub(super) struct Midway<'a> {
    /// Bytes left to the middle; `None` behind it.
    left: Option<usize>,
    failpoints: &'a dyn Failpoints,
}

impl<'a> Midway<'a> {
    pub(super) fn new(boxes: &[&TensorBox], failpoints: &'a dyn Failpoints) -> Self {
        let total: usize = boxes.iter().map(|tensor| tensor.size_bytes()).sum();
        Self { left: (total > 0).then_some(total.div_ceil(2)), failpoints }
    }

    /// Limits the size of a write, so that one ends at the middle.
    fn limit(&self, bytes: usize) -> usize {
        self.left.map_or(bytes, |left| bytes.min(left))
    }

    fn advance(&mut self, bytes: usize) {
        self.left = match self.left {
            Some(left) if left == bytes => {
                self.failpoints.hit(Failpoint::MidShard);
                None
            }
            left => left.map(|left| left - bytes),
        };
    }
}
