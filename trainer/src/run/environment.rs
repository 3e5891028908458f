//! The machine and the software that a run runs on.

use record::Environment;
use record::machine::Versions;

/// The environment of this process.
pub(super) fn environment(
    mpi_library: Option<String>,
    matmul_kernel: Option<String>,
    cuda: Option<Versions>,
) -> Environment {
    let commit = env!("YARDSTICK_COMMIT"); // from build.rs, empty where it is unknown
    Environment {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: (!commit.is_empty()).then(|| commit.to_owned()),
        mpi_library,
        matmul_kernel,
        cuda,
        machine: launch::machine(),
    }
}
