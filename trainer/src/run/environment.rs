//! Environment of a run: machine and software.

use record::machine::Versions;
use record::{Environment, Program};

/// Returns the environment of this process.
pub(super) fn environment(
    mpi_library: Option<String>,
    matmul_kernel: Option<String>,
    cuda: Option<Versions>,
) -> Environment {
    let Program { version, commit, .. } = Program::current();
    Environment {
        version: (*version).to_owned(),
        commit: commit.map(str::to_owned),
        mpi_library,
        matmul_kernel,
        cuda,
        machine: launch::machine(),
    }
}
