//! The machine and the software that a run ran on.

use serde::{Deserialize, Serialize};

/// What rank 0 can say of its surroundings; `null` where it cannot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Version of this program.
    pub version: String,
    /// The MPI library, as it names itself.
    pub mpi_library: Option<String>,
    /// Instruction set of our matmul in the precision of the run on rank 0, as chosen at run time;
    /// `null` where the engine has a matmul of its own. Each rank's is in `ranks`.
    pub matmul_kernel: Option<String>,
    /// The machine under rank 0.
    #[serde(flatten)]
    pub machine: launch::Environment,
}

impl Environment {
    /// Looks around.
    pub fn read(mpi_library: Option<String>, matmul_kernel: Option<String>) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { version, mpi_library, matmul_kernel, machine: launch::Environment::read() }
    }
}
