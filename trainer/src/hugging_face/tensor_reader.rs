//! Reader of tensors of a safetensors file into our layout and format.
//!
//! A rank reads only what it holds, and a bounded part of the file is in memory at a time, whatever
//! the size of a tensor: all ranks of a machine read, and this memory is in addition to that of
//! training.

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

    /// Reads elements of our tensor, from its element `first` on.
    pub(super) fn read(
        &mut self,
        data: &TensorData<'_>,
        tensor: &HfTensor,
        first: usize,
        ours: &mut [f32],
    ) -> io::Result<()> {
        match data.element_type {
            ElementType::F32 => self.read_as(data, tensor, first, ours, f32::from_le_bytes),
            ElementType::Bf16 => {
                self.read_as(data, tensor, first, ours, |b| bf16::from_le_bytes(b).to_f32())
            }
            ElementType::F16 => {
                self.read_as(data, tensor, first, ours, |b| f16::from_le_bytes(b).to_f32())
            }
        }
    }

    /// Reads elements of a type of `BYTES`.
    fn read_as<const BYTES: usize>(
        &mut self,
        data: &TensorData<'_>,
        tensor: &HfTensor,
        first: usize,
        ours: &mut [f32],
        element: impl Fn([u8; BYTES]) -> f32,
    ) -> io::Result<()> {
        if tensor.is_transposed {
            return self.read_transposed(data, tensor, first, ours, element);
        }
        let elements_max = self.buffer.len() / BYTES;
        for (index, ours) in ours.chunks_mut(elements_max).enumerate() {
            let theirs = self.elements::<BYTES>(data, first + index * elements_max, ours.len())?;
            ours.iter_mut().zip(theirs).for_each(|(ours, bytes)| *ours = element(*bytes));
        }
        Ok(())
    }

    /// Reads elements of a tensor whose rows are our columns: of each of its rows a run, which is
    /// a part of our column. The first and the last of our rows may be incomplete.
    fn read_transposed<const BYTES: usize>(
        &mut self,
        data: &TensorData<'_>,
        tensor: &HfTensor,
        first: usize,
        ours: &mut [f32],
        element: impl Fn([u8; BYTES]) -> f32,
    ) -> io::Result<()> {
        let HfTensor { columns, .. } = *tensor;
        let end = first + ours.len();
        let our_rows = first / columns..end.div_ceil(columns);
        let elements_max = self.buffer.len() / BYTES;
        let run_max = our_rows.len().min(elements_max);
        // Only whole rows of the tensor follow each other in the file.
        let is_whole = our_rows.len() == tensor.rows.len();
        let batch = if is_whole { (elements_max / run_max).clamp(1, columns) } else { 1 };
        for column in (0..columns).step_by(batch) {
            let our_columns = column..columns.min(column + batch);
            for row in our_rows.clone().step_by(run_max) {
                let run = row..our_rows.end.min(row + run_max);
                let start = column * tensor.rows.len() + row;
                let count = our_columns.len() * run.len();
                let theirs = self.elements::<BYTES>(data, start, count)?;
                for row in run.clone() {
                    let from = (row * columns + our_columns.start).max(first);
                    let to = (row * columns + our_columns.end).min(end);
                    for index in from..to {
                        let column = index - row * columns - our_columns.start;
                        ours[index - first] = element(theirs[column * run.len() + row - run.start]);
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads elements of a tensor in its own order.
    fn elements<const BYTES: usize>(
        &mut self,
        data: &TensorData<'_>,
        first: usize,
        count: usize,
    ) -> io::Result<&[[u8; BYTES]]> {
        let bytes = &mut self.buffer[..count * BYTES];
        data.file.read_exact_at(bytes, data.start + (first * BYTES) as u64)?;
        Ok(bytes.as_chunks().0)
    }
}
