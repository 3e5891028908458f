//! Objects that mpi-operator makes of an MPIJob: names of pods, hostfile, ssh secret and variables.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::command::run;
use crate::pod::Variable;
use support::text;

/// The launcher's name.
pub(crate) const LAUNCHER: &str = "train-launcher";

/// A worker's name.
pub(crate) fn worker_name(worker: usize) -> String {
    format!("train-worker-{worker}")
}

/// Returns the host name of a pod.
pub(crate) fn host(pod: &str) -> String {
    format!("{pod}.train.default.svc")
}

/// The launcher's hostfile.
pub(crate) fn hostfile(workers: usize) -> String {
    (0..workers).map(|worker| format!("{} slots=1\n", host(&worker_name(worker)))).collect()
}

/// Returns the variables that it adds to the environment of workers.
pub(crate) fn worker_variables() -> Vec<Variable> {
    vec![Variable::new("K_MPI_JOB_ROLE", "worker")]
}

/// Returns the variables that it adds to the environment of the launcher.
pub(crate) fn launcher_variables() -> Vec<Variable> {
    vec![
        Variable::new("K_MPI_JOB_ROLE", "launcher"),
        Variable::new("OMPI_MCA_orte_keep_fqdn_hostnames", "true"),
        Variable::new("OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile"),
        Variable::new("OMPI_MCA_plm_rsh_args", "-o ConnectionAttempts=10"),
        Variable::new("OMPI_MCA_orte_set_default_slots", "1"),
        Variable::new("NVIDIA_VISIBLE_DEVICES", ""),
        Variable::new("NVIDIA_DRIVER_CAPABILITIES", ""),
    ]
}

/// Writes the ssh secret as it is mounted: readable by all, and owned by root.
pub(crate) fn write_secret(folder: &Path) {
    let key = folder.join("id_rsa");
    let no_text = ["-N", "", "-C", ""];
    run("ssh-keygen", &[&["-qt", "ecdsa", "-b", "521", "-f", &text(&key)], &no_text[..]].concat());
    fs::copy(folder.join("id_rsa.pub"), folder.join("authorized_keys")).unwrap();
    fs::set_permissions(key, fs::Permissions::from_mode(0o644)).unwrap();
}
