//! The contract on the backends that need no launcher.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "mpi/allocations.rs"]
mod allocations;
#[path = "../../tests/support/counting.rs"]
mod counting;

use std::time::{Duration, Instant};

use yardstick_collectives::contract::{self, Terms, failures};
use yardstick_collectives::{Collective, Error, Operation, Single, Threads, scope};

const TERMS: Terms =
    Terms { chunk_elements_max: 1000, patience: Duration::from_secs(20), nodes: &[] };

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
fn steady_state_allocates_nothing() {
    allocations::steady_state_allocates_nothing(&Single::new());
    on_threads(2, allocations::steady_state_allocates_nothing);
}

#[test]
fn a_thread_that_stays_away_is_named() {
    let patience = Duration::from_millis(200);
    on_threads(3, |rank| {
        let named = failures::staying_away_is_a_deadline(rank, patience);
        if rank.rank() < 2 {
            assert!(named.contains(&2), "{named:?}"); // and who gave up before, perhaps
        } else {
            std::thread::sleep(Duration::from_millis(500));
        }
    });
    on_threads(2, |rank| {
        if rank.rank() == 0 {
            let error = rank.barrier(Instant::now() + patience).unwrap_err();
            let Error::Deadline { peers, .. } = error else { panic!("{error}") };
            assert_eq!(peers, [1]);
        }
    });
}

#[test]
fn threads_notice_what_does_not_match() {
    for lens in [(3, 2), (3, 4)] {
        on_threads(2, |rank| {
            failures::a_message_of_wrong_length_is_an_error(rank, lens, &TERMS);
        });
    }
    on_threads(2, |rank| {
        let mut buffer = vec![0f32; 4 + rank.rank()];
        let error = rank.all_reduce_sum(&mut buffer, Instant::now() + TERMS.patience);
        assert!(matches!(error, Err(Error::Mismatch { .. })), "{error:?}");
    });
}

/// A scope whose body panics must not wait for peers, and must not leave the buffer lent.
#[test]
fn a_panic_in_a_scope_abandons_the_group() {
    on_threads(2, |rank| {
        if rank.rank() == 1 {
            return;
        }
        let start = Instant::now();
        let mut buffer = [1f32; 8];
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            scope(rank, |scope| {
                let _pending = scope.start(Operation::AllReduceSum, &mut buffer);
                panic!("on purpose");
            })
        }));
        assert!(outcome.is_err());
        assert!(start.elapsed() < Duration::from_secs(5));
        let result = rank.barrier(start + TERMS.patience);
        assert!(matches!(result, Err(Error::Dead { .. })), "{result:?}");
    });
}
