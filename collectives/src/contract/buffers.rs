//! Buffers that the backend made are like any others.

use super::{Terms, filled, good, value};
use crate::{Channel, Collective, Incoming, Operation, scope};

/// Operations on buffers of `dyn Collective`'s `buffer`, on slices of them, and on them
/// on one rank and other memory on the others, give what they give anywhere.
///
/// # Panics
/// When they do not.
pub fn are_like_any_memory(collective: &dyn Collective, terms: &Terms) {
    let (rank, world) = (collective.rank(), collective.world());
    let len = world * (3 * terms.chunk_elements_max + 17);
    let mut empty = good(collective, "buffer", collective.buffer::<f64>(0, terms.deadline()));
    good(collective, "all-reduce", collective.all_reduce_sum(&mut empty, terms.deadline()));
    let mut buffer = good(collective, "buffer", collective.buffer::<f32>(len, terms.deadline()));
    assert!(buffer.iter().all(|&element| element == 0.0), "zeros at first");

    let run = |operation, buffer: &mut [f32]| {
        buffer.copy_from_slice(&filled(rank, buffer.len()));
        let result = collective.run(Channel::Data, operation, buffer, terms.deadline());
        good(collective, "an operation on a buffer", result);
    };
    for slice in [0..len, world..len - world] {
        let slice = &mut buffer[slice];
        let part = slice.len() / world;
        run(Operation::AllReduceSum, slice);
        assert_sums(world, slice, 0, "all-reduce");
        run(Operation::ReduceScatterSum, slice);
        let own = rank * part..(rank + 1) * part;
        assert_sums(world, &slice[own.clone()], own.start, "reduce-scatter");
        run(Operation::AllGather, slice);
        for (index, found) in slice.iter().enumerate() {
            assert_eq!(*found, f32::from(value(index / part, index)), "all-gather, {index}");
        }
        run(Operation::Broadcast { root: world - 1 }, slice);
        assert!(slice[..] == filled::<f32>(world - 1, slice.len()), "broadcast");
    }
    let mut other = vec![0.0; len];
    let mixed = if rank == 0 { &mut buffer[..] } else { &mut other[..] };
    run(Operation::AllReduceSum, mixed);
    assert_sums(world, mixed, 0, "all-reduce of different memory");
    halves_overlap(collective, terms, &mut buffer);
}

/// Parts of an [`Incoming`] buffer come one after another, and each is used while those after it
/// are still under way.
///
/// # Panics
/// When they hold other values.
pub fn parts_come_one_after_another(collective: &dyn Collective, terms: &Terms) {
    let (rank, world) = (collective.rank(), collective.world());
    let part = world * (terms.chunk_elements_max + 3);
    let ranges = [0, 1, 2].map(|index| index * part..(index + 1) * part);
    let buffer = good(collective, "buffer", collective.buffer(3 * part, terms.deadline()));
    let mut buffer = Incoming::new(collective, buffer);
    buffer.get_mut(0..3 * part).copy_from_slice(&filled::<f32>(rank, 3 * part));
    for round in 0..2 {
        for range in ranges.iter().rev() {
            good(collective, "start", buffer.start(Operation::AllGather, range.clone()));
        }
        let mut came = 0;
        for range in ranges.iter().rev() {
            let waited = buffer.wait(range, terms.deadline(), |timing| came += timing.bytes);
            good(collective, "wait", waited);
            for (index, found) in buffer.get(range.clone()).iter().enumerate() {
                let owner = index / (part / world);
                let expected = value(owner, range.start + index);
                assert_eq!(*found, f32::from(expected), "round {round}, element {index}");
            }
        }
        assert_eq!(came, 3 * part * size_of::<f32>());
        // From here on nobody reads this rank's parts, although others may still be waiting.
        for range in &ranges {
            let own = range.start + rank * (part / world)..range.start + (rank + 1) * part / world;
            let elements = filled::<f32>(rank, 3 * part);
            buffer.get_mut(range.clone()).fill(-1.0);
            buffer.get_mut(own.clone()).copy_from_slice(&elements[own]);
        }
    }
}

/// Two slices of one buffer under way together.
fn halves_overlap(collective: &dyn Collective, terms: &Terms, buffer: &mut [f32]) {
    buffer.copy_from_slice(&filled(collective.rank(), buffer.len()));
    let middle = buffer.len() / 2;
    let (first, second) = buffer.split_at_mut(middle);
    scope(collective, |scope| {
        let pending = [first, second]
            .map(|half| good(collective, "start", scope.start(Operation::AllReduceSum, half)));
        for pending in pending {
            good(collective, "wait", pending.wait(terms.deadline()));
        }
    });
    assert_sums(collective.world(), buffer, 0, "two halves");
}

fn assert_sums(world: usize, found: &[f32], start: usize, what: &str) {
    for (offset, found) in found.iter().enumerate() {
        let index = start + offset;
        let expected: f32 = (0..world).map(|rank| f32::from(value(rank, index))).sum();
        assert_eq!(*found, expected, "{what}, element {index}");
    }
}
