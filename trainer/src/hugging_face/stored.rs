//! How a file stores a tensor, and how its elements come to their places in ours.
//!
//! A bounded part of the file is in memory at a time, whatever the size of a tensor: every rank of
//! a machine reads, and what they hold meanwhile is beside all that training needs.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use half::{bf16, f16};

use super::pieces::Piece;

/// Most bytes of a file that [`Reader`] holds.
pub(crate) const PART_BYTES: usize = 1 << 20;

/// An element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    F32,
    Bf16,
    F16,
}

impl Stored {
    /// By its name in a header.
    pub(super) fn named(dtype: &str) -> Option<Self> {
        match dtype {
            "F32" => Some(Self::F32),
            "BF16" => Some(Self::Bf16),
            "F16" => Some(Self::F16),
            _ => None,
        }
    }

    pub(super) fn size_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

/// Reads tensors part by part.
#[derive(Debug)]
pub(super) struct Reader {
    part: Vec<u8>,
}

impl Reader {
    /// One that holds at most so many bytes, and at least one element.
    pub(super) fn new(part_bytes: usize) -> Self {
        Self { part: vec![0; part_bytes.max(size_of::<f32>())] }
    }

    /// Fills our elements of a piece from the file, exactly; their first is at byte `start`.
    pub(super) fn read(
        &mut self,
        (file, start): (&File, u64),
        stored: Stored,
        piece: &Piece,
        ours: &mut [f32],
    ) -> io::Result<()> {
        // What is not transposed is one row of theirs, whose elements are rows of one of ours.
        let columns = if piece.is_transposed { piece.columns } else { 1 };
        let width = ours.len() / columns;
        let most = self.part.len() / stored.size_bytes();
        let (rows, run) = ((most / width).clamp(1, columns), width.min(most));
        for row in (0..columns).step_by(rows) {
            let rows = rows.min(columns - row);
            for first in (0..width).step_by(run) {
                let run = run.min(width - first);
                let part = &mut self.part[..rows * run * stored.size_bytes()];
                let skipped = (row * width + first) * stored.size_bytes();
                file.read_exact_at(part, start + skipped as u64)?;
                let ours = ours[first * columns..][..run * columns].chunks_exact_mut(columns);
                let ours = ours.map(|ours| &mut ours[row..row + rows]);
                match stored {
                    Stored::F32 => place(ours, part, f32::from_le_bytes),
                    Stored::Bf16 => place(ours, part, |b| bf16::from_le_bytes(b).to_f32()),
                    Stored::F16 => place(ours, part, |b| f16::from_le_bytes(b).to_f32()),
                }
            }
        }
        Ok(())
    }
}

/// Writes each column of a part of theirs to its run of ours.
fn place<'a, const BYTES: usize>(
    ours: impl ExactSizeIterator<Item = &'a mut [f32]>,
    part: &[u8],
    element: impl Fn([u8; BYTES]) -> f32,
) {
    let theirs = part.as_chunks::<BYTES>().0;
    let width = ours.len();
    for (column, ours) in ours.enumerate() {
        for (row, ours) in ours.iter_mut().enumerate() {
            *ours = element(theirs[row * width + column]);
        }
    }
}
