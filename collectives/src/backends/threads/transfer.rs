//! Transfers between all ranks' buffers, by the last rank to submit an operation.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr;
use std::time::Instant;

use crate::stages::sum::sum_in_order;
use crate::{GridPlan, Interval, Operation, RawBuffer};

/// Carries out a collective operation on all ranks' buffers.
///
/// # Safety
/// All buffers are valid, not aliased, and of one length and type that `Operation::validate`
/// accepted.
pub(super) unsafe fn collective(
    operation: Operation,
    world: usize,
    buffer: impl Fn(usize) -> RawBuffer,
) {
    let len = buffer(0).len();
    let part = |rank: usize| rank * (len / world)..(rank + 1) * (len / world);
    // SAFETY: the caller's promise; all ranges lie inside the buffers.
    unsafe {
        match operation {
            Operation::AllReduceSum => sum(world, &buffer, 0..len, 0..world),
            Operation::ReduceScatterSum => {
                (0..world).for_each(|owner| sum(world, &buffer, part(owner), owner..owner + 1));
            }
            Operation::AllGather => {
                (0..world).for_each(|owner| copy_to_all(world, &buffer, owner, part(owner)));
            }
            Operation::Broadcast { root } => copy_to_all(world, &buffer, root, 0..len),
            Operation::Barrier
            | Operation::Send { .. }
            | Operation::Receive { .. }
            | Operation::Messages => {}
        }
    }
}

/// Carries out an operation of a grid, over one dimension after the other where it is a sum or a
/// gather: then returns the time over the outer one. `buffer` takes the grid's ranks.
///
/// # Safety
/// As of [`collective`].
pub(super) unsafe fn grid(
    operation: Operation,
    plan: &GridPlan,
    buffer: impl Fn(usize) -> RawBuffer,
) -> Option<Interval> {
    let (inner, outer) = (plan.inner(), plan.outer());
    let len = buffer(0).len();
    let part = |index: usize| index * (len / inner)..(index + 1) * (len / inner);
    let of_inner_line = |operation| {
        // SAFETY: the caller's promise.
        (0..outer).for_each(|line| unsafe {
            collective(operation, inner, |index| buffer(index * outer + line));
        });
    };
    let of_outer_line = |operation, range: &dyn Fn(usize) -> Range<usize>| {
        let started = Instant::now();
        // SAFETY: the caller's promise, of ranges that lie inside.
        (0..inner).for_each(|index| unsafe {
            collective(operation, outer, |line| buffer(index * outer + line).slice(range(index)));
        });
        Some(Interval { started, ended: Instant::now() })
    };
    match operation {
        Operation::AllReduceSum => {
            of_inner_line(operation);
            of_outer_line(operation, &|_| 0..len)
        }
        Operation::ReduceScatterSum => {
            of_inner_line(operation);
            of_outer_line(operation, &part)
        }
        Operation::AllGather => {
            let outer = of_outer_line(operation, &part);
            of_inner_line(operation);
            outer
        }
        other => {
            // SAFETY: the caller's promise.
            unsafe { collective(other, inner * outer, buffer) };
            None
        }
    }
}

/// Copies all of one buffer over another.
///
/// # Safety
/// Both are valid, distinct, and of one size.
pub(super) unsafe fn copy(from: RawBuffer, to: RawBuffer) {
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from.start().as_ptr(), to.start().as_ptr(), from.bytes()) };
}

/// Copies a range of the owner's elements to all other ranks.
unsafe fn copy_to_all(
    world: usize,
    buffer: &impl Fn(usize) -> RawBuffer,
    owner: usize,
    range: Range<usize>,
) {
    for other in (0..world).filter(|&other| other != owner) {
        // SAFETY: the range lies inside both buffers, which are distinct.
        unsafe {
            let from = address(buffer(owner), range.start);
            let to = address(buffer(other), range.start);
            ptr::copy_nonoverlapping(from, to, range.len() * buffer(owner).dtype().bytes());
        }
    }
}

/// Sums a range over all ranks, in the order of the ranks, into the buffers of `receivers`.
unsafe fn sum(
    world: usize,
    buffer: &impl Fn(usize) -> RawBuffer,
    range: Range<usize>,
    receivers: Range<usize>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let at = |rank: usize| address(buffer(rank), range.start);
        let addends = (0..world).map(|rank| at(rank).cast_const());
        sum_in_order(buffer(0).dtype(), range.len(), addends, receivers.map(at));
    }
}

/// Address of an element.
///
/// # Safety
/// It lies inside the buffer or at its end.
unsafe fn address(buffer: RawBuffer, element: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { buffer.start().as_ptr().add(element * buffer.dtype().bytes()) }
}
