//! Reader of tensors of a safetensors file into our layout and format.
//!
//! A bounded part of the file is in memory at a time, whatever the size of a tensor: all ranks of a
//! machine read, and this memory is in addition to that of training.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use half::{bf16, f16};
use safetensors::Dtype;

use super::tensor_mapping::HfTensor;

/// Most bytes of a file that [`TensorReader`] holds.
pub(crate) const BUFFER_BYTES: usize = 1 << 20;

/// Element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ElementType {
    F32,
    Bf16,
    F16,
}

impl ElementType {
    /// Returns the type with this name in a header.
    pub(super) fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::F32),
            Dtype::BF16 => Some(Self::Bf16),
            Dtype::F16 => Some(Self::F16),
            _ => None,
        }
    }

    /// Rounds to the nearest number of this type.
    pub(super) fn round(self, element: f32) -> f32 {
        match self {
            Self::F32 => element,
            Self::Bf16 => bf16::from_f32(element).to_f32(),
            Self::F16 => f16::from_f32(element).to_f32(),
        }
    }

    pub(super) fn size_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

/// Data of a tensor in a file.
#[derive(Debug)]
pub(super) struct TensorData<'file> {
    pub(super) file: &'file File,
    /// Offset of the first element, bytes.
    pub(super) start: u64,
    pub(super) element_type: ElementType,
}

/// Reads tensors through a buffer.
#[derive(Debug)]
pub(super) struct TensorReader {
    buffer: Vec<u8>,
}

impl TensorReader {
    /// Creates a reader with a buffer of this size, or of one element if that is larger.
    pub(super) fn new(buffer_bytes: usize) -> Self {
        Self { buffer: vec![0; buffer_bytes.max(size_of::<f32>())] }
    }

    /// Fills `ours`, the tensor's elements in our layout, exactly.
    pub(super) fn read(
        &mut self,
        data: &TensorData<'_>,
        tensor: &HfTensor,
        ours: &mut [f32],
    ) -> io::Result<()> {
        let element_bytes = data.element_type.size_bytes();
        // A tensor that is not transposed is read as one long row: each of its elements is a row of
        // one element in ours.
        let columns = if tensor.is_transposed { tensor.columns } else { 1 };
        let width = ours.len() / columns;
        let elements_max = self.buffer.len() / element_bytes;
        let rows = (elements_max / width).clamp(1, columns);
        let run = width.min(elements_max);
        for row in (0..columns).step_by(rows) {
            let rows = rows.min(columns - row);
            for first in (0..width).step_by(run) {
                let run = run.min(width - first);
                let part = &mut self.buffer[..rows * run * element_bytes];
                let skipped = (row * width + first) * element_bytes;
                data.file.read_exact_at(part, data.start + skipped as u64)?;
                let ours = ours[first * columns..][..run * columns].chunks_exact_mut(columns);
                let ours = ours.map(|ours| &mut ours[row..row + rows]);
                match data.element_type {
                    ElementType::F32 => transpose(ours, part, f32::from_le_bytes),
                    ElementType::Bf16 => transpose(ours, part, |b| bf16::from_le_bytes(b).to_f32()),
                    ElementType::F16 => transpose(ours, part, |b| f16::from_le_bytes(b).to_f32()),
                }
            }
        }
        Ok(())
    }
}

/// Converts each column of `part` to one run of our elements.
fn transpose<'a, const BYTES: usize>(
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
