//! Failures are reported as errors, in time.

use std::time::{Duration, Instant};

use device::ViewMut;

use super::terms::{Terms, expect_ok};
use crate::{Channel, Collective, Element, Error, Operation};

/// Arguments that one rank alone can know to be wrong are errors, and leave the backend usable.
///
/// # Panics
/// Panics if one of them is accepted, or fails otherwise.
pub fn wrong_arguments_are_errors(collective: &dyn Collective, terms: &Terms) {
    let rank = collective.rank();
    let world = collective.world();
    let refused = |operation, result: Result<_, Error>| {
        let error = result.err();
        let is_expected = matches!(error, Some(Error::Mismatch { .. } | Error::Unsupported { .. }));
        assert!(is_expected, "{operation} with wrong arguments: {error:?}");
    };
    let try_bytes = |operation, len| {
        let result = run::<u8>(collective, terms, operation, len);
        refused(operation, result);
    };
    try_bytes(Operation::AllReduceSum, 4);
    try_bytes(Operation::ReduceScatterSum, world);
    try_bytes(Operation::Broadcast { root: world }, 4);
    try_bytes(Operation::Barrier, 1);
    for peer in [rank, world] {
        try_bytes(Operation::Send { to: peer, tag: 0 }, 1);
        try_bytes(Operation::Receive { from: peer, tag: 0 }, 1);
    }
    let peer = (rank + 1) % world;
    for alone in [Operation::Barrier, Operation::Messages] {
        let one = [(alone, ViewMut::<u8>::default())];
        let result = collective.run_group(Channel::Control, one, terms.deadline());
        refused(alone, result);
    }
    let send = Operation::Send { to: peer, tag: 0 };
    let wrong = Operation::Receive { from: world, tag: 0 };
    let messages = [send, wrong].map(|operation| (operation, ViewMut::<u8>::default()));
    // The first of them is not started: no rank receives it.
    refused(send, collective.run_group(Channel::Control, messages, terms.deadline()));
    if world > 1 {
        let tag = Operation::TAG_MAX + 1;
        try_bytes(Operation::Send { to: peer, tag }, 1);
        try_bytes(Operation::Receive { from: peer, tag }, 1);
        for operation in [Operation::AllGather, Operation::ReduceScatterSum] {
            refused(operation, run::<f32>(collective, terms, operation, world + 1));
        }
    }
}

fn run<E: Element>(
    collective: &dyn Collective,
    terms: &Terms,
    operation: Operation,
    len: usize,
) -> Result<crate::Timing, Error> {
    let mut buffer = vec![E::default(); len];
    collective.run(Channel::Control, operation, &mut buffer, terms.deadline())
}

/// The highest rank does not enter an all-reduce: all others get [`Error::Deadline`] at the
/// deadline and find the backend dead after it. The highest rank just returns, and must keep its
/// process or its handle for the timeout and a second more. Returns the ranks that the error names,
/// if any: a backend may know more than it must.
///
/// Kills the backend. Needs two ranks.
///
/// # Panics
/// Panics if a rank waits less, or gets another result.
pub fn an_absent_rank_is_a_deadline(collective: &dyn Collective, timeout: Duration) -> Vec<usize> {
    if collective.rank() + 1 == collective.world() {
        return Vec::new();
    }
    let start = Instant::now();
    let mut buffer = [1f32; 100];
    let operation = Operation::AllReduceSum;
    let result = collective.run(Channel::Data, operation, &mut buffer, start + timeout);
    let waited = start.elapsed();
    let Err(error) = result else { panic!("{operation} without one rank: {result:?}") };
    let Error::Deadline { bytes, backend, peers, .. } = error else {
        panic!("{operation} without one rank: {error}")
    };
    assert_eq!((bytes, backend), (400, collective.backend()));
    let missing = collective.world() - 1;
    assert!(peers.is_empty() || peers.contains(&missing), "{peers:?} does not name {missing}");
    assert!(waited >= timeout, "the deadline came early: {waited:?}");
    assert_dead(collective, timeout);
    peers
}

/// Every operation is refused, at once: a wait would end with [`Error::Deadline`].
fn assert_dead(collective: &dyn Collective, timeout: Duration) {
    let result = collective.barrier(Instant::now() + timeout);
    assert!(matches!(result, Err(Error::Dead { .. })), "after a failure: {result:?}");
}

/// A message that is longer or shorter than the receiver's buffer is an error there. Rank 1 sends
/// to rank 0.
///
/// May kill the backend. Needs two ranks.
///
/// # Panics
/// Panics if the message is accepted.
pub fn a_message_of_wrong_length_is_an_error(
    collective: &dyn Collective,
    terms: &Terms,
    sender_len: usize,
    receiver_len: usize,
) {
    let tag = 5;
    match collective.rank() {
        0 => {
            let mut buffer = vec![0u8; receiver_len];
            let operation = Operation::Receive { from: 1, tag };
            let result = collective.run(Channel::Control, operation, &mut buffer, terms.deadline());
            let is_error = matches!(result, Err(Error::Mpi { .. } | Error::Mismatch { .. }));
            assert!(is_error, "{sender_len} bytes into {receiver_len}: {result:?}");
        }
        1 => {
            // The sender may or may not get an error.
            let mut buffer = vec![0u8; sender_len];
            let operation = Operation::Send { to: 0, tag };
            let _ = collective.run(Channel::Control, operation, &mut buffer, terms.deadline());
        }
        _ => {}
    }
}

/// A rank that abandons the group finds its own backend dead, and dropping that waits for nobody.
///
/// Kills the backend.
///
/// # Panics
/// Panics if the backend is not dead.
pub fn abandoning_is_final(collective: &dyn Collective, terms: &Terms) {
    expect_ok(collective, "barrier", collective.barrier(terms.deadline()));
    collective.abandon("a failure of its own");
    assert_dead(collective, terms.timeout);
}
