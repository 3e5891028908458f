//! Messages between two ranks, alone and in groups.

use std::fmt::Debug;

use half::bf16;

use super::terms::{Terms, expect_ok, filled, incoming};
use crate::{Channel, Collective, Element, Operation};

/// Every rank sends a buffer to the next rank and receives one from the rank before, at the same
/// time: as grouped messages, and as two operations, unless these have one order.
///
/// # Panics
/// Panics if a rank does not receive what was sent.
pub fn ring(collective: &dyn Collective, terms: &Terms) {
    if collective.world() == 1 {
        return; // no peer; `failures` checks that sending to oneself is an error
    }
    for len in terms.lens() {
        grouped_ring::<u8>(collective, terms, len);
        grouped_ring::<bf16>(collective, terms, len);
        grouped_ring::<f64>(collective, terms, len);
        if !terms.has_one_order {
            ring_of_two(collective, terms, len);
        }
    }
}

/// A send to the next rank, and a receive from the rank before.
fn ring_messages(collective: &dyn Collective) -> [Operation; 2] {
    let (rank, world) = (collective.rank(), collective.world());
    let send = Operation::Send { to: (rank + 1) % world, tag: 3 };
    [send, Operation::Receive { from: (rank + world - 1) % world, tag: 3 }]
}

fn grouped_ring<E>(collective: &dyn Collective, terms: &Terms, len: usize)
where
    E: Element + From<u8> + PartialEq + Debug,
{
    let rank = collective.rank();
    let [send, receive] = ring_messages(collective);
    let mut sent: Vec<E> = filled(rank, len);
    let mut received = vec![E::default(); len];
    let messages = [(send, (&mut sent).into()), (receive, (&mut received).into())];
    let result = collective.run_group(Channel::Data, messages, terms.deadline());
    let timing = expect_ok(collective, "ring", result);
    assert_eq!(timing.bytes, 2 * len * size_of::<E>(), "of both messages");
    let from = receive.peer().unwrap_or(rank);
    assert!(received == filled::<E>(from, len), "ring: {len} elements from rank {from}");
    assert!(sent == filled::<E>(rank, len), "ring: the sent buffer is unchanged");
}

fn ring_of_two(collective: &dyn Collective, terms: &Terms, len: usize) {
    let [send, receive] = ring_messages(collective);
    let mut sent = incoming(collective, &filled::<f64>(collective.rank(), len));
    let mut received = incoming(collective, &vec![-1.0; len]);
    for (buffer, operation) in [(&mut sent, send), (&mut received, receive)] {
        expect_ok(collective, "start", buffer.start(operation, 0..len));
    }
    for buffer in [&mut sent, &mut received] {
        expect_ok(collective, "ring", buffer.wait(&(0..len), terms.deadline(), |_| ()));
    }
    let from = receive.peer().unwrap_or_default();
    let found = received.get(0..len).host();
    assert!(found == filled::<f64>(from, len), "ring: {len} elements from rank {from}");
}

/// Messages with different tags may be received in another order than they were sent, unless
/// operations have one order.
///
/// # Panics
/// Panics if the messages are confused.
pub fn tags_distinguish_messages(collective: &dyn Collective, terms: &Terms) {
    let tags = [0, Operation::TAG_MAX];
    let mut operations = match collective.rank() {
        _ if collective.world() == 1 => return,
        0 => tags.map(|tag| Operation::Send { to: 1, tag }),
        1 => tags.map(|tag| Operation::Receive { from: 0, tag }),
        _ => return,
    };
    let mut ranges = [0..9, 9..18];
    if collective.rank() == 1 && !terms.has_one_order {
        operations.reverse();
        ranges.reverse();
    }
    let sent = [filled::<u8>(1, 9), filled::<u8>(2, 9)].concat();
    let content = if collective.rank() == 0 { sent.clone() } else { vec![0; 18] };
    let mut buffer = incoming(collective, &content);
    // Both are started before either is waited for: a send may block until it is received.
    for (operation, range) in operations.into_iter().zip(ranges) {
        expect_ok(collective, "tags", buffer.start(operation, range));
    }
    expect_ok(collective, "tags", buffer.wait(&(0..18), terms.deadline(), |_| ()));
    assert!(buffer.get(0..18).host() == sent, "messages are confused");
}

/// Several groups of messages are in flight together. Ranks list the messages of a group in
/// different orders, and those of one pair in the same.
///
/// # Panics
/// Panics if messages are confused.
pub fn grouped_messages_overlap(collective: &dyn Collective, terms: &Terms) {
    let (rank, world) = (collective.rank(), collective.world());
    if world == 1 {
        return;
    }
    let len = 2 * terms.message_elements_max + 3;
    let [send, receive] = ring_messages(collective);
    let content = |round: usize| filled::<f32>(rank + 10 * round, 2 * len);
    let all = [0, 1, 2].map(content).concat();
    let mut buffer = incoming(collective, &[&all[..], &vec![-1.0; all.len()]].concat());
    for round in 0..3 {
        let start = 2 * round * len;
        let [first, second] = [start..start + len, start + len..start + 2 * len];
        let into = |range: &std::ops::Range<usize>| range.start + all.len()..range.end + all.len();
        let mut messages = [
            (send, first.clone()),
            (send, second.clone()),
            (receive, into(&first)),
            (receive, into(&second)),
        ];
        messages.rotate_left(if rank % 2 == 0 { 2 } else { 0 });
        expect_ok(collective, "start", buffer.start_group(messages));
    }
    let mut timings = 0;
    // Waiting for one message waits for its whole group, once.
    for round in [2, 0, 1] {
        let range = all.len() + 2 * round * len..all.len() + (2 * round + 1) * len;
        let waited = buffer.wait(&range, terms.deadline(), |_| timings += 1);
        expect_ok(collective, "wait", waited);
        let own = 2 * round * len..2 * (round + 1) * len;
        assert!(!buffer.is_in_flight(&own), "what it sent is free as well");
    }
    assert!(timings == 3 || timings == 0, "a timing for each group, unless a device waits");
    let from = receive.peer().unwrap_or(rank);
    let expected = [0, 1, 2].map(|round: usize| filled::<f32>(from + 10 * round, 2 * len)).concat();
    assert!(buffer.get(all.len()..2 * all.len()).host() == expected, "messages are confused");
}
