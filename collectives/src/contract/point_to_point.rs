//! Messages between two ranks.

use super::terms::{Terms, expect_ok, filled};
use crate::{Collective, Operation, scope};

/// Every rank sends a buffer to the next rank and receives one from the rank before, at the same
/// time.
///
/// # Panics
/// Panics if a rank does not receive what was sent.
pub fn ring(collective: &dyn Collective, terms: &Terms) {
    let rank = collective.rank();
    let world = collective.world();
    if world == 1 {
        return; // no peer; `failures` checks that sending to oneself is an error
    }
    let to = (rank + 1) % world;
    let from = (rank + world - 1) % world;
    for len in terms.lens() {
        let mut sent: Vec<f64> = filled(rank, len);
        let mut received = vec![-1.0; len];
        scope(collective, |scope| {
            let send = scope.start(Operation::Send { to, tag: 3 }, &mut sent);
            let receive = scope.start(Operation::Receive { from, tag: 3 }, &mut received);
            for pending in [send, receive] {
                let pending = expect_ok(collective, "start", pending);
                expect_ok(collective, "ring", pending.wait(terms.deadline()));
            }
        });
        assert!(received == filled::<f64>(from, len), "ring: {len} elements from rank {from}");
        assert!(sent == filled::<f64>(rank, len), "ring: the sent buffer is unchanged");
    }
}

/// Messages with different tags may be received in another order than they were sent.
///
/// # Panics
/// Panics if the messages are confused.
pub fn tags_distinguish_messages(collective: &dyn Collective, terms: &Terms) {
    if collective.world() == 1 {
        return;
    }
    let mut buffers = [filled::<u8>(1, 9), filled::<u8>(2, 9)];
    let [first, second] = &mut buffers;
    let operations = match collective.rank() {
        0 => [0, Operation::TAG_MAX].map(|tag| Operation::Send { to: 1, tag }),
        1 => [Operation::TAG_MAX, 0].map(|tag| Operation::Receive { from: 0, tag }),
        _ => return,
    };
    scope(collective, |scope| {
        let start =
            |operation, buffer| expect_ok(collective, "tags", scope.start(operation, buffer));
        // Both are started before either is waited for: a send may block until it is received.
        let pending = [start(operations[0], first), start(operations[1], second)];
        for pending in pending {
            expect_ok(collective, "tags", pending.wait(terms.deadline()));
        }
    });
    if collective.rank() == 1 {
        assert!(buffers == [filled::<u8>(2, 9), filled::<u8>(1, 9)], "messages are confused");
    }
}
