//! Messages between two ranks.

use super::{Terms, filled, good};
use crate::{Collective, Operation, scope};

/// Every rank gives a buffer to the next and takes one from the one before, at the same time.
///
/// # Panics
/// When a rank does not get what was sent.
pub fn ring(collective: &dyn Collective, terms: &Terms) {
    let (rank, world) = (collective.rank(), collective.world());
    if world == 1 {
        return; // nobody to talk to; `failures` checks that talking to oneself is an error
    }
    let (to, from) = ((rank + 1) % world, (rank + world - 1) % world);
    for len in terms.lens() {
        let mut give: Vec<f64> = filled(rank, len);
        let mut take = vec![-1.0; len];
        scope(collective, |scope| {
            let send = scope.start(Operation::Send { to, tag: 3 }, &mut give);
            let receive = scope.start(Operation::Receive { from, tag: 3 }, &mut take);
            for pending in [send, receive] {
                let pending = good(collective, "start", pending);
                good(collective, "ring", pending.wait(terms.deadline()));
            }
        });
        assert!(take == filled::<f64>(from, len), "ring: {len} elements from rank {from}");
        assert!(give == filled::<f64>(rank, len), "ring: the buffer given is unchanged");
    }
}

/// Messages with different tags may be received in another order than they were sent.
///
/// # Panics
/// When they get mixed up.
pub fn tags_tell_messages_apart(collective: &dyn Collective, terms: &Terms) {
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
        let start = |operation, buffer| good(collective, "tags", scope.start(operation, buffer));
        // Both are started before either is waited for: a send may last until it is received.
        let pending = [start(operations[0], first), start(operations[1], second)];
        for pending in pending {
            good(collective, "tags", pending.wait(terms.deadline()));
        }
    });
    if collective.rank() == 1 {
        assert!(buffers == [filled::<u8>(2, 9), filled::<u8>(1, 9)], "messages got mixed up");
    }
}
