//! Environment of a run: machine and software.

use record::machine::Versions;
use record::{Environment, Program};

/// Returns the environment of this process.
pub(super) fn environment(
    mpi_library: Option<String>,
    matmul_kernel: Option<String>,
    cuda: Option<Versions>,
) -> Environment {
    let has_nccl = cuda.as_ref().is_some_and(|versions| versions.nccl.is_some());
    let nccl_settings = has_nccl.then(nccl_settings).flatten();
    let Program { version, commit, .. } = Program::current();
    Environment {
        version: (*version).to_owned(),
        commit: commit.map(str::to_owned),
        mpi_library,
        matmul_kernel,
        cuda,
        nccl_settings,
        machine: launch::machine(),
    }
}

/// Returns the variables that fix algorithm and protocol of NCCL, and with them its order of sums.
fn nccl_settings() -> Option<String> {
    let set = |name: &str| std::env::var(name).ok().map(|value| format!("{name}={value}"));
    let set: Vec<String> = ["NCCL_ALGO", "NCCL_PROTO"].into_iter().filter_map(set).collect();
    (!set.is_empty()).then(|| set.join(" "))
}
