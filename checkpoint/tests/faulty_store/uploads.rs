//! Uploads in parts that are not completed: the store keeps them until they are aborted.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use checkpoint::tier::Tier;
use checkpoint::{Failpoint, Failpoints, RemovalReason};

use crate::{Attempt, PART_BYTES};
use support::s3::{Fault, Kind, Operation, S3Server};

/// URL of the run that the child saves to.
const CHILD: &str = "YARDSTICK_TEST_CHILD";

/// Kills the process when one part of a shard is sent, and another one not.
struct KillMidShard;

impl Failpoints for KillMidShard {
    fn hit(&self, failpoint: Failpoint) {
        if failpoint == Failpoint::MidShard {
            let pid = rustix::process::getpid();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }
}

/// Runs this test again as a child, which saves and is killed.
fn kill_within_an_upload(server: &S3Server, test: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([test, "--exact"]).env(CHILD, server.url("run")).envs(server.settings());
    let output = child.output().unwrap();
    assert_eq!(output.status.signal(), Some(9), "{output:?}");
    assert_eq!(server.open_uploads(), 1, "it was killed within the upload");
}

fn is_child() -> bool {
    let Ok(url) = std::env::var(CHILD) else { return false };
    let mut attempt = Attempt::start(&url, Vec::new());
    attempt.state_bytes = 2 * PART_BYTES + PART_BYTES / 2; // half of it is more than a part
    attempt.save_with(10, &KillMidShard).unwrap();
    panic!("survived");
}

#[test]
fn the_next_attempt_aborts_the_upload_that_a_kill_has_left() {
    if is_child() {
        return;
    }
    let server = S3Server::start();
    let test = "uploads::the_next_attempt_aborts_the_upload_that_a_kill_has_left";
    kill_within_an_upload(&server, test);
    let next = Attempt::start(&server.url("run"), server.settings());
    assert_eq!(next.claim.attempt, 2);
    next.save(20).unwrap();
    assert_eq!(server.open_uploads(), 0);
    assert_eq!(next.resume().unwrap(), 20);
    assert_eq!(next.tier.count_open_uploads("").unwrap(), 0, "no journal is left");
}

/// Runs without a next attempt: of the newest one nothing else is removed.
#[test]
fn gc_aborts_the_upload_that_a_kill_has_left() {
    if is_child() {
        return;
    }
    let server = S3Server::start();
    let test = "uploads::gc_aborts_the_upload_that_a_kill_has_left";
    kill_within_an_upload(&server, test);
    let run = Attempt::start(&server.url("run"), server.settings());
    let planned = run.store.plan_retention(1, 2).unwrap();
    let reasons: Vec<_> = planned.iter().map(|removal| removal.reason).collect();
    assert_eq!(reasons, [RemovalReason::OpenUploads]);
    assert_eq!(server.open_uploads(), 1, "it was only planned");
    assert!(run.store.remove_planned(&planned[0]).unwrap());
    assert_eq!(server.open_uploads(), 0);
    assert_eq!(run.store.plan_retention(1, 2).unwrap(), []);
    assert_eq!(run.store.list().unwrap(), [], "there was nothing but the upload");
}

/// Resembles a promotion that is killed and begun again.
#[test]
fn a_second_upload_of_a_key_aborts_the_first() {
    let server = S3Server::start();
    let tier = Attempt::start(&server.url("run"), server.settings()).tier;
    let data = vec![7; 2 * PART_BYTES];
    let mut killed = tier.create("s1/d00/shard").unwrap();
    killed.write(&data).unwrap();
    std::mem::forget(killed);
    assert_eq!((server.open_uploads(), tier.count_open_uploads("s1").unwrap()), (1, 1));
    let mut again = tier.create("s1/d00/shard").unwrap();
    again.write(&data).unwrap();
    assert_eq!(server.open_uploads(), 1, "its own");
    again.finish().unwrap();
    assert_eq!((server.open_uploads(), tier.count_open_uploads("s1").unwrap()), (0, 0));
    assert!(tier.read("s1/d00/shard", 1 << 30).unwrap() == data);
}

/// The journal of an upload that could not be aborted is used later.
#[test]
fn an_upload_that_cannot_be_aborted_now_is_aborted_later() {
    let server = S3Server::start();
    let tier = Attempt::start(&server.url("run"), server.settings()).tier;
    let mut upload = tier.create("s1/d00/shard").unwrap();
    upload.write(&vec![7; 2 * PART_BYTES]).unwrap();
    let down = Kind::Answer { status: 503, code: "SlowDown" };
    server.begin(Fault::always(Operation::AbortUpload, down));
    drop(upload);
    tier.delete_folder("s1", "MANIFEST.json").unwrap_err();
    assert!(server.end_fault() > 0);
    assert_eq!(server.open_uploads(), 1);
    tier.delete_folder("s1", "MANIFEST.json").unwrap();
    assert_eq!((server.open_uploads(), tier.list("s1").unwrap()), (0, Vec::new()));
}

/// Roles that may not abort exist: their checkpoints can be removed all the same.
#[test]
fn a_folder_is_deleted_where_the_store_does_not_allow_to_abort() {
    let server = S3Server::start();
    let tier = Attempt::start(&server.url("run"), server.settings()).tier;
    let mut upload = tier.create("s1/d00/shard").unwrap();
    upload.write(&vec![7; 2 * PART_BYTES]).unwrap();
    std::mem::forget(upload);
    let denied = Kind::Answer { status: 403, code: "AccessDenied" };
    server.begin(Fault::always(Operation::AbortUpload, denied));
    tier.delete_folder("s1", "MANIFEST.json").unwrap();
    assert_eq!(server.end_fault(), 1);
    assert_eq!(tier.list("s1").unwrap(), []);
}
