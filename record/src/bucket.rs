//! The bandwidth of buckets, as NVIDIA's nccl-tests define it (doc/PERFORMANCE.md there).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Operations on buckets of one size on one rank, over all steps of the attempt except the first
/// two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BucketRecord {
    /// Collective operation, as in `all_reduce`.
    pub operation: String,
    /// Number of operations.
    #[serde(default)]
    pub operations: u64,
    /// Buffer size; the sum of all parts if each rank has one.
    pub bytes: u64,
    /// Mean time in flight, including time when other buffers were in flight too.
    pub mean_ms: f64,
    /// Shortest time in flight.
    pub least_ms: f64,
    /// Part of the mean in which the rank computed: it waited neither for this bucket nor for
    /// another one.
    pub hidden_ms: f64,
    /// Mean time in which the rank waited for the bucket.
    pub exposed_ms: f64,
    /// Algorithm bandwidth: `bytes` over the mean.
    pub algbw_bytes_per_second: f64,
    /// Bus bandwidth: the algorithm bandwidth times the operation's traffic on the slowest link per
    /// byte of the buffer. Comparable between operations and numbers of ranks.
    pub busbw_bytes_per_second: f64,
}
