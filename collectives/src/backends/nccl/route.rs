//! Lines of ranks, each with a communicator of its own, and the lines that an operation passes.

use std::sync::Arc;

use super::communicator::Communicator;
use crate::{GroupPlan, Operation, RawBuffer};

/// Ranks that a communicator connects.
#[derive(Debug)]
pub(super) struct Line {
    /// Ranks of the world, in the order of the communicator's.
    pub(super) ranks: Vec<usize>,
    /// Name for messages; `None` for all ranks of the world in their order.
    pub(super) name: Option<Arc<GroupPlan>>,
    pub(super) communicator: Communicator,
}

/// Index of a line of this rank.
pub(super) type LineIndex = usize;

/// This rank's place in a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) line: LineIndex,
    pub(super) member: usize,
    pub(super) len: usize,
}

/// Lines that the operations of a group pass.
#[derive(Debug, Clone, Copy)]
pub(super) enum Route {
    /// None: devices do not communicate in the group.
    Nowhere,
    /// All ranks of the group.
    Line(LineIndex),
    /// One dimension after the other.
    Grid { inner: Place, outer: Place },
}

/// Part of an operation that one communicator carries out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stage {
    pub(super) line: LineIndex,
    pub(super) operation: Operation,
    pub(super) buffer: RawBuffer,
}

/// Most stages of an operation.
pub(super) const STAGES_MAX: usize = 5;

impl Route {
    /// Stages of an operation in their order. All ranks of a line have the same stages in it.
    pub(super) fn stages(
        self,
        operation: Operation,
        buffer: RawBuffer,
    ) -> impl Iterator<Item = Stage> {
        let mut stages = [None; STAGES_MAX];
        match self {
            Self::Nowhere => {}
            Self::Line(line) => stages[0] = Some(Stage { line, operation, buffer }),
            Self::Grid { inner, outer } => stages = grid_stages(inner, outer, operation, buffer),
        }
        stages.into_iter().flatten().filter(|stage| !stage.buffer.is_empty())
    }

    /// Lines that operations may pass.
    pub(super) fn lines(self) -> impl Iterator<Item = LineIndex> {
        let lines = match self {
            Self::Nowhere => [None; 2],
            Self::Line(line) => [Some(line), None],
            Self::Grid { inner, outer } => [Some(inner.line), Some(outer.line)],
        };
        lines.into_iter().flatten()
    }
}

/// Stages of a grid's operation. The grid's ranks follow outer lines: its rank `inner index * outer
/// length + outer index` has the part with this number.
fn grid_stages(
    inner: Place,
    outer: Place,
    operation: Operation,
    buffer: RawBuffer,
) -> [Option<Stage>; STAGES_MAX] {
    let stage =
        |place: Place, operation, buffer| Some(Stage { line: place.line, operation, buffer });
    match operation {
        Operation::ReduceScatterSum => [
            stage(inner, operation, buffer),
            stage(outer, operation, inner.part(buffer)),
            None,
            None,
            None,
        ],
        Operation::AllGather => [
            stage(outer, operation, inner.part(buffer)),
            stage(inner, operation, buffer),
            None,
            None,
            None,
        ],
        // The rest that does not divide crosses the outer dimension in full.
        Operation::AllReduceSum => {
            let even = buffer.slice(0..buffer.len() - buffer.len() % inner.len);
            let rest = buffer.slice(even.len()..buffer.len());
            [
                stage(inner, Operation::ReduceScatterSum, even),
                stage(outer, operation, inner.part(even)),
                stage(inner, Operation::AllGather, even),
                stage(inner, operation, rest),
                stage(outer, operation, rest),
            ]
        }
        Operation::Broadcast { root } => {
            let has_root = root / outer.len == inner.member;
            let across = Operation::Broadcast { root: root % outer.len };
            let along = Operation::Broadcast { root: root / outer.len };
            let across = stage(outer, across, buffer).filter(|_| has_root);
            [across, stage(inner, along, buffer), None, None, None]
        }
        Operation::Barrier
        | Operation::Send { .. }
        | Operation::Receive { .. }
        | Operation::Messages => {
            unreachable!("{operation} on a device was refused before")
        }
    }
}

impl Place {
    /// This rank's part of a buffer of its line.
    fn part(self, buffer: RawBuffer) -> RawBuffer {
        let len = buffer.len() / self.len;
        buffer.slice(self.member * len..(self.member + 1) * len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operations, lines, and ranges of elements of a buffer of 13.
    fn stages(operation: Operation, member: [usize; 2]) -> Vec<(Operation, LineIndex, [usize; 2])> {
        let mut elements = [0_u8; 13];
        let len = if operation == Operation::AllReduceSum { 13 } else { 12 };
        let buffer = RawBuffer::of(&mut elements[..len]);
        let [inner, outer] = [(2, member[0], 3), (5, member[1], 2)]
            .map(|(line, member, len)| Place { line, member, len });
        let range = |stage: &Stage| {
            let start = stage.buffer.start().addr().get() - buffer.start().addr().get();
            [start, start + stage.buffer.len()]
        };
        let stages = Route::Grid { inner, outer }.stages(operation, buffer);
        stages.map(|stage| (stage.operation, stage.line, range(&stage))).collect()
    }

    #[test]
    fn an_operation_of_a_grid_passes_one_dimension_after_the_other() {
        let [sum, scatter, gather] =
            [Operation::AllReduceSum, Operation::ReduceScatterSum, Operation::AllGather];
        let own = [4, 8];
        assert_eq!(stages(scatter, [1, 0]), [(scatter, 2, [0, 12]), (scatter, 5, own)]);
        assert_eq!(stages(gather, [1, 0]), [(gather, 5, own), (gather, 2, [0, 12])]);
        let whole = [(scatter, 2, [0, 12]), (sum, 5, own), (gather, 2, [0, 12])];
        let rest = [(sum, 2, [12, 13]), (sum, 5, [12, 13])];
        assert_eq!(stages(sum, [1, 1]), [&whole[..], &rest].concat());
    }

    #[test]
    fn a_broadcast_of_a_grid_starts_in_the_line_of_its_root() {
        let from = |root| Operation::Broadcast { root };
        let along = (from(1), 2, [0, 12]);
        // Rank 3 of the grid is in the second place of each inner line, in the second of them.
        assert_eq!(stages(from(3), [1, 0]), [(from(1), 5, [0, 12]), along]);
        assert_eq!(stages(from(3), [0, 1]), [along]);
    }
}
