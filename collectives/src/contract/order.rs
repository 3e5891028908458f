//! Several operations at the same time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::terms::{Terms, expect_ok, filled, value};
use crate::{Channel, Collective, Error, OUTSTANDING_MAX, Operation, RawBuffer, scope};

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
    let rank = collective.rank();
    let world = collective.world();
    let message = terms.message_elements_max;
    let lens = [2 * message + 1, 3, message, 0, 5 * message, 1, 64, 999];
    let mut buffers = lens.map(|len| filled::<f32>(rank, len));
    scope(collective, |scope| {
        let start =
            |buffer| expect_ok(collective, "start", scope.start(Operation::AllReduceSum, buffer));
        let pending = buffers.each_mut().map(start);
        for pending in pending.into_iter().rev() {
            expect_ok(collective, "wait", pending.wait(terms.deadline()));
        }
    });
    assert_sums(world, &buffers);
}

/// The end of a scope waits for operations whose handle was forgotten.
///
/// # Panics
/// Panics if it does not, or if an operation gives other values.
pub fn forgotten_operations_are_waited_for(collective: &dyn Collective, terms: &Terms) {
    let len = 4 * terms.message_elements_max;
    let mut buffers = [0; 3].map(|_: usize| filled::<f32>(collective.rank(), len));
    let [first, second, third] = &mut buffers;
    scope(collective, |scope| {
        let start =
            |buffer| expect_ok(collective, "start", scope.start(Operation::AllReduceSum, buffer));
        let _ = start(first); // a handle has no drop of its own to run
        let _ = start(second);
        expect_ok(collective, "wait", start(third).wait(terms.deadline()));
    });
    assert_sums(collective.world(), &buffers);
}

fn assert_sums(world: usize, buffers: &[Vec<f32>]) {
    for buffer in buffers {
        for (index, found) in buffer.iter().enumerate() {
            let expected: f32 = (0..world).map(|rank| f32::from(value(rank, index))).sum();
            assert_eq!(*found, expected, "element {index} of {}", buffer.len());
        }
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
        let mut data = [filled::<f32>(rank, 2 * terms.message_elements_max + round)];
        let mut flags = [1.0, rank as f64];
        let vote = |flags: &mut [f64]| {
            expect_ok(collective, "vote", collective.all_reduce_sum(flags, terms.deadline()));
        };
        let votes_first = (rank + round) % 2 == 1;
        if votes_first {
            vote(&mut flags);
        }
        scope(collective, |scope| {
            let pending = scope.start(Operation::AllReduceSum, &mut data[0]);
            let pending = expect_ok(collective, "start", pending);
            if !votes_first {
                vote(&mut flags);
            }
            expect_ok(collective, "wait", pending.wait(terms.deadline()));
        });
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
    for ticket in tickets {
        expect_ok(collective, "wait", collective.wait(ticket, terms.deadline()));
    }
}

#[allow(unsafe_code)]
unsafe fn barrier(collective: &dyn Collective) -> Result<crate::Ticket, Error> {
    // SAFETY: an empty buffer.
    unsafe { collective.submit(Channel::Data, Operation::Barrier, RawBuffer::empty()) }
}
