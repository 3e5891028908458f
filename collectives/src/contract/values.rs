//! Every operation gives the values it should.

use std::fmt::Debug;

use half::bf16;

use super::{Terms, filled, good, value};
use crate::{Channel, Collective, Element, Operation};

/// The exact sum over all ranks at an index.
fn total(world: usize, index: usize) -> f64 {
    (0..world).map(|rank| f64::from(value(rank, index))).sum()
}

/// All-reduce gives the exact sum everywhere.
///
/// # Panics
/// When it does not.
pub fn all_reduce(collective: &dyn Collective, terms: &Terms) {
    all_reduce_as::<f32>(collective, terms);
    all_reduce_as::<f64>(collective, terms);
}

fn all_reduce_as<E: Element + From<u8> + Into<f64>>(collective: &dyn Collective, terms: &Terms) {
    for len in terms.lens() {
        let mut buffer: Vec<E> = filled(collective.rank(), len);
        let result = collective.all_reduce_sum(&mut buffer, terms.deadline());
        let timing = good(collective, "all-reduce", result);
        assert_eq!(timing.bytes, len * size_of::<E>(), "bytes of the timing");
        assert!(timing.ended >= timing.started, "the timing goes forward");
        for (index, found) in buffer.iter().enumerate() {
            let expected = total(collective.world(), index);
            assert_eq!((*found).into(), expected, "all-reduce of {len}, element {index}");
        }
    }
}

/// Reduce-scatter gives the exact sum in the rank's own part, and nothing where all have nothing.
///
/// # Panics
/// When it does not.
pub fn reduce_scatter(collective: &dyn Collective, terms: &Terms) {
    let (rank, world) = (collective.rank(), collective.world());
    for part in terms.lens() {
        let len = part * world;
        let mut buffer: Vec<f32> = filled(rank, len);
        let is_nothing = |index: usize| index % 5 == 3;
        (0..len).filter(|&index| is_nothing(index)).for_each(|index| buffer[index] = 0.0);
        let result = collective.reduce_scatter_sum(&mut buffer, terms.deadline());
        good(collective, "reduce-scatter", result);
        let nothing = (0..len).filter(|&index| is_nothing(index));
        for index in nothing {
            assert_eq!(buffer[index], 0.0, "reduce-scatter of {len}, rank {rank}, nothing {index}");
        }
        for (offset, found) in buffer[rank * part..(rank + 1) * part].iter().enumerate() {
            let index = rank * part + offset;
            assert_eq!(
                f64::from(*found),
                if is_nothing(index) { 0.0 } else { total(world, index) },
                "reduce-scatter of {len}, rank {rank}, element {index}"
            );
        }
    }
}

/// All-gather gives every rank's part to everybody.
///
/// # Panics
/// When it does not.
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
    let (rank, world) = (collective.rank(), collective.world());
    for part in terms.lens() {
        let mut buffer = vec![E::default(); part * world];
        buffer[rank * part..(rank + 1) * part].copy_from_slice(&filled(rank, part));
        let result = collective.all_gather(&mut buffer, terms.deadline());
        good(collective, "all-gather", result);
        for owner in 0..world {
            let found = &buffer[owner * part..(owner + 1) * part];
            assert!(found == filled::<E>(owner, part), "all-gather: part of rank {owner}");
        }
    }
}

/// Broadcast gives the root's values to everybody, from every root.
///
/// # Panics
/// When it does not.
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
        let result = collective.broadcast(root, &mut buffer, terms.deadline());
        good(collective, "broadcast", result);
        assert!(buffer == filled::<E>(root, len), "broadcast of {len} from {root}");
    }
}

/// The same addends give the same bits twice, and the same bits on every rank, though their sum
/// depends on the order.
///
/// # Panics
/// When they do not.
pub fn sums_are_reproducible(collective: &dyn Collective, terms: &Terms) {
    for len in terms.lens() {
        let once = || -> Vec<u32> {
            let mut buffer = rounded(collective.rank(), len);
            let result = collective.all_reduce_sum(&mut buffer, terms.deadline());
            good(collective, "all-reduce", result);
            buffer.iter().map(|sum| sum.to_bits()).collect()
        };
        let (first, second) = (once(), once());
        assert!(first == second, "the same sum of {len} differs the second time");
        let mut bytes: Vec<u8> = first.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let own = bytes.clone();
        good(collective, "broadcast", collective.broadcast(0, &mut bytes, terms.deadline()));
        assert!(bytes == own, "the sum of {len} differs from rank 0's");
    }
}

/// All-reduce and reduce-scatter add up the same: the ranks of each node in their order, then the
/// nodes' sums in the order of the nodes' first ranks. On the control channel all ranks are as if
/// on one node.
///
/// # Panics
/// When a sum has other bits.
pub fn sums_have_the_order_of_ranks(collective: &dyn Collective, terms: &Terms) {
    let (rank, world) = (collective.rank(), collective.world());
    for (channel, nodes) in [(Channel::Data, terms.nodes), (Channel::Control, &[][..])] {
        let many = 20 * terms.chunk_elements_max + 3;
        for len in terms.lens().into_iter().chain([many]) {
            for operation in [Operation::AllReduceSum, Operation::ReduceScatterSum] {
                let is_whole = operation == Operation::AllReduceSum;
                let len = if is_whole { len } else { world * len };
                let mut buffer = rounded(rank, len);
                let result = collective.run(channel, operation, &mut buffer, terms.deadline());
                good(collective, "a sum", result);
                let (part, expected) = (len / world, ordered_sums(world, len, nodes));
                let range = if is_whole { 0..len } else { rank * part..(rank + 1) * part };
                for index in range {
                    let (found, expected) = (buffer[index].to_bits(), expected[index].to_bits());
                    assert_eq!(found, expected, "{operation} of {len}, {channel:?}, {index}");
                }
            }
        }
    }
}

/// The sums of [`rounded`] numbers in the order that is promised.
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
