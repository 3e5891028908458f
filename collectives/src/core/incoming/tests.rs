//! Tests of when ranges can be used, and when the memory is freed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::{Single, Threads};
use device::Allocator;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Two ranks in one thread: the last to submit does the work.
fn two_ranks() -> [Threads; 2] {
    let group = Threads::group_with_timeout(2, Duration::from_millis(50));
    group.try_into().unwrap_or_else(|_| unreachable!("a group of two"))
}

/// Eight elements: 10 to 17 on rank 0, 20 to 27 on rank 1.
fn eight(rank: &Threads) -> Incoming<'_, f32> {
    let first = 10.0 * (1 + rank.rank()) as f32;
    let mut buffer = Allocator::host().zeros(8);
    for (index, element) in buffer.host_mut().iter_mut().enumerate() {
        *element = first + index as f32;
    }
    Incoming::new(rank, buffer)
}

fn bytes(collective: &dyn Collective, len: usize) -> Incoming<'_, u8> {
    Incoming::new(collective, Allocator::host().zeros(len))
}

#[test]
fn complete_ranges_are_usable_while_others_are_in_flight() {
    let [first, second] = &two_ranks();
    let mut here = eight(first);
    let mut there = eight(second);
    here.start(Operation::AllGather, 4..8).unwrap();
    here.start(Operation::AllGather, 2..4).unwrap();
    there.start(Operation::AllGather, 4..8).unwrap();
    let mut reported = Vec::new();
    here.wait(&(5..6), soon(), |timing| reported.push(timing.bytes)).unwrap();
    assert_eq!(here.get(4..8).host(), [14.0, 15.0, 26.0, 27.0]);
    assert!(here.is_in_flight(&(3..4)) && !here.is_in_flight(&(4..8)));
    here.get_mut(0..2).host().fill(1.0); // next to what is in flight
    there.start(Operation::AllGather, 2..4).unwrap();
    here.wait(&(0..8), soon(), |timing| reported.push(timing.bytes)).unwrap();
    assert_eq!(here.get(0..8).host(), [1.0, 1.0, 12.0, 23.0, 14.0, 15.0, 26.0, 27.0]);
    assert_eq!(reported, [16, 8]);
    here.wait(&(0..8), soon(), |_| unreachable!("nothing is in flight")).unwrap();
}

#[test]
fn operations_are_waited_for_in_the_order_of_their_starts() {
    let single = Single::new();
    let mut buffer = bytes(&single, 8);
    for range in [6..8, 0..1, 2..5] {
        buffer.start(Operation::AllGather, range).unwrap();
    }
    let mut reported = Vec::new();
    buffer.wait(&(0..8), soon(), |timing| reported.push(timing.bytes)).unwrap();
    assert_eq!(reported, [2, 1, 3]);
}

#[test]
#[should_panic(expected = "in flight")]
fn a_range_in_flight_cannot_be_read() {
    let [first, _second] = &two_ranks();
    let mut buffer = eight(first);
    buffer.start(Operation::AllGather, 2..4).unwrap();
    buffer.get(0..3);
}

#[test]
#[should_panic(expected = "in flight")]
fn a_range_in_flight_cannot_be_started_again() {
    let [first, _second] = &two_ranks();
    let mut buffer = eight(first);
    buffer.start(Operation::AllGather, 2..4).unwrap();
    let _ = buffer.start(Operation::AllGather, 0..8);
}

/// Rank 0 sends its first two elements to rank 1, and receives that rank's as its last two.
fn swap(rank: &Threads) -> [(Operation, std::ops::Range<usize>); 2] {
    let other = 1 - rank.rank();
    let send = Operation::Send { to: other, tag: 0 };
    [(send, 0..2), (Operation::Receive { from: other, tag: 0 }, 6..8)]
}

#[test]
fn a_group_of_messages_is_waited_for_once() {
    let [first, second] = &two_ranks();
    let mut here = eight(first);
    let mut there = eight(second);
    here.start_group(swap(first)).unwrap();
    assert!(here.is_in_flight(&(1..2)) && here.is_in_flight(&(6..7)));
    here.get_mut(2..6).host().fill(1.0); // in between
    there.start_group(swap(second)).unwrap();
    let mut reported = Vec::new();
    here.wait(&(7..8), soon(), |timing| reported.push(timing.bytes)).unwrap();
    assert_eq!(here.get(0..8).host(), [10.0, 11.0, 1.0, 1.0, 1.0, 1.0, 20.0, 21.0]);
    drop(there); // waits for its group
    here.wait(&(0..8), soon(), |_| unreachable!("nothing is in flight")).unwrap();
    assert_eq!(reported, [16]);
}

#[test]
fn after_a_failed_group_nothing_can_be_read() {
    let [first, _second] = &two_ranks();
    let mut buffer = eight(first);
    buffer.start_group(swap(first)).unwrap();
    let error = buffer.wait(&(0..1), Instant::now(), |_| ()).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    let read = catch_unwind(AssertUnwindSafe(|| buffer.get(6..8).len()));
    assert!(read.is_err(), "the other rank may write there for ever");
}

#[test]
#[should_panic(expected = "two messages on 1..3")]
fn messages_of_a_group_have_ranges_of_their_own() {
    let [first, _second] = &two_ranks();
    let [(send, _), (receive, _)] = swap(first);
    let _ = eight(first).start_group([(send, 0..2), (receive, 1..3)]);
}

#[test]
fn after_a_failure_nothing_can_be_read() {
    let [first, _second] = &two_ranks();
    let mut buffer = eight(first);
    buffer.start(Operation::AllGather, 2..4).unwrap();
    let error = buffer.wait(&(0..8), Instant::now(), |_| ()).unwrap_err();
    assert!(matches!(error, Error::Deadline { operation: Operation::AllGather, .. }), "{error}");
    let later = buffer.wait(&(0..1), soon(), |_| ()).unwrap_err();
    assert!(matches!(later, Error::Dead { .. }), "{later}");
    let read = catch_unwind(AssertUnwindSafe(|| buffer.get(0..1).len()));
    assert!(read.is_err(), "a peer may write there for ever");
}

#[test]
fn one_operation_too_many_is_an_error() {
    let single = Single::new();
    let mut buffer = bytes(&single, OUTSTANDING_MAX + 1);
    for index in 0..OUTSTANDING_MAX {
        buffer.start(Operation::AllGather, index..index + 1).unwrap();
    }
    let last = OUTSTANDING_MAX..OUTSTANDING_MAX + 1;
    let error = buffer.start(Operation::AllGather, last.clone()).unwrap_err();
    assert!(matches!(error, Error::Full { capacity: OUTSTANDING_MAX, .. }), "{error}");
    buffer.wait(&(7..8), soon(), |_| ()).unwrap();
    buffer.start(Operation::AllGather, last).unwrap();
}

/// One rank that counts its waits, and whose memory can be declared at risk.
#[derive(Debug, Default)]
struct Risky {
    single: Single,
    waited: AtomicUsize,
    is_at_risk: AtomicBool,
}

// SAFETY: it never touches a buffer and allocates none.
unsafe impl Collective for Risky {
    fn rank(&self) -> usize {
        0
    }

    fn world(&self) -> usize {
        1
    }

    fn backend(&self) -> &'static str {
        "risky"
    }

    fn timeout(&self) -> Duration {
        Duration::ZERO
    }

    unsafe fn submit(
        &self,
        channel: Channel,
        operation: Operation,
        buffer: RawBuffer,
    ) -> Result<Ticket, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.single.submit(channel, operation, buffer) }
    }

    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<Timing, Error> {
        self.waited.fetch_add(1, Ordering::SeqCst);
        self.single.wait(ticket, deadline)
    }

    fn memory_at_risk(&self) -> bool {
        self.is_at_risk.load(Ordering::SeqCst)
    }

    fn abandon(&self, reason: &str) {
        self.single.abandon(reason);
    }
}

#[test]
fn dropping_waits_and_frees_the_memory_unless_it_is_at_risk() {
    for is_at_risk in [false, true] {
        let group = Risky::default();
        let mut memory = [0_u8; 16];
        let keeper = Arc::new(());
        let start = NonNull::from(&mut memory[..]).cast();
        // SAFETY: it is valid until the end of this iteration, after that of the buffer.
        let buffer = unsafe { DeviceBuffer::<u8>::from_keeper(start, 16, keeper.clone()) };
        let mut buffer = Incoming::new(&group, buffer);
        for range in [0..4, 4..8, 12..16] {
            buffer.start(Operation::AllGather, range).unwrap();
        }
        buffer.wait(&(4..8), soon(), |_| ()).unwrap();
        group.is_at_risk.store(is_at_risk, Ordering::SeqCst);
        drop(buffer);
        assert_eq!(group.waited.load(Ordering::SeqCst), 3);
        assert_eq!(Arc::strong_count(&keeper) > 1, is_at_risk, "the keeper is leaked");
    }
}

#[test]
fn a_panic_abandons_the_group() {
    let single = Single::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut buffer = bytes(&single, 2);
        buffer.start(Operation::AllGather, 0..2).unwrap();
        panic!("in between");
    }));
    assert!(panicked.is_err());
    let group: &dyn Collective = &single;
    assert!(matches!(group.barrier(soon()), Err(Error::Dead { .. })));
}

#[test]
fn a_plan_makes_and_drops_a_buffer_without_memory() {
    let single = Single::new();
    let counted = Allocator::counting().zeros::<f32>(1 << 50);
    let buffer = Incoming::new(&single, counted);
    assert_eq!((buffer.len(), buffer.is_in_flight(&(0..1))), (1 << 50, false));
    let read = catch_unwind(AssertUnwindSafe(|| buffer.get(0..1).len()));
    assert!(read.is_err(), "there is nothing to read");
}
