//! The machine and the software that a run ran on.

use models::workload::Compute;
use serde::{Deserialize, Serialize};

/// What rank 0 can say of its surroundings; `null` where it cannot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Version of this program.
    pub version: String,
    /// The MPI library, as it names itself.
    pub mpi_library: Option<String>,
    /// Instruction set of the matmul in the precision of the run, as chosen at run time.
    pub matmul_kernel: String,
    /// The machine under rank 0.
    #[serde(flatten)]
    pub machine: launch::Environment,
}

impl Environment {
    /// Looks around.
    pub fn read(mpi_library: Option<String>, compute: Compute) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let matmul_kernel = models::fused::matmul_kernel(compute).0.to_owned();
        Self { version, mpi_library, matmul_kernel, machine: launch::Environment::read() }
    }
}
