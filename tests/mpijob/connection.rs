//! Connections of the launcher to workers that end although the workers are there.

use std::time::Duration;

use crate::job::Job;
use crate::operator::worker_name;
use crate::process;
use crate::success::{JOB, undisturbed_fingerprint};
use crate::training::{WORKER, launch};

/// As where a launcher's network fails for a moment: ranks do not notice, and nothing happens.
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
    job.expect_exit(0, JOB);
    for worker in [0, 1] {
        job.expect_sentence(&["connected to", &worker_name(worker), "again"]);
    }
    let record = job.record();
    assert_eq!(record["attempts"].as_array().unwrap().len(), 1, "nobody stopped it");
    assert_eq!(record["fingerprint"], *undisturbed_fingerprint());
}

/// As where the container runtime or a debugger stops it, or its node has no processor for it. It
/// has heard no host then, which says nothing about the hosts.
#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_launcher_that_was_suspended_takes_no_host_for_lost() {
    let mut job = Job::new(2);
    job.start_workers(&WORKER);
    let long = launch(&[], &["--set", "schedule.steps=100000"]).into_iter();
    let long = long.map(|word| if word == "40" { "100000" } else { word });
    job.start_launcher(&long.collect::<Vec<_>>());
    job.wait_for_checkpoint();
    let connections = job.launcher().running("ssh", "'agent'");
    let launcher = job.launcher().running("yardstick", "launch");
    let all = || launcher.iter().chain(&connections);
    all().for_each(|it| process::signal("STOP", it.id));
    std::thread::sleep(Duration::from_secs(8));
    for it in all() {
        process::signal("CONT", it.id);
        std::thread::sleep(Duration::from_millis(100)); // ssh goes on later
    }
    std::thread::sleep(Duration::from_secs(1));
    job.launcher().terminate();
    job.expect_exit(75, Duration::from_secs(40));
    assert!(!job.output().contains("again"), "{}", job.output());
    assert_eq!(job.record()["status"], "stopped");
}

/// As by `kubectl delete mpijob` right after `kubectl apply`.
#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_launcher_that_is_to_go_while_ranks_start_stops_in_order() {
    let mut job = Job::new(2);
    job.start_workers(&WORKER);
    job.start_launcher(&launch(&[], &[]));
    job.wait_for_agents();
    job.launcher().terminate();
    job.expect_exit(75, Duration::from_secs(40));
    job.expect_no_rank();
    job.start_launcher(&launch(&[], &[]));
    job.expect_exit(0, JOB);
    assert_eq!(job.record()["fingerprint"], *undisturbed_fingerprint());
}
