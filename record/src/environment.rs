//! Machine and software of a run.

use crate::machine::Versions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The environment of rank 0; unknown values are `null`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Environment {
    /// Version of this program.
    pub version: String,
    /// Commit that it was built from, with `-dirty` if its sources differed from that.
    pub commit: Option<String>,
    /// The MPI library, as it names itself.
    pub mpi_library: Option<String>,
    /// Instruction set of our matmul in the precision of the run on rank 0, as chosen at run time;
    /// `null` where the engine has a matmul of its own. Each rank's is in `ranks`.
    pub matmul_kernel: Option<String>,
    /// Versions of the driver and of CUDA's libraries that the run uses on rank 0; `null` without
    /// a GPU.
    pub cuda: Option<Versions>,
    /// Algorithm and protocol of NCCL if they are set, as in `NCCL_ALGO=Ring NCCL_PROTO=Simple`;
    /// `null` where NCCL chooses both, and without it.
    #[serde(default)]
    pub nccl_settings: Option<String>,
    /// The machine under rank 0.
    #[serde(flatten)]
    pub machine: crate::machine::Machine,
}
