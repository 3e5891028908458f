//! Profile of one step: the time and the work of each op, with the rates that bound it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::phase::{Phase, PhaseTimes};

/// Profile of one step on rank 0, by `--profile-step`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProfileRecord {
    /// Number of the step.
    pub step: u64,
    /// Nanoseconds in each phase of the step; `null` if the run ended before they were known.
    pub phases_ns: Option<PhaseTimes>,
    /// Ops that were called, those of the model first.
    pub ops: Vec<OpRecord>,
    /// Best matmul rate measured until the profile ended, FLOP/s; `null` if it was not measured.
    pub matmul_flops_per_second: Option<f64>,
    /// Rate of memory: STREAM's triad on a CPU, copies on a GPU; `null` if too little memory was
    /// free to measure it.
    pub memory_bytes_per_second: Option<f64>,
    /// Error by which times of ops are missing; `null` if none are.
    pub incomplete: Option<String>,
}

/// All calls of one op in a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OpRecord {
    /// Name, as in `mlp_up dW`.
    pub name: String,
    /// Phase in which it is called.
    pub phase: Phase,
    /// Weight of a matrix product; `null` for other ops.
    pub weight: Option<WeightShape>,
    /// Number of calls.
    pub calls: u64,
    /// Time of all calls.
    pub ms: f64,
    /// Multiplications and additions of matrix products.
    pub flops: f64,
    /// Bytes of all operands, each counted once a call.
    pub bytes: f64,
}

/// Shape of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WeightShape {
    /// Width of the input.
    pub inputs: usize,
    /// Width of the output.
    pub outputs: usize,
}
