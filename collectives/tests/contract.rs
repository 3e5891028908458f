//! The contract on the backends that need no launcher.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "mpi/allocations.rs"]
mod allocations;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use device::Allocator;
use support::counting::Counting;
use yardstick_collectives::contract::{self, Terms, failures};
use yardstick_collectives::{Collective, Error, Incoming, Operation, Single, Threads};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TERMS: Terms = Terms {
    message_elements_max: 1000,
    timeout: Duration::from_secs(20),
    nodes: &[],
    sums_by_node: false,
    has_one_order: false,
};

/// Timeout where a rank is absent, which the others keep on a busy machine.
const SHORT: Duration = Duration::from_secs(2);

/// Runs the same on every rank of a group of threads.
fn on_threads(world: usize, body: impl Fn(&dyn Collective) + Sync) {
    std::thread::scope(|threads| {
        for rank in Threads::group(world) {
            let body = &body;
            threads.spawn(move || body(&rank));
        }
    });
}

#[test]
fn single_keeps_the_contract() {
    contract::run_all(&Single::new(), &TERMS);
    failures::abandoning_is_final(&Single::new(), &TERMS);
}

#[test]
fn threads_keep_the_contract() {
    for world in 1..=4 {
        on_threads(world, |rank| contract::run_all(rank, &TERMS));
        on_threads(world, |rank| failures::abandoning_is_final(rank, &TERMS));
    }
}

#[test]
fn groups_keep_the_contract() {
    for world in [2, 4, 8] {
        on_threads(world, |rank| contract::groups::every_group_keeps_the_contract(rank, &TERMS));
        on_threads(world, |rank| {
            contract::groups::overlapping_groups_are_independent(rank, &TERMS);
            contract::groups::one_pair_in_two_groups(rank, &TERMS);
            contract::groups::every_grid_keeps_the_contract(rank, &TERMS);
        });
    }
}

#[test]
fn an_absent_member_of_a_group_is_named() {
    let all_are_done = Barrier::new(4);
    for (absent, len) in [(3, 100), (0, 1)] {
        on_threads(4, |rank| {
            contract::groups::an_absent_member_is_named(rank, absent, len, SHORT);
            all_are_done.wait();
        });
        on_threads(4, |rank| {
            let check = contract::groups::an_absent_peer_of_grouped_messages_is_named;
            check(rank, absent, len, SHORT);
            all_are_done.wait();
        });
    }
}

#[test]
fn steady_state_allocates_nothing() {
    allocations::steady_state_allocates_nothing(&Single::new());
    on_threads(2, allocations::steady_state_allocates_nothing);
}

#[test]
fn an_absent_thread_is_named() {
    let all_are_done = Barrier::new(3);
    on_threads(3, |rank| {
        let named = failures::an_absent_rank_is_a_deadline(rank, SHORT);
        if rank.rank() < 2 {
            assert!(named.contains(&2), "{named:?}"); // and a rank that gave up before, perhaps
        }
        all_are_done.wait();
    });
    on_threads(2, |rank| {
        if rank.rank() == 0 {
            let error = rank.barrier(Instant::now() + SHORT).unwrap_err();
            let Error::Deadline { peers, .. } = error else { panic!("{error}") };
            assert_eq!(peers, [1]);
        }
    });
}

#[test]
fn threads_detect_mismatches() {
    for receiver_len in [2, 4] {
        on_threads(2, |rank| {
            failures::a_message_of_wrong_length_is_an_error(rank, &TERMS, 3, receiver_len);
        });
    }
    on_threads(2, |rank| {
        let mut buffer = vec![0f32; 4 + rank.rank()];
        let error = rank.all_reduce_sum(&mut buffer, Instant::now() + TERMS.timeout);
        assert!(matches!(error, Err(Error::Mismatch { .. })), "{error:?}");
    });
}

/// A panic must not wait for peers, and must not leave buffers in flight.
#[test]
fn a_panic_with_operations_in_flight_abandons_the_group() {
    on_threads(2, |rank| {
        if rank.rank() == 1 {
            return;
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut buffer = Incoming::<f32>::new(rank, Allocator::host().zeros(8));
            buffer.start(Operation::AllReduceSum, 0..8).unwrap();
            panic!("on purpose");
        }));
        assert!(outcome.is_err());
        let result = rank.barrier(Instant::now() + TERMS.timeout);
        assert!(matches!(result, Err(Error::Dead { .. })), "{result:?}");
    });
}
