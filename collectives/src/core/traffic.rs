//! Traffic of operations by the dimensions of ranks that they go over.

use std::time::Instant;

use super::operation::{Operation, Timing};

/// A dimension of ranks, which its groups divide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dimension {
    /// Name, such as `shard`; `world` for all ranks.
    pub name: &'static str,
    /// Number of ranks in each of its groups.
    pub ranks: usize,
}

/// The dimensions that the operations of a group go over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dimensions {
    /// The group's own dimension, or the inner one of a [grid](crate::GridPlan).
    pub inner: Dimension,
    /// The outer dimension of a grid.
    pub outer: Option<Dimension>,
}

impl Dimensions {
    /// Number of ranks of the group.
    pub fn ranks(&self) -> usize {
        self.inner.ranks * self.outer.map_or(1, |outer| outer.ranks)
    }
}

/// Time between two instants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// Begin.
    pub started: Instant,
    /// End.
    pub ended: Instant,
}

/// An operation over one dimension: a whole operation, or one of its stages over a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageTiming {
    /// The dimension.
    pub dimension: Dimension,
    /// The operation among the ranks of one group of the dimension.
    pub operation: Operation,
    /// Size of its buffer in bytes.
    pub bytes: usize,
    /// Time of the stage.
    pub interval: Interval,
}

impl StageTiming {
    /// Bytes that this rank sends, as [`Operation::bus_factor`] counts them.
    pub fn sent_bytes(&self) -> u64 {
        self.operation.bus_bytes(self.bytes, self.dimension.ranks)
    }
}

impl Timing {
    /// The stages of an operation, in their order.
    pub fn stages(
        self,
        operation: Operation,
        dimensions: Dimensions,
    ) -> impl Iterator<Item = StageTiming> {
        use Operation::{AllGather, AllReduceSum, ReduceScatterSum};
        let Self { started, ended, bytes, outer } = self;
        let Dimensions { inner, outer: outer_dimension } = dimensions;
        let of_inner = |operation, started, ended| StageTiming {
            dimension: inner,
            operation,
            bytes,
            interval: Interval { started, ended },
        };
        let whole = of_inner(operation, started, ended);
        let stages = match outer_dimension.zip(outer) {
            None => [Some(whole), None, None],
            Some((dimension, interval)) => {
                let bytes = bytes / inner.ranks;
                let over_outer = Some(StageTiming { dimension, operation, bytes, interval });
                let before = |operation| Some(of_inner(operation, started, interval.started));
                let after = |operation| Some(of_inner(operation, interval.ended, ended));
                match operation {
                    AllReduceSum => [before(ReduceScatterSum), over_outer, after(AllGather)],
                    AllGather => [None, over_outer, after(operation)],
                    _ => [before(operation), over_outer, None],
                }
            }
        };
        stages.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Operation::{AllGather, AllReduceSum, ReduceScatterSum};

    const SHARD: Dimension = Dimension { name: "shard", ranks: 4 };
    const DATA: Dimension = Dimension { name: "data", ranks: 3 };

    #[test]
    fn an_operation_over_a_grid_has_the_traffic_of_its_stages() {
        let zero = Instant::now();
        let between = |from, to| {
            let at = |ms| zero + Duration::from_millis(ms);
            Interval { started: at(from), ended: at(to) }
        };
        let found = |operation, outer| {
            let Interval { started, ended } = between(0, 9);
            let dimensions = Dimensions { inner: SHARD, outer: Some(DATA) };
            let timing = Timing { started, ended, bytes: 1200, outer: Some(outer) };
            let stages: Vec<_> = timing.stages(operation, dimensions).collect();
            let sent: Vec<_> = stages.iter().map(StageTiming::sent_bytes).collect();
            (stages, sent)
        };
        let shard = |operation, interval| StageTiming {
            dimension: SHARD,
            operation,
            bytes: 1200,
            interval,
        };
        let data =
            |operation, interval| StageTiming { dimension: DATA, operation, bytes: 300, interval };
        let reduce_scatter =
            [shard(ReduceScatterSum, between(0, 5)), data(ReduceScatterSum, between(5, 9))];
        assert_eq!(found(ReduceScatterSum, between(5, 9)), (reduce_scatter.into(), vec![900, 200]));
        let all_gather = [data(AllGather, between(0, 2)), shard(AllGather, between(2, 9))];
        assert_eq!(found(AllGather, between(0, 2)), (all_gather.into(), vec![200, 900]));
        let all_reduce = [
            shard(ReduceScatterSum, between(0, 2)),
            data(AllReduceSum, between(2, 6)),
            shard(AllGather, between(6, 9)),
        ];
        let sent = vec![900, 400, 900];
        assert_eq!(found(AllReduceSum, between(2, 6)), (all_reduce.into(), sent));
    }

    #[test]
    fn an_operation_of_a_group_is_one_stage() {
        let started = Instant::now();
        let ended = started + Duration::from_millis(3);
        let timing = Timing { started, ended, bytes: 1200, outer: None };
        let dimensions = Dimensions { inner: SHARD, outer: None };
        let stages: Vec<_> = timing.stages(AllReduceSum, dimensions).collect();
        let interval = Interval { started, ended };
        let operation = AllReduceSum;
        assert_eq!(stages, [StageTiming { dimension: SHARD, operation, bytes: 1200, interval }]);
        assert_eq!(stages[0].sent_bytes(), 1800);
    }
}
