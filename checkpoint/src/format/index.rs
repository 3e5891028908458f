//! `rRRRRR.idx.json`: what one rank wrote, with the digest of every byte of it.

use serde::{Deserialize, Serialize};

use super::digest::Crc64;
use crate::tensor::TensorBox;

/// The index of one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Index {
    pub(crate) format: u32,
    /// Run id.
    pub(crate) run: String,
    /// Name of the checkpoint's folder.
    pub(crate) checkpoint: String,
    pub(crate) rank: usize,
    pub(crate) files: Vec<ShardEntry>,
}

/// One shard file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ShardEntry {
    /// File name, in the folder of the index.
    pub(crate) file: String,
    /// Size of the file.
    pub(crate) bytes: u64,
    /// Where the data starts: 8 bytes, the header and its padding come before.
    pub(crate) header_bytes: u64,
    /// Digest of everything before the data.
    pub(crate) header_crc64: Crc64,
    /// Size of a chunk; chunks count from the start of the data, the last one may be shorter.
    pub(crate) chunk_bytes: u64,
    pub(crate) chunk_crc64: Vec<Crc64>,
    pub(crate) boxes: Vec<BoxEntry>,
}

/// A box and where its elements are, in bytes from the start of the data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct BoxEntry {
    #[serde(flatten)]
    pub(crate) tensor: TensorBox,
    pub(crate) range: [u64; 2],
}

/// File name of a rank's index.
pub(crate) fn index_file(rank: usize) -> String {
    format!("r{rank:05}.idx.json")
}

/// File name of a rank's n-th shard.
pub(crate) fn shard_file(rank: usize, number: usize) -> String {
    format!("r{rank:05}-{number:03}.safetensors")
}

impl ShardEntry {
    /// Bytes of data.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.header_bytes)
    }

    /// Whether sizes, ranges and digests are consistent, so that a reader can rely on them.
    pub(crate) fn is_consistent(&self) -> bool {
        let data = self.data_bytes();
        self.chunk_bytes > 0
            && self.bytes >= self.header_bytes
            && self.chunk_crc64.len() as u64 == data.div_ceil(self.chunk_bytes)
            && self.boxes.iter().all(|entry| entry.is_consistent(data))
    }
}

impl BoxEntry {
    fn is_consistent(&self, data_bytes: u64) -> bool {
        let tensor = &self.tensor;
        let dimensions = tensor.shape.len();
        let [start, end] = self.range;
        tensor.offset.len() == dimensions
            && tensor.extent.len() == dimensions
            && tensor.is_inside()
            && end <= data_bytes
            && end.checked_sub(start) == Some(tensor.size_bytes() as u64)
    }
}
