//! Sums and copies on the buffers of all ranks of a node, where they are.
#![allow(unsafe_code)]

use std::ptr;

use super::shared_buffer::SharedBuffer;
use crate::stages::chunks::Chunks;
use crate::stages::stage::StageKind;
use crate::stages::sum::sum_in_order;

/// Sums a chunk of this rank's part of all buffers, and writes the sums to its own buffer, or for
/// an all-reduce to all of them. The stage's buffer begins at `offset`, in bytes.
///
/// # Safety
/// The stage's buffers lie in the shared buffer there, and nobody else touches this range in any of
/// them until all ranks have finished the stage.
pub(super) unsafe fn reduce(buffer: &SharedBuffer, offset: usize, chunks: &Chunks, chunk: usize) {
    let own = buffer.local();
    let range = chunks.range(own, chunk);
    let dtype = chunks.stage.buffer.dtype();
    let writes_all = chunks.stage.kind == StageKind::AllReduce;
    let offset = offset + range.start * dtype.bytes();
    // SAFETY: the caller's promise; pages and offsets are aligned for the elements.
    unsafe {
        let at = |rank: usize| buffer.start(rank).add(offset);
        let addends = (0..buffer.ranks()).map(|rank| at(rank).cast_const());
        let written = (0..buffer.ranks()).filter(|&rank| writes_all || rank == own);
        sum_in_order(dtype, range.len(), addends, written.map(at));
    }
}

/// Copies a chunk of the owner's part to this rank's buffer.
///
/// # Safety
/// The contract of [`reduce`] holds, except that others may read the range in the owner's buffer.
pub(super) unsafe fn gather(
    buffer: &SharedBuffer,
    offset: usize,
    chunks: &Chunks,
    owner: usize,
    chunk: usize,
) {
    let range = chunks.range(owner, chunk);
    let element_bytes = chunks.stage.buffer.dtype().bytes();
    let offset = offset + range.start * element_bytes;
    // SAFETY: the caller's promise; the owner is another rank, whose buffer is another mapping.
    unsafe {
        let from = buffer.start(owner).add(offset);
        let to = buffer.start(buffer.local()).add(offset);
        ptr::copy_nonoverlapping(from, to, range.len() * element_bytes);
    }
}
