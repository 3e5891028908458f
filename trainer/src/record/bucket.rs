//! The bandwidth of each bucket, as NVIDIA's nccl-tests define it (doc/PERFORMANCE.md there).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use collectives::Operation;

use crate::timing::communication::BucketTotals;

/// One bucket on one rank, over the steps of the attempt but the first two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BucketRecord {
    /// As in `all_reduce`.
    pub operation: String,
    /// Size of the buffer: of all parts together where each rank has one.
    pub bytes: u64,
    /// Time in flight on average, also while other buffers were.
    pub mean_ms: f64,
    /// The shortest time.
    pub least_ms: f64,
    /// The part of the mean in which the rank computed meanwhile.
    pub hidden_ms: f64,
    /// The part of it for which the rank waited.
    pub exposed_ms: f64,
    /// `bytes` over the mean.
    pub algbw_bytes_per_second: f64,
    /// The same times what the operation needs of the slowest link: comparable between operations
    /// and numbers of ranks.
    pub busbw_bytes_per_second: f64,
}

impl BucketRecord {
    /// What one bucket adds up to in a world of so many ranks.
    pub(crate) fn of(operation: Operation, world: usize, totals: &BucketTotals) -> Self {
        let mean_ms = totals.total_ns as f64 / totals.count as f64 / 1e6;
        let hidden_ms = totals.hidden_ns as f64 / totals.count as f64 / 1e6;
        let algbw = totals.bytes as f64 / (mean_ms / 1e3).max(1e-9);
        Self {
            operation: name(operation).to_owned(),
            bytes: totals.bytes,
            mean_ms,
            least_ms: totals.least_ns as f64 / 1e6,
            hidden_ms,
            exposed_ms: mean_ms - hidden_ms,
            algbw_bytes_per_second: algbw,
            busbw_bytes_per_second: algbw * bus_factor(operation, world),
        }
    }
}

fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::AllReduceSum => "all_reduce",
        Operation::ReduceScatterSum => "reduce_scatter",
        Operation::AllGather => "all_gather",
        _ => "other",
    }
}

/// What each rank has to send over its link, per byte of the buffer.
pub(crate) fn bus_factor(operation: Operation, world: usize) -> f64 {
    let others = (world - 1) as f64 / world as f64;
    match operation {
        Operation::AllReduceSum => 2.0 * others,
        Operation::ReduceScatterSum | Operation::AllGather => others,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        let totals = BucketTotals {
            bytes: 8_000_000,
            count: 2,
            total_ns: 4_000_000,
            least_ns: 1_500_000,
            hidden_ns: 3_000_000,
        };
        let of = |operation| BucketRecord::of(operation, 4, &totals);
        let reduced = of(Operation::AllReduceSum);
        assert_eq!((reduced.mean_ms, reduced.hidden_ms, reduced.exposed_ms), (2.0, 1.5, 0.5));
        assert_eq!(reduced.algbw_bytes_per_second, 4e9);
        assert_eq!(reduced.busbw_bytes_per_second, 6e9);
        assert_eq!(of(Operation::AllGather).busbw_bytes_per_second, 3e9);
        assert_eq!(of(Operation::ReduceScatterSum).busbw_bytes_per_second, 3e9);
    }
}
