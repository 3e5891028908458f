//! Every operation gives the right values.

use std::fmt::Debug;

use device::Allocator;
use half::bf16;

use super::terms::{Terms, exact_sum, expect_ok, filled};
use crate::{Channel, Collective, Element, Operation};

/// All-reduce gives the exact sum to all ranks.
///
/// # Panics
/// Panics if a sum is wrong.
pub fn all_reduce(collective: &dyn Collective, terms: &Terms) {
    all_reduce_as::<bf16>(collective, terms);
    all_reduce_as::<f32>(collective, terms);
    all_reduce_as::<f64>(collective, terms);
}

fn all_reduce_as<E: Element + From<u8> + Into<f64>>(collective: &dyn Collective, terms: &Terms) {
    for len in terms.lens() {
        let mut buffer: Vec<E> = filled(collective.rank(), len);
        let result = collective.all_reduce_sum(&mut buffer, terms.deadline());
        let timing = expect_ok(collective, "all-reduce", result);
        assert_eq!(timing.bytes, len * size_of::<E>(), "bytes of the timing");
        assert!(timing.ended >= timing.started, "the timing goes forward");
        for (index, found) in buffer.iter().enumerate() {
            let expected = exact_sum(collective.world(), index);
            assert_eq!((*found).into(), expected, "all-reduce of {len}, element {index}");
        }
    }
}

/// Reduce-scatter gives the exact sum in the rank's own part, and zeros where all ranks have zeros.
///
/// # Panics
/// Panics if an element is wrong.
pub fn reduce_scatter(collective: &dyn Collective, terms: &Terms) {
    let rank = collective.rank();
    let world = collective.world();
    for part in terms.lens() {
        let len = part * world;
        let mut buffer: Vec<f32> = filled(rank, len);
        let is_zero = |index: usize| index % 5 == 3;
        (0..len).filter(|&index| is_zero(index)).for_each(|index| buffer[index] = 0.0);
        let operation = Operation::ReduceScatterSum;
        let result = collective.run(Channel::Control, operation, &mut buffer, terms.deadline());
        expect_ok(collective, "reduce-scatter", result);
        for index in (0..len).filter(|&index| is_zero(index)) {
            assert_eq!(buffer[index], 0.0, "reduce-scatter of {len}, rank {rank}, zero {index}");
        }
        for (offset, found) in buffer[rank * part..(rank + 1) * part].iter().enumerate() {
            let index = rank * part + offset;
            assert_eq!(
                f64::from(*found),
                if is_zero(index) { 0.0 } else { exact_sum(world, index) },
                "reduce-scatter of {len}, rank {rank}, element {index}"
            );
        }
    }
}

/// All-gather gives every rank's part to all ranks.
///
/// # Panics
/// Panics if an element is wrong.
pub fn all_gather(collective: &dyn Collective, terms: &Terms) {
    all_gather_as::<u8>(collective, terms);
    all_gather_as::<bf16>(collective, terms);
    all_gather_as::<f32>(collective, terms);
    all_gather_as::<f64>(collective, terms);
}

fn all_gather_as<E>(collective: &dyn Collective, terms: &Terms)
where
    E: Element + From<u8> + PartialEq + Debug,
{
    let rank = collective.rank();
    let world = collective.world();
    for part in terms.lens() {
        let mut buffer = vec![E::default(); part * world];
        buffer[rank * part..(rank + 1) * part].copy_from_slice(&filled(rank, part));
        let result = collective.all_gather(&mut buffer, terms.deadline());
        expect_ok(collective, "all-gather", result);
        for owner in 0..world {
            let found = &buffer[owner * part..(owner + 1) * part];
            assert!(found == filled::<E>(owner, part), "all-gather: part of rank {owner}");
        }
    }
}

/// Broadcast gives the root's values to all ranks, from every root.
///
/// # Panics
/// Panics if an element is wrong.
pub fn broadcast(collective: &dyn Collective, terms: &Terms) {
    for root in 0..collective.world() {
        broadcast_as::<u8>(collective, terms, root);
        broadcast_as::<bf16>(collective, terms, root);
        broadcast_as::<f64>(collective, terms, root);
    }
}

fn broadcast_as<E>(collective: &dyn Collective, terms: &Terms, root: usize)
where
    E: Element + From<u8> + PartialEq + Debug,
{
    for len in terms.lens() {
        let mut buffer: Vec<E> = filled(collective.rank(), len);
        let operation = Operation::Broadcast { root };
        let result = collective.run(Channel::Control, operation, &mut buffer, terms.deadline());
        expect_ok(collective, "broadcast", result);
        assert!(buffer == filled::<E>(root, len), "broadcast of {len} from {root}");
    }
}

/// Sums of equal addends have equal bits when repeated, and equal bits on every rank, though the
/// sum depends on the order.
///
/// # Panics
/// Panics if the bits differ.
pub fn sums_are_reproducible(collective: &dyn Collective, terms: &Terms) {
    for len in terms.lens() {
        let once = || -> Vec<u32> {
            let mut buffer = rounded(collective.rank(), len);
            let result = collective.all_reduce_sum(&mut buffer, terms.deadline());
            expect_ok(collective, "all-reduce", result);
            buffer.iter().map(|sum| sum.to_bits()).collect()
        };
        let first = once();
        assert!(first == once(), "the same sum of {len} differs the second time");
        let mut bytes: Vec<u8> = first.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let own = bytes.clone();
        let operation = Operation::Broadcast { root: 0 };
        let result = collective.run(Channel::Control, operation, &mut bytes, terms.deadline());
        expect_ok(collective, "broadcast", result);
        assert!(bytes == own, "the sum of {len} differs from rank 0's");
    }
}

/// All-reduce and reduce-scatter give the same sums: of the ranks in ascending order; but on the
/// data channel, in a buffer of the backend's, of each node's ranks in ascending order, then of the
/// nodes' sums in the order of the nodes' first ranks.
///
/// # Panics
/// Panics if a sum has other bits.
pub fn sums_have_the_order_of_ranks(collective: &dyn Collective, terms: &Terms) {
    let many = 20 * terms.message_elements_max + 3;
    let most = many * collective.world();
    let of_backend = collective.buffer(&Allocator::host(), most, terms.deadline());
    let mut of_backend = expect_ok(collective, "buffer", of_backend);
    let mut other = vec![0.0; most];
    for len in terms.lens().into_iter().chain([many]) {
        for operation in [Operation::AllReduceSum, Operation::ReduceScatterSum] {
            let check = |channel, nodes, buffer: &mut [f32]| {
                check_order(collective, terms, channel, operation, nodes, buffer);
            };
            let len =
                if operation == Operation::AllReduceSum { len } else { len * collective.world() };
            check(Channel::Data, terms.nodes, &mut of_backend.host_mut()[..len]);
            let nodes = if terms.sums_by_node { terms.nodes } else { &[] };
            check(Channel::Data, nodes, &mut other[..len]);
            check(Channel::Control, nodes, &mut other[..len]);
        }
    }
}

/// Sums that are rounded must have the bits of the order by nodes.
fn check_order(
    collective: &dyn Collective,
    terms: &Terms,
    channel: Channel,
    operation: Operation,
    nodes: &[usize],
    buffer: &mut [f32],
) {
    let rank = collective.rank();
    let world = collective.world();
    let len = buffer.len();
    buffer.copy_from_slice(&rounded(rank, len));
    expect_ok(
        collective,
        "a sum",
        collective.run(channel, operation, &mut *buffer, terms.deadline()),
    );
    let part = len / world;
    let is_whole = operation == Operation::AllReduceSum;
    let range = if is_whole { 0..len } else { rank * part..(rank + 1) * part };
    let expected = ordered_sums(world, len, nodes);
    for index in range {
        let found = buffer[index].to_bits();
        let expected = expected[index].to_bits();
        assert_eq!(found, expected, "{operation} of {len}, {channel:?} {nodes:?}, {index}");
    }
}

/// The sums of [`rounded`] numbers, node by node; no nodes are one.
fn ordered_sums(world: usize, len: usize, nodes: &[usize]) -> Vec<f32> {
    let node = |rank: usize| nodes.get(rank).copied().unwrap_or(0);
    let is_first = |rank: &usize| (0..*rank).all(|before| node(before) != node(*rank));
    let numbers: Vec<Vec<f32>> = (0..world).map(|rank| rounded(rank, len)).collect();
    let sum_of = |first: usize, index: usize| {
        let ranks = (first + 1..world).filter(|&rank| node(rank) == node(first));
        ranks.fold(numbers[first][index], |sum, rank| sum + numbers[rank][index])
    };
    let sum = |index: usize| {
        let sums = (0..world).filter(is_first).map(|first| sum_of(first, index));
        sums.reduce(|sum, addend| sum + addend).unwrap_or_default()
    };
    (0..len).map(sum).collect()
}

/// Numbers of very different size, whose sum is rounded.
fn rounded(rank: usize, len: usize) -> Vec<f32> {
    let number = |index: usize| {
        let mixed = (index as u32).wrapping_mul(2_654_435_761) ^ (rank as u32 * 40_503);
        (mixed % 10_007) as f32 * 10f32.powi((mixed % 13) as i32 - 6) - 0.1
    };
    (0..len).map(number).collect()
}
