//! Operations on buffers that the backend made, and on ranges of them.

use device::{Allocator, DeviceBuffer};

use super::terms::{Terms, expect_ok, filled, value};
use crate::{Channel, Collective, Incoming, Operation};

/// Operations on a buffer of `dyn Collective`'s `buffer` and on ranges of it have the same results
/// as on other memory.
///
/// # Panics
/// Panics if the results differ.
pub fn operations_on_backend_buffers(collective: &dyn Collective, terms: &Terms) {
    let rank = collective.rank();
    let world = collective.world();
    let len = world * (3 * terms.message_elements_max + 17);
    let allocator = Allocator::host();
    let empty = collective.buffer::<f64>(&allocator, 0, terms.deadline());
    let mut empty = expect_ok(collective, "buffer", empty);
    let summed = collective.all_reduce_sum(empty.host_mut(), terms.deadline());
    expect_ok(collective, "all-reduce", summed);
    let buffer = collective.buffer::<f32>(&allocator, len, terms.deadline());
    let mut buffer = expect_ok(collective, "buffer", buffer);
    assert_eq!(allocator.total_bytes(), (len * size_of::<f32>()) as u64, "recorded");
    assert!(buffer.host().iter().all(|&element| element == 0.0), "zeros at first");

    let run = |operation, buffer: &mut [f32]| {
        buffer.copy_from_slice(&filled(rank, buffer.len()));
        let result = collective.run(Channel::Data, operation, buffer, terms.deadline());
        expect_ok(collective, "an operation on a buffer", result);
    };
    for range in [0..len, world..len - world] {
        let elements = &mut buffer.host_mut()[range];
        let part = elements.len() / world;
        run(Operation::AllReduceSum, elements);
        assert_sums(world, elements, 0, "all-reduce");
        run(Operation::ReduceScatterSum, elements);
        let own = rank * part..(rank + 1) * part;
        assert_sums(world, &elements[own.clone()], own.start, "reduce-scatter");
        run(Operation::AllGather, elements);
        for (index, found) in elements.iter().enumerate() {
            assert_eq!(*found, f32::from(value(index / part, index)), "all-gather, {index}");
        }
        run(Operation::Broadcast { root: world - 1 }, elements);
        assert!(elements[..] == filled::<f32>(world - 1, elements.len()), "broadcast");
    }
    halves_overlap(collective, terms, buffer);
}

/// Ranges of an [`Incoming`] buffer complete one after another, and each is used while those after
/// it are still in flight.
///
/// # Panics
/// Panics if a range holds other values.
pub fn ranges_complete_one_after_another(collective: &dyn Collective, terms: &Terms) {
    let rank = collective.rank();
    let world = collective.world();
    let range_len = world * (terms.message_elements_max + 3);
    let part = range_len / world;
    let len = 3 * range_len;
    let ranges = [0, 1, 2].map(|index| index * range_len..(index + 1) * range_len);
    let buffer = collective.buffer(&Allocator::host(), len, terms.deadline());
    let mut buffer = Incoming::new(collective, expect_ok(collective, "buffer", buffer));
    buffer.get_mut(0..len).host().copy_from_slice(&filled::<f32>(rank, len));
    for round in 0..2 {
        for range in ranges.iter().rev() {
            let started = buffer.start(Operation::AllGather, range.clone());
            expect_ok(collective, "start", started);
        }
        let mut completed_bytes = 0;
        for range in ranges.iter().rev() {
            let report = |timing: crate::Timing| completed_bytes += timing.bytes;
            expect_ok(collective, "wait", buffer.wait(range, terms.deadline(), report));
            for (index, found) in buffer.get(range.clone()).host().iter().enumerate() {
                let expected = value(index / part, range.start + index);
                assert_eq!(*found, f32::from(expected), "round {round}, element {index}");
            }
        }
        assert_eq!(completed_bytes, len * size_of::<f32>());
        // From here on no rank reads this one's parts, although others may still be waiting.
        for range in &ranges {
            let own = range.start + rank * part..range.start + (rank + 1) * part;
            let elements = filled::<f32>(rank, len);
            buffer.get_mut(range.clone()).host().fill(-1.0);
            buffer.get_mut(own.clone()).host().copy_from_slice(&elements[own]);
        }
    }
}

/// Two ranges of one buffer in flight together.
fn halves_overlap(collective: &dyn Collective, terms: &Terms, buffer: DeviceBuffer<f32>) {
    let len = buffer.len();
    let own = filled(collective.rank(), len);
    let mut buffer = Incoming::new(collective, buffer.filled(|to| to.copy_from_slice(&own)));
    for half in [0..len / 2, len / 2..len] {
        expect_ok(collective, "start", buffer.start(Operation::AllReduceSum, half));
    }
    expect_ok(collective, "wait", buffer.wait(&(0..len), terms.deadline(), |_| ()));
    assert_sums(collective.world(), buffer.get(0..len).host(), 0, "two halves");
}

fn assert_sums(world: usize, found: &[f32], start: usize, what: &str) {
    for (offset, found) in found.iter().enumerate() {
        let index = start + offset;
        let expected: f32 = (0..world).map(|rank| f32::from(value(rank, index))).sum();
        assert_eq!(*found, expected, "{what}, element {index}");
    }
}
