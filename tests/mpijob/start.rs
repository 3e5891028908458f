//! Workers that come late, never, or as something else than they seem.

use std::fs;
use std::os::unix::fs::chown;
use std::time::Duration;

use crate::image::USER;
use crate::job::Job;
use crate::operator::{host, worker_name};
use crate::success::{JOB, hosts, undisturbed_fingerprint};
use crate::training::{WORKER, launch};

/// How late workers are.
const LATE: Duration = Duration::from_secs(5);

/// Of one worker the name is known already, of the other it is not.
#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn late_workers_are_waited_for() {
    let mut job = Job::new(2);
    job.start_worker(0, &["sh", "-c", "sleep 5; exec yardstick worker"]);
    job.start_launcher(&launch(&[], &[]));
    std::thread::sleep(LATE);
    job.start_worker(1, &WORKER);
    job.expect_exit(0, JOB);
    assert_eq!(job.record()["fingerprint"], *undisturbed_fingerprint());
}

#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_worker_that_never_comes_is_named() {
    let mut job = Job::new(2);
    job.start_worker(0, &WORKER);
    job.start_launcher(&launch(&["--wait", "6s"], &[]));
    job.expect_exit(3, Duration::from_secs(15));
    job.expect_sentence(&["expected 2 hosts, found 1 after 6 s", &host(&worker_name(1))]);
    assert!(!job.results().exists(), "nothing was run");
}

/// A container that restarts keeps its temporary folder, and its process ids repeat.
#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn folders_of_a_killed_launcher_do_no_harm() {
    let mut job = Job::new(2);
    for process in 1..200 {
        for name in ["ompi.train-worker-1.1000/pid", "prted.train-worker-1"] {
            let folder = job.temporary_folder(1).join(format!("{name}.{process}.1000"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("contact.txt"), "1.0;tcp://10.78.0.99:1024\n").unwrap();
            chown(&folder, Some(USER), Some(USER)).unwrap();
            chown(folder.parent().unwrap(), Some(USER), Some(USER)).unwrap();
        }
    }
    job.start_workers(&WORKER);
    job.start_launcher(&launch(&[], &[]));
    job.expect_exit(0, JOB);
    assert_eq!(hosts(&job.record()).len(), 2);
}

#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn two_names_of_one_worker_are_refused() {
    let mut job = Job::new(2);
    job.start_worker(0, &WORKER);
    job.give_second_name(0, 1);
    job.start_launcher(&launch(&[], &[]));
    job.expect_exit(3, Duration::from_secs(15));
    job.expect_sentence(&[
        "expected different hosts",
        &host(&worker_name(0)),
        &host(&worker_name(1)),
    ]);
    assert!(!job.results().exists(), "nothing was run");
}

#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn another_world_than_the_host_file_s_is_refused() {
    let mut job = Job::new(2);
    job.start_workers(&WORKER);
    for (flags, sentence) in [
        (["--nodes", "3", "--ranks-per-node", "1"], "expected 3 hosts, found 2"),
        (["--nodes", "2", "--ranks-per-node", "2"], "expected 2 ranks per node"),
    ] {
        let train = ["--", "train", "--out", "/results/run"];
        job.start_launcher(&[&["yardstick", "launch"], &flags[..], &train].concat());
        job.expect_exit(3, Duration::from_secs(10));
        job.expect_sentence(&[sentence]);
    }
    assert!(!job.results().exists(), "nothing was run");
}
