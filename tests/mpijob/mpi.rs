//! MPI library of the image: this machine's, as packages install it, or the one that the tests are
//! run against (`scripts/test-mpi.sh`), in a folder of its own.

use std::path::PathBuf;

use crate::pod::{Variable, Volume};

const FOLDER: &str = "/opt/openmpi";

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Returns the volume of the library, where it has its own folder.
pub(crate) fn volumes() -> Vec<Volume> {
    let volume = |source| Volume { source, target: FOLDER };
    own_folder().map(volume).into_iter().collect()
}

/// Returns the variables that the image sets for every process: the paths of programs and of the
/// library.
pub(crate) fn variables() -> Vec<Variable> {
    if own_folder().is_none() {
        return vec![Variable::new("PATH", PATH)];
    }
    vec![
        Variable::new("PATH", format!("{FOLDER}/bin:{PATH}")),
        Variable::new("LD_LIBRARY_PATH", format!("{FOLDER}/lib")),
    ]
}

/// Returns whether it follows the variables that mpi-operator sets for Open MPI 4:
/// `OMPI_MCA_orte_*`.
pub(crate) fn reads_operator_variables() -> bool {
    own_folder().is_none()
}

/// The folder whose `bin` has the `mpirun` that is not this machine's.
fn own_folder() -> Option<PathBuf> {
    let mpirun = PathBuf::from(std::env::var_os("YARDSTICK_MPIRUN")?);
    Some(mpirun.parent()?.parent()?.to_owned())
}
