//! What the last rank to come does with everybody's memory.
#![allow(unsafe_code)]

use std::ops::{AddAssign, Range};
use std::ptr;

use crate::{Dtype, Memory, Operation};

/// Performs a collective operation on the ranks' memory.
///
/// # Safety
/// All memory is valid, not aliased, and of one length and type that `Operation::check` accepted.
pub(super) unsafe fn collective(
    operation: Operation,
    world: usize,
    memory: impl Fn(usize) -> Memory,
) {
    let len = memory(0).len();
    let part = |rank: usize| rank * (len / world)..(rank + 1) * (len / world);
    match operation {
        Operation::AllReduceSum => {
            // SAFETY: the caller's promise.
            unsafe { sum(world, &memory, 0..len, 0..world) }
        }
        Operation::ReduceScatterSum => {
            for owner in 0..world {
                // SAFETY: the caller's promise.
                unsafe { sum(world, &memory, part(owner), owner..owner + 1) }
            }
        }
        Operation::AllGather => {
            for owner in 0..world {
                // SAFETY: the caller's promise.
                unsafe { spread(world, &memory, owner, part(owner)) }
            }
        }
        Operation::Broadcast { root } => {
            // SAFETY: the caller's promise.
            unsafe { spread(world, &memory, root, 0..len) }
        }
        Operation::Barrier | Operation::Send { .. } | Operation::Receive { .. } => {}
    }
}

/// Copies all of one buffer over another.
///
/// # Safety
/// Both are valid, distinct, and of one size.
pub(super) unsafe fn copy(from: Memory, to: Memory) {
    // SAFETY: the caller's promise.
    unsafe {
        ptr::copy_nonoverlapping(from.pointer().as_ptr(), to.pointer().as_ptr(), from.bytes());
    }
}

/// Copies a range of the owner's elements to everybody else.
unsafe fn spread(
    world: usize,
    memory: &impl Fn(usize) -> Memory,
    owner: usize,
    range: Range<usize>,
) {
    let size = memory(owner).dtype().bytes();
    for other in (0..world).filter(|&other| other != owner) {
        // SAFETY: the range lies inside both buffers, which are distinct.
        unsafe {
            let from = memory(owner).pointer().add(range.start * size);
            let to = memory(other).pointer().add(range.start * size);
            ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), range.len() * size);
        }
    }
}

/// Sums a range over all ranks, in rank order, into the buffers of `receivers`.
unsafe fn sum(
    world: usize,
    memory: &impl Fn(usize) -> Memory,
    range: Range<usize>,
    receivers: Range<usize>,
) {
    // SAFETY: the caller's promise; the element type is the memory's.
    unsafe {
        match memory(0).dtype() {
            Dtype::F32 => sum_as::<f32>(world, memory, range, receivers),
            Dtype::F64 => sum_as::<f64>(world, memory, range, receivers),
            Dtype::U8 | Dtype::Bf16 => unreachable!("refused by Operation::check"),
        }
    }
}

unsafe fn sum_as<E: AddAssign + Copy>(
    world: usize,
    memory: &impl Fn(usize) -> Memory,
    range: Range<usize>,
    receivers: Range<usize>,
) {
    // SAFETY: every index is below the common length.
    let at = |rank: usize, index| unsafe { memory(rank).pointer().cast::<E>().add(index) };
    for index in range {
        // SAFETY: as above.
        unsafe {
            let mut total = at(0, index).read();
            for rank in 1..world {
                total += at(rank, index).read();
            }
            for rank in receivers.clone() {
                at(rank, index).write(total);
            }
        }
    }
}
