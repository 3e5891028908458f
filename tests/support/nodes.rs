//! Nodes of one machine: ranks whose hosts have different names, each with a disk of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{launch, yardstick};

/// Renames the host, in a namespace of its own, and names the disk of the node. Only root can do
/// that in its own user namespace; in others ranks cannot share memory.
const SCRIPT: &str = r#"
[ "$(id -u)" = 0 ] && user= || user=--map-root-user
exec unshare $user --uts sh -c '
hostname "node-$1"; export LOCAL_CHECKPOINT_DIR="$2"; shift 2; exec "$@"' sh "$@"
"#;

/// Adds the words in front of a program that runs on a node. Open MPI must not read the memory of
/// other processes, which may be in other user namespaces.
pub fn add_node(command: &mut Command, node: usize, disk: &Path) {
    command.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
    command.args(["sh", "-c", SCRIPT, "sh"]).arg(node.to_string()).arg(disk);
}

/// The binary under test, with a rank on each of these nodes.
pub fn mpirun_on_nodes(
    node_of_rank: &[usize],
    disk: impl Fn(usize) -> PathBuf,
    arguments: &[&str],
) -> Command {
    let program = yardstick(arguments);
    let mut command = launch(1, "env");
    for (rank, &node) in node_of_rank.iter().enumerate() {
        if rank > 0 {
            command.args([":", "-np", "1", "env"]);
        }
        add_node(&mut command, node, &disk(node));
        command.arg(program.get_program()).args(program.get_args());
    }
    command
}
