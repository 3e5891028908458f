//! The bandwidth of each bucket, as NVIDIA's nccl-tests define it (doc/PERFORMANCE.md there).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
