//! Writing a shard's data, with a digest of each chunk.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use crc_fast::CrcAlgorithm;

use crate::failpoints::{Failpoint, Failpoints};
use crate::format::digest::Crc64;
use crate::tensor::TensorBox;

/// Size of a write: large enough for the disk, small enough that the digest finds it in a cache.
const PIECE_BYTES: usize = 4 << 20;

pub(super) struct ChunkWriter {
    writer: BufWriter<File>,
    digest: crc_fast::Digest,
    chunk_bytes: usize,
    /// Bytes left in this chunk.
    left: usize,
    chunks: Vec<Crc64>,
}

impl ChunkWriter {
    pub(super) fn new(file: File, chunk_bytes: u64) -> Self {
        let chunk_bytes = chunk_bytes as usize;
        Self {
            writer: BufWriter::with_capacity(PIECE_BYTES, file),
            digest: crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme),
            chunk_bytes,
            left: chunk_bytes,
            chunks: Vec::new(),
        }
    }

    /// Writes what comes before the data and is in no chunk.
    pub(super) fn write_header(&mut self, header: &[u8]) -> io::Result<()> {
        self.writer.write_all(header)
    }

    pub(super) fn write_data(
        &mut self,
        mut data: &[u8],
        midway: &mut Midway<'_>,
    ) -> io::Result<()> {
        while !data.is_empty() {
            let bytes = midway.limit(data.len().min(PIECE_BYTES).min(self.left));
            let (piece, rest) = data.split_at(bytes);
            self.digest.update(piece);
            self.writer.write_all(piece)?;
            self.left -= bytes;
            if self.left == 0 {
                self.close_chunk();
            }
            midway.advance(bytes, &mut self.writer)?;
            data = rest;
        }
        Ok(())
    }

    fn close_chunk(&mut self) {
        self.chunks.push(Crc64(self.digest.finalize_reset()));
        self.left = self.chunk_bytes;
    }

    /// The file, with everything written to it, and the digests of its chunks.
    pub(super) fn into_parts(mut self) -> io::Result<(File, Vec<Crc64>)> {
        if self.left < self.chunk_bytes {
            self.close_chunk();
        }
        let file = self.writer.into_inner().map_err(|error| error.into_error())?;
        Ok((file, self.chunks))
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

    /// At most so many bytes that a write ends at the middle.
    fn limit(&self, bytes: usize) -> usize {
        self.left.map_or(bytes, |left| bytes.min(left))
    }

    fn advance(&mut self, bytes: usize, writer: &mut BufWriter<File>) -> io::Result<()> {
        self.left = match self.left {
            Some(left) if left == bytes => {
                writer.flush()?;
                self.failpoints.hit(Failpoint::MidShard);
                None
            }
            left => left.map(|left| left - bytes),
        };
        Ok(())
    }
}
