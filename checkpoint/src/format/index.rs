//! `rRRRRR.idx.json`: boxes and files of one rank, with the digest of every byte.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::contradiction::Fields;
use super::digest::Crc64;
use super::name::CheckpointName;
use super::shard::HEADER_BYTES_MAX;
use crate::error::Result;
use crate::tensor::TensorBox;

/// Largest chunk that a reader allocates memory for.
pub(crate) const CHUNK_BYTES_MAX: u64 = 1 << 30;

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

/// Entry of a shard file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ShardEntry {
    /// File name, in the folder of the index.
    pub(crate) file: String,
    /// Size of the file.
    pub(crate) bytes: u64,
    /// Offset of the data, which follows 8 bytes, the header and its padding.
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

impl Index {
    /// Compares every field with the name of the checkpoint, the rank, and the other fields, so
    /// that a reader can rely on them. `path` is the file, for errors.
    ///
    /// # Errors
    /// [`Error::Damaged`](crate::Error::Damaged) that names the field.
    pub(crate) fn check(&self, path: &Path, name: &CheckpointName, rank: usize) -> Result<()> {
        let fields = Fields { path };
        fields.must_be("checkpoint", &self.checkpoint, &name.to_string())?;
        fields.must_be("rank", self.rank, rank)?;
        for (number, shard) in self.files.iter().enumerate() {
            fields.must_be("file", &shard.file, &shard_file(rank, number))?;
            shard.check(fields)?;
        }
        Ok(())
    }

    /// Bytes of tensor data; `None` when they exceed 64 bits.
    pub(crate) fn data_bytes(&self) -> Option<u64> {
        let mut bytes = self.files.iter().map(ShardEntry::data_bytes);
        bytes.try_fold(0, u64::checked_add)
    }
}

impl ShardEntry {
    /// Bytes of data.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.header_bytes)
    }

    fn check(&self, fields: Fields<'_>) -> Result<()> {
        let Self { file, bytes, header_bytes, chunk_bytes, .. } = self;
        let of = |field: &str| format!("{file}: {field}");
        let is_header = header_bytes <= bytes && *header_bytes <= HEADER_BYTES_MAX as u64 + 8;
        let expected = "at most the size of the file and of a header";
        fields.must_hold(&of("header_bytes"), is_header, header_bytes, expected)?;
        let is_chunk = (1..=CHUNK_BYTES_MAX).contains(chunk_bytes);
        fields.must_hold(&of("chunk_bytes"), is_chunk, chunk_bytes, "1 to 2^30")?;
        let chunks = self.data_bytes().div_ceil(*chunk_bytes);
        fields.must_be(&of("chunks"), self.chunk_crc64.len() as u64, chunks)?;
        self.check_boxes(fields)
    }

    /// Boxes lie one after the other, without a hole, and fill the file.
    fn check_boxes(&self, fields: Fields<'_>) -> Result<()> {
        let mut end = 0;
        for BoxEntry { tensor, range } in &self.boxes {
            let of = |field: &str| format!("{}: {}: {field}", self.file, tensor.name);
            fields.must_hold(
                &of("box"),
                tensor.is_well_formed(),
                tensor,
                "one inside its tensor",
            )?;
            fields.must_be(&of("start"), range[0], end)?;
            let bytes = range[1].saturating_sub(range[0]);
            fields.must_be(&of("bytes"), bytes, tensor.size_bytes() as u64)?;
            end = range[1];
        }
        fields.must_be(&format!("{}: end of the boxes", self.file), end, self.data_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::tensor::Dtype;

    const NAME: &str = "s000000010-a0002-0000000c";

    fn tensor(row: usize) -> TensorBox {
        let whole = TensorBox::whole("w", Dtype::F32, &[4, 3]);
        TensorBox { offset: vec![row, 0], extent: vec![1, 3], ..whole }
    }

    /// Two rows of 12 bytes in chunks of 16.
    fn index() -> Index {
        let shard = |number: usize| ShardEntry {
            file: shard_file(3, number),
            bytes: 4096 + 24,
            header_bytes: 4096,
            header_crc64: Crc64(0),
            chunk_bytes: 16,
            chunk_crc64: vec![Crc64(0), Crc64(1)],
            boxes: vec![
                BoxEntry { tensor: tensor(2 * number), range: [0, 12] },
                BoxEntry { tensor: tensor(2 * number + 1), range: [12, 24] },
            ],
        };
        Index {
            format: crate::format::FORMAT,
            run: "run-1".to_owned(),
            checkpoint: NAME.to_owned(),
            rank: 3,
            files: vec![shard(0), shard(1)],
        }
    }

    fn check(index: &Index) -> Result<()> {
        index.check(Path::new("r00003.idx.json"), &NAME.parse().unwrap(), 3)
    }

    type Forgery = (&'static str, fn(&mut Index));

    const FORGERIES: [Forgery; 28] = [
        ("checkpoint", |it| it.checkpoint = "s000000010-a0002-0000000d".to_owned()),
        ("checkpoint", |it| it.checkpoint = String::new()),
        ("rank", |it| it.rank = 2),
        ("file", |it| it.files[1].file = "../../authorized_keys".to_owned()),
        ("file", |it| it.files[0].file = "/etc/passwd".to_owned()),
        ("file", |it| it.files[0].file = String::new()),
        ("file", |it| it.files[1].file = shard_file(3, 0)),
        ("file", |it| it.files[1].file = shard_file(2, 1)),
        ("file", |it| it.files.swap(0, 1)),
        ("header_bytes", |it| it.files[0].header_bytes = u64::MAX),
        ("header_bytes", |it| {
            it.files[0].header_bytes = 1 << 40;
            it.files[0].bytes = (1 << 40) + 24;
        }),
        ("end of the boxes", |it| {
            it.files[0].header_bytes = 4095;
        }),
        ("chunk_bytes", |it| it.files[0].chunk_bytes = 0),
        ("chunk_bytes", |it| it.files[0].chunk_bytes = CHUNK_BYTES_MAX + 1),
        ("chunks", |it| it.files[0].chunk_bytes = 24),
        ("chunks", |it| it.files[0].chunk_crc64.push(Crc64(2))),
        ("chunks", |it| it.files[0].bytes = u64::MAX),
        ("box", |it| it.files[0].boxes[0].tensor.offset = vec![4, 0]),
        ("box", |it| it.files[0].boxes[0].tensor.offset = vec![usize::MAX, 0]),
        ("box", |it| it.files[0].boxes[0].tensor.offset = vec![0]),
        ("box", |it| it.files[0].boxes[0].tensor.extent = vec![1, 0]),
        ("box", |it| {
            it.files[0].boxes[0].tensor.shape = vec![usize::MAX, usize::MAX];
            it.files[0].boxes[0].tensor.extent = vec![usize::MAX, 5];
            it.files[0].boxes[0].tensor.offset = vec![0, 0];
        }),
        ("start", |it| it.files[0].boxes[1].range = [0, 12]),
        ("start", |it| it.files[0].boxes[0].range = [1, 13]),
        ("start", |it| it.files[0].boxes.swap(0, 1)),
        ("bytes", |it| it.files[0].boxes[0].range = [0, 11]),
        ("bytes", |it| it.files[0].boxes[0].range[1] = u64::MAX),
        ("end of the boxes", |it| drop(it.files[0].boxes.pop())),
    ];

    #[test]
    fn what_is_written_is_accepted() {
        check(&index()).unwrap();
        assert_eq!(index().data_bytes(), Some(48));
    }

    #[test]
    fn every_forged_field_is_named() {
        for (number, (field, forge)) in FORGERIES.into_iter().enumerate() {
            let mut index = index();
            forge(&mut index);
            match check(&index).expect_err(field) {
                Error::Damaged { path, expected, .. } => {
                    assert_eq!(path, Path::new("r00003.idx.json"));
                    let named = expected.split(" = ").next().unwrap();
                    assert!(named.ends_with(field), "forgery {number}: {field}: {expected}");
                }
                other => panic!("{other}"),
            }
        }
    }
}
