//! Traffic between ranks by the dimensions of `[parallel]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Traffic of one operation over one dimension in a step: the mean of all steps of the attempt
/// except the first two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DimensionTraffic {
    /// Dimension, as in `shard`; `world` if there is only one.
    pub dimension: String,
    /// Number of ranks in each of its groups.
    pub ranks: usize,
    /// Collective operation, as in `reduce_scatter`.
    pub operation: String,
    /// Number of operations.
    pub operations_per_step: f64,
    /// Bytes that each rank sends, as nccl-tests count them for the bus bandwidth.
    pub bytes_per_step: f64,
    /// Time in which at least one of the operations was in flight.
    pub total_ms: f64,
    /// Part of that time in which the rank computed: it waited neither for one of these operations
    /// nor for another one.
    pub hidden_ms: f64,
    /// Time in which the rank computed nothing because it waited for one of the operations. No
    /// instant is in that of two operations: the sum is the time of waiting for data.
    pub exposed_ms: f64,
    /// Bus bandwidth: `bytes_per_step` over `total_ms`.
    pub busbw_bytes_per_second: f64,
}

impl DimensionTraffic {
    /// Computes the means over all ranks, whose operations are the same.
    pub fn mean(of_ranks: &[Vec<Self>]) -> Vec<Self> {
        let Some(first) = of_ranks.first() else { return Vec::new() };
        let mean = |(row, traffic): (usize, &Self)| {
            let of = |figure: fn(&Self) -> f64| {
                let figures = of_ranks.iter().filter_map(|rows| rows.get(row)).map(figure);
                figures.sum::<f64>() / of_ranks.len() as f64
            };
            let mean = Self {
                dimension: traffic.dimension.clone(),
                ranks: traffic.ranks,
                operation: traffic.operation.clone(),
                operations_per_step: of(|traffic| traffic.operations_per_step),
                bytes_per_step: of(|traffic| traffic.bytes_per_step),
                total_ms: of(|traffic| traffic.total_ms),
                hidden_ms: of(|traffic| traffic.hidden_ms),
                exposed_ms: of(|traffic| traffic.exposed_ms),
                busbw_bytes_per_second: 0.0,
            };
            mean.with_bandwidth()
        };
        first.iter().enumerate().map(mean).collect()
    }

    /// Sets the bandwidth of these bytes and times.
    #[must_use]
    pub fn with_bandwidth(self) -> Self {
        let seconds = (self.total_ms / 1e3).max(1e-9);
        Self { busbw_bytes_per_second: self.bytes_per_step / seconds, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_the_mean_of_their_times_and_the_bandwidth_of_that() {
        let rank = |total_ms: f64, hidden_ms: f64| {
            let traffic = DimensionTraffic {
                dimension: "shard".to_owned(),
                ranks: 4,
                operation: "all_gather".to_owned(),
                operations_per_step: 3.0,
                bytes_per_step: 6e6,
                total_ms,
                hidden_ms,
                exposed_ms: total_ms - hidden_ms,
                busbw_bytes_per_second: 0.0,
            };
            vec![traffic.with_bandwidth()]
        };
        let found = DimensionTraffic::mean(&[rank(2.0, 2.0), rank(6.0, 1.0)]);
        assert_eq!(found, rank(4.0, 1.5));
        assert_eq!(found[0].busbw_bytes_per_second, 1.5e9);
        assert_eq!(DimensionTraffic::mean(&[]), []);
    }
}
