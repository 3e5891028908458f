//! Several operations at the same time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::terms::{Terms, expect_ok, filled, incoming, value};
use crate::{Channel, Collective, Error, Incoming, OUTSTANDING_MAX, Operation, RawBuffer};

/// No rank leaves a barrier before all have entered. Compares wall clocks: for ranks of one
/// machine.
///
/// # Panics
/// Panics if a rank leaves early.
pub fn barrier_separates(collective: &dyn Collective, terms: &Terms) {
    let rank = collective.rank();
    let now = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.unwrap_or_default().as_secs_f64()
    };
    std::thread::sleep(Duration::from_millis(20 * rank as u64));
    let entered = now();
    expect_ok(collective, "barrier", collective.barrier(terms.deadline()));
    let mut times = vec![0.0; 2 * collective.world()];
    times[2 * rank..2 * rank + 2].copy_from_slice(&[entered, now()]);
    expect_ok(collective, "all-gather", collective.all_gather(&mut times, terms.deadline()));
    let last_entered = times.iter().step_by(2).copied().fold(f64::MIN, f64::max);
    let first_left = times.iter().skip(1).step_by(2).copied().fold(f64::MAX, f64::min);
    assert!(first_left >= last_entered, "a rank left the barrier too early: {times:?}");
}

/// Operations of many lengths are in flight together, and may be waited for in any order.
///
/// # Panics
/// Panics if one of them gives other values.
pub fn outstanding_operations_overlap(collective: &dyn Collective, terms: &Terms) {
    let message = terms.message_elements_max;
    let lens = [2 * message + 1, 3, message, 0, 5 * message, 1, 64, 999];
    let mut buffers = lens.map(|len| started_sum(collective, len));
    for buffer in buffers.iter_mut().rev() {
        expect_ok(collective, "wait", buffer.wait(&(0..buffer.len()), terms.deadline(), |_| ()));
    }
    buffers.iter().for_each(|buffer| assert_sums(collective.world(), buffer));
}

/// A buffer that ends, and its memory with it, waits for its operations first.
///
/// # Panics
/// Panics if it does not, or if an operation gives other values.
pub fn operations_are_waited_for_when_buffers_end(collective: &dyn Collective, terms: &Terms) {
    let len = 4 * terms.message_elements_max;
    let [first, second, mut third] = [(); 3].map(|()| started_sum(collective, len));
    drop(first);
    drop(second);
    expect_ok(collective, "wait", third.wait(&(0..len), terms.deadline(), |_| ()));
    assert_sums(collective.world(), &third);
}

/// A rank's elements, whose sum is in flight.
fn started_sum(collective: &dyn Collective, len: usize) -> Incoming<'_, f32> {
    let mut buffer = incoming(collective, &filled::<f32>(collective.rank(), len));
    expect_ok(collective, "start", buffer.start(Operation::AllReduceSum, 0..len));
    buffer
}

fn assert_sums(world: usize, buffer: &Incoming<'_, f32>) {
    for (index, found) in buffer.get(0..buffer.len()).host().iter().enumerate() {
        let addends = (0..world).map(|rank| f32::from(value(rank, index)));
        assert_eq!(*found, addends.sum::<f32>(), "element {index} of {}", buffer.len());
    }
}

/// A control operation completes while data operations are in flight, also when ranks start the
/// two in different orders.
///
/// # Panics
/// Panics if it does not complete.
pub fn channels_are_independent(collective: &dyn Collective, terms: &Terms) {
    let rank = collective.rank();
    let world = collective.world();
    for round in 0..6 {
        let len = 2 * terms.message_elements_max + round;
        let mut flags = [1.0, rank as f64];
        let vote = |flags: &mut [f64]| {
            expect_ok(collective, "vote", collective.all_reduce_sum(flags, terms.deadline()));
        };
        let votes_first = (rank + round) % 2 == 1;
        if votes_first {
            vote(&mut flags);
        }
        let mut data = started_sum(collective, len);
        if !votes_first {
            vote(&mut flags);
        }
        expect_ok(collective, "wait", data.wait(&(0..len), terms.deadline(), |_| ()));
        let expected = [world as f64, (world * (world - 1) / 2) as f64];
        assert_eq!(flags, expected, "votes of round {round}");
        assert_sums(world, &data);
    }
}

/// [`OUTSTANDING_MAX`] operations fit; one more is an error that does not affect them.
///
/// # Panics
/// Panics if they do not fit, or if one more does.
#[allow(unsafe_code)]
pub fn the_table_of_outstanding_operations_is_full_at_its_size(
    collective: &dyn Collective,
    terms: &Terms,
) {
    let mut tickets = Vec::new();
    for _ in 0..OUTSTANDING_MAX {
        // SAFETY: an empty buffer.
        let ticket = unsafe { barrier(collective) };
        tickets.push(expect_ok(collective, "submit", ticket));
    }
    // SAFETY: an empty buffer.
    let more = unsafe { barrier(collective) };
    assert!(matches!(more, Err(Error::Full { .. })), "one more operation: {more:?}");
    if let Some(last) = tickets.pop() {
        expect_ok(collective, "wait", collective.wait(last, terms.deadline()));
        grouped_messages_fit_or_none_is_started(collective, terms);
    }
    for ticket in tickets {
        expect_ok(collective, "wait", collective.wait(ticket, terms.deadline()));
    }
}

/// A group of two messages needs more room than the one entry that is left.
fn grouped_messages_fit_or_none_is_started(collective: &dyn Collective, terms: &Terms) {
    if collective.world() == 1 {
        return;
    }
    let peer = (collective.rank() + 1) % collective.world();
    let [send, receive] =
        [Operation::Send { to: peer, tag: 0 }, Operation::Receive { from: peer, tag: 0 }];
    let (mut sent, mut received) = ([0_u8], [0_u8]);
    let messages = [(send, (&mut sent).into()), (receive, (&mut received).into())];
    let result = collective.run_group(Channel::Control, messages, terms.deadline());
    assert!(matches!(result, Err(Error::Full { .. })), "two messages: {result:?}");
}

#[allow(unsafe_code)]
unsafe fn barrier(collective: &dyn Collective) -> Result<crate::Ticket, Error> {
    // SAFETY: an empty buffer.
    unsafe { collective.submit(Channel::Data, Operation::Barrier, RawBuffer::empty()) }
}
