//! Numbers that ranks send: small integers, whose sums are exact in f32 in any order.

use super::operation::CommOperation;

/// Returns what a rank contributes at an index of the buffer; `part` is which of R equal parts
/// contains it.
fn sent(operation: CommOperation, rank: usize, part: usize, index: usize) -> f32 {
    let to = if operation == CommOperation::AllToAll { 16 * (part % 5) } else { 0 };
    (index % 13 + rank % 7 + to) as f32
}

/// Returns the part of a buffer that contains an index.
fn part_of(index: usize, elements: usize, world: usize) -> usize {
    (index / (elements / world).max(1)).min(world - 1)
}

/// Fills a rank's buffer before the operation.
pub(super) fn fill(operation: CommOperation, rank: usize, world: usize, buffer: &mut [f32]) {
    let elements = buffer.len();
    for (index, element) in buffer.iter_mut().enumerate() {
        *element = sent(operation, rank, part_of(index, elements, world), index);
    }
}

/// Counts the elements of a rank's buffer that differ from the expected result. After a
/// reduce-scatter only the rank's own part counts.
pub(super) fn count_wrong(
    operation: CommOperation,
    rank: usize,
    world: usize,
    buffer: &[f32],
) -> u64 {
    let elements = buffer.len();
    let of_ranks: usize = (0..world).map(|rank| rank % 7).sum();
    let part_elements = elements / world;
    let expected = |index: usize| -> Option<f32> {
        let part = part_of(index, elements, world);
        match operation {
            CommOperation::AllReduce => Some((world * (index % 13) + of_ranks) as f32),
            CommOperation::ReduceScatter => {
                (part == rank).then(|| (world * (index % 13) + of_ranks) as f32)
            }
            CommOperation::AllGather => Some(sent(operation, part, part, index)),
            // Element that the sender had in the part for this rank, at the same place in that
            // part.
            CommOperation::AllToAll => {
                let of_sender = rank * part_elements + index % part_elements;
                Some(sent(operation, part, rank, of_sender))
            }
        }
    };
    let is_wrong =
        |(index, found): &(usize, &f32)| expected(*index).is_some_and(|it| it != **found);
    buffer.iter().enumerate().filter(is_wrong).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORLD: usize = 3;
    const PART: usize = 5;

    /// Returns the expected buffers of all ranks, computed here.
    fn done(operation: CommOperation) -> Vec<Vec<f32>> {
        let filled = |rank| {
            let mut buffer = vec![0.0; WORLD * PART];
            fill(operation, rank, WORLD, &mut buffer);
            buffer
        };
        let sent: Vec<Vec<f32>> = (0..WORLD).map(filled).collect();
        let of = |rank: usize, index: usize| match operation {
            CommOperation::AllReduce | CommOperation::ReduceScatter => {
                sent.iter().map(|buffer| buffer[index]).sum()
            }
            CommOperation::AllGather => sent[index / PART][index],
            CommOperation::AllToAll => sent[index / PART][rank * PART + index % PART],
        };
        let rank = |rank| (0..WORLD * PART).map(|index| of(rank, index)).collect();
        (0..WORLD).map(rank).collect()
    }

    #[test]
    fn what_an_operation_leaves_is_right_and_any_other_number_is_wrong() {
        use CommOperation::{AllGather, AllReduce, AllToAll, ReduceScatter};
        for operation in [AllReduce, ReduceScatter, AllGather, AllToAll] {
            for (rank, mut buffer) in done(operation).into_iter().enumerate() {
                let wrong = |buffer: &[f32]| count_wrong(operation, rank, WORLD, buffer);
                assert_eq!(wrong(&buffer), 0, "{operation:?} on rank {rank}");
                let own = rank * PART + 2;
                buffer[own] += 1.0;
                assert_eq!(wrong(&buffer), 1, "{operation:?} on rank {rank}");
                let other = (own + PART) % buffer.len();
                buffer[other] = f32::NAN;
                let expected = if operation == ReduceScatter { 1 } else { 2 };
                assert_eq!(wrong(&buffer), expected, "{operation:?} on rank {rank}");
            }
        }
    }
}
