//! Launcher connections that end although the workers are there.

use crate::job::Job;
use crate::operator::worker_name;
use crate::process;
use crate::success::undisturbed_fingerprint;
use crate::training::{WORKER, launch};

/// Ends connections as a short failure of the launcher's network does: ranks do not notice.
#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_connection_that_ends_is_made_again() {
    let mut job = Job::new(2);
    job.start_workers(&WORKER);
    job.start_launcher(&launch(&[], &[]));
    job.wait_for_checkpoint();
    let connections = job.launcher().running("ssh", "'agent'");
    assert_eq!(connections.len(), 2, "{connections:?}");
    connections.iter().for_each(|connection| process::signal("KILL", connection.id));
    job.expect_exit(0);
    for worker in [0, 1] {
        job.expect_sentence(&["connected to", &worker_name(worker), "again"]);
    }
    let record = job.record();
    assert_eq!(record["attempts"].as_array().unwrap().len(), 1, "nobody stopped it");
    assert_eq!(record["fingerprint"], *undisturbed_fingerprint());
}

/// Deletes the job as `kubectl delete mpijob` does right after `kubectl apply`.
#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_launcher_that_is_to_go_while_ranks_start_stops_in_order() {
    let mut job = Job::new(2);
    job.start_workers(&WORKER);
    job.start_launcher(&launch(&[], &[]));
    job.wait_for_mpirun();
    job.launcher().terminate();
    job.expect_exit(75);
    job.expect_no_rank();
    job.start_launcher(&launch(&[], &[]));
    job.expect_exit(0);
    assert_eq!(job.record()["fingerprint"], *undisturbed_fingerprint());
}
