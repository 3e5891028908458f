//! What of a buffer can be used when, and who keeps it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::{Shared, Single, Threads};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Two ranks in one thread: the one that comes last does the work.
fn two() -> [Threads; 2] {
    let group = Threads::group_with_timeout(2, Duration::from_millis(50));
    group.try_into().unwrap_or_else(|_| unreachable!("as many as asked for"))
}

fn eight(rank: &Threads) -> Incoming<'_, f32> {
    let mine = 10.0 * (1 + rank.rank()) as f32;
    let elements: Vec<f32> = (0..8_u8).map(|index| mine + f32::from(index)).collect();
    Incoming::new(rank, elements.into())
}

#[test]
fn what_has_come_is_used_while_the_rest_is_under_way() {
    let [first, second] = &two();
    let (mut here, mut there) = (eight(first), eight(second));
    here.start(Operation::AllGather, 4..8).unwrap();
    here.start(Operation::AllGather, 2..4).unwrap();
    there.start(Operation::AllGather, 4..8).unwrap();
    let mut bytes = Vec::new();
    here.wait(&(5..6), soon(), |timing| bytes.push(timing.bytes)).unwrap();
    assert_eq!(here.get(4..8), [14.0, 15.0, 26.0, 27.0]);
    assert!(here.is_under_way(&(3..4)) && !here.is_under_way(&(4..8)));
    here.get_mut(0..2).fill(1.0); // beside what is under way
    there.start(Operation::AllGather, 2..4).unwrap();
    here.wait(&(0..8), soon(), |timing| bytes.push(timing.bytes)).unwrap();
    assert_eq!(here.get(0..8), [1.0, 1.0, 12.0, 23.0, 14.0, 15.0, 26.0, 27.0]);
    assert_eq!(bytes, [16, 8]);
    here.wait(&(0..8), soon(), |_| unreachable!("nothing is under way")).unwrap();
}

#[test]
fn waits_in_the_order_of_starts() {
    let single = Single::new();
    let mut buffer = Incoming::new(&single, vec![0_u8; 8].into());
    for range in [6..8, 0..1, 2..5] {
        buffer.start(Operation::AllGather, range).unwrap();
    }
    let mut bytes = Vec::new();
    buffer.wait(&(0..8), soon(), |timing| bytes.push(timing.bytes)).unwrap();
    assert_eq!(bytes, [2, 1, 3]);
}

#[test]
#[should_panic(expected = "under way")]
fn what_is_under_way_cannot_be_read() {
    let [first, _second] = &two();
    let mut buffer = eight(first);
    buffer.start(Operation::AllGather, 2..4).unwrap();
    buffer.get(0..3);
}

#[test]
#[should_panic(expected = "under way")]
fn what_is_under_way_cannot_go_out_again() {
    let [first, _second] = &two();
    let mut buffer = eight(first);
    buffer.start(Operation::AllGather, 2..4).unwrap();
    let _ = buffer.start(Operation::AllGather, 0..8);
}

#[test]
fn after_a_failure_nothing_is_given_out() {
    let [first, _second] = &two();
    let mut buffer = eight(first);
    buffer.start(Operation::AllGather, 2..4).unwrap();
    let error = buffer.wait(&(0..8), Instant::now(), |_| ()).unwrap_err();
    assert!(matches!(error, Error::Deadline { operation: Operation::AllGather, .. }), "{error}");
    let again = buffer.wait(&(0..1), soon(), |_| ()).unwrap_err();
    assert!(matches!(again, Error::Dead { .. }), "{again}");
    let read = catch_unwind(AssertUnwindSafe(|| buffer.get(0..1).len()));
    assert!(read.is_err(), "a peer may write there for ever");
}

#[test]
fn more_than_fit_are_refused() {
    let single = Single::new();
    let mut buffer = Incoming::new(&single, vec![0_u8; OUTSTANDING_MAX + 1].into());
    for index in 0..OUTSTANDING_MAX {
        buffer.start(Operation::AllGather, index..index + 1).unwrap();
    }
    let last = OUTSTANDING_MAX..OUTSTANDING_MAX + 1;
    let error = buffer.start(Operation::AllGather, last.clone()).unwrap_err();
    assert!(matches!(error, Error::Full { capacity: OUTSTANDING_MAX, .. }), "{error}");
    buffer.wait(&(7..8), soon(), |_| ()).unwrap();
    buffer.start(Operation::AllGather, last).unwrap();
}

/// One rank that counts its waits, and that says whether memory is at risk.
#[derive(Debug, Default)]
struct Risky {
    single: Single,
    waited: AtomicUsize,
    is_at_risk: AtomicBool,
}

// SAFETY: it never touches the memory.
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
        memory: Memory,
    ) -> Result<Ticket, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.single.submit(channel, operation, memory) }
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
fn the_end_waits_and_frees_the_memory_unless_it_is_at_risk() {
    for is_at_risk in [false, true] {
        let group = Risky::default();
        let mut memory = [0_u64; 2];
        let keeper = Arc::new(());
        let pointer = NonNull::from(&mut memory[..]).cast();
        // SAFETY: it is valid until the end of this turn, after that of the buffer.
        let shared = unsafe { Shared::new(pointer, 16, keeper.clone()) };
        let mut buffer = Incoming::<u8>::new(&group, Buffer::shared(shared, 16));
        for range in [0..4, 4..8, 12..16] {
            buffer.start(Operation::AllGather, range).unwrap();
        }
        buffer.wait(&(4..8), soon(), |_| ()).unwrap();
        group.is_at_risk.store(is_at_risk, Ordering::SeqCst);
        drop(buffer);
        assert_eq!(group.waited.load(Ordering::SeqCst), 3);
        assert_eq!(Arc::strong_count(&keeper) > 1, is_at_risk, "who keeps it alive");
    }
}

#[test]
fn a_panic_abandons_the_group() {
    let single = Single::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut buffer = Incoming::new(&single, vec![0_u8; 2].into());
        buffer.start(Operation::AllGather, 0..2).unwrap();
        panic!("in between");
    }));
    assert!(panicked.is_err());
    let group: &dyn Collective = &single;
    assert!(matches!(group.barrier(soon()), Err(Error::Dead { .. })));
}
