//! Checkpoints on an object store, end to end: an S3 server in this process, ranks in others.

use std::fs;

use serde_json::json;

use super::tiers::uninterrupted;
use support::s3::{ClosedPort, Fault, Kind, Operation, S3Server};
use support::{Finished, Folder, finish, mpirun, yardstick};

/// Trains on two ranks with these tiers and other settings of checkpoints, saved every four steps.
fn train(server: &S3Server, folder: &Folder, steps: &str, tiers: &[String]) -> Finished {
    let out = folder.text();
    let mut command = mpirun(2, &["train", "--out", &out, "--steps", steps, "--threads", "1"]);
    command.envs(server.environment()).args(["--checkpoint-every", "4steps"]);
    command.args(["--set", "checkpoint.deadline=20s"]);
    for tier in tiers {
        command.args(["--set", &format!("checkpoint.{tier}")]);
    }
    finish(command)
}

fn object(server: &S3Server) -> String {
    format!("object.path={}", server.url("runs"))
}

fn no_shared() -> String {
    "shared.path=none".to_owned()
}

/// Saves step 8 on a disk and an object store, and loses the disk. Returns the run's tiers.
fn lose_the_node(server: &S3Server, folder: &Folder) -> [String; 3] {
    let nvme = folder.sibling("nvme");
    let tiers = [format!("nvme.path={}", nvme.display()), no_shared(), object(server)];
    train(server, folder, "8", &tiers).expect(0);
    fs::remove_dir_all(nvme).unwrap();
    tiers
}

#[test]
fn a_node_that_is_lost_comes_back_from_the_object_store() {
    let server = S3Server::start();
    let folder = Folder::new();
    let tiers = lose_the_node(&server, &folder);
    train(&server, &folder, "12", &tiers).expect(0);
    let resumed = &folder.record()["attempts"][1];
    assert_eq!(resumed["resumed_after_step"], 8);
    let sources = &resumed["recovery"]["sources"];
    assert_eq!((&sources[1]["tier"], &sources[0]["bytes"]), (&json!("object"), &json!(0)));
    assert_eq!(folder.result(), *uninterrupted());
}

#[test]
fn an_object_store_may_be_the_only_tier() {
    let server = S3Server::start();
    let folder = Folder::new();
    let tiers = [no_shared(), object(&server)];
    train(&server, &folder, "8", &tiers).expect(0);
    train(&server, &folder, "12", &tiers).expect(0);
    assert_eq!(folder.record()["attempts"][1]["resumed_after_step"], 8);
    assert_eq!(folder.record()["checkpoints"]["tier"], "object");
    assert_eq!(folder.result(), *uninterrupted());
    assert!(!folder.path().join("checkpoints").exists());
}

/// Credentials that may only read are enough to get the state back.
#[test]
fn a_node_that_is_lost_comes_back_from_an_object_store_that_refuses_writes() {
    let server = S3Server::start();
    let folder = Folder::new();
    let tiers = lose_the_node(&server, &folder);
    server.begin(Fault::always(
        Operation::AnyPut,
        Kind::Answer { status: 403, code: "AccessDenied" },
    ));
    let warned = train(&server, &folder, "12", &tiers).expect(0);
    warned.expect_stderr(&["tier object is only read: ", "AccessDenied"]);
    assert_eq!(folder.record()["attempts"][1]["resumed_after_step"], 8);
    assert_eq!(folder.result(), *uninterrupted());
}

#[test]
fn a_server_that_ignores_conditions_is_not_used() {
    let server = S3Server::start_without_conditions();
    let folder = Folder::new();
    let warned = train(&server, &folder, "4", &[object(&server)]).expect(0);
    warned.expect_stderr(&["tier object is not used: ", "ignores If-None-Match"]);
    let folder = Folder::new();
    let refused = train(&server, &folder, "4", &[no_shared(), object(&server)]).expect(6);
    refused.expect_stderr(&["no tier of checkpoints can be used: object", "If-None-Match"]);
}

/// Reports the wait before the run gives the store up.
#[test]
fn a_run_says_which_store_it_waits_for_and_why() {
    let closed = ClosedPort::open();
    let folder = Folder::new();
    let mut command = yardstick(&["train", "--steps", "1", "--out", &folder.text()]);
    command.env("AWS_ENDPOINT_URL", closed.url());
    command.envs([("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")]);
    for setting in ["object.path=s3://bucket/runs", "deadline=12s"] {
        command.args(["--set", &format!("checkpoint.{setting}")]);
    }
    let said = finish(command).expect(0).stderr;
    let waits = "note: s3://bucket/runs/";
    let line =
        said.lines().find(|line| line.starts_with(waits)).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains(": no answer for "), "{line}");
    assert!(line.contains(" s; the last try: Connection refused"), "{line}");
    assert_eq!(said.matches(waits).count(), 1, "{said}");
    let order = [line, "tier object is not used: "].map(|text| said.find(text).unwrap());
    assert!(order[0] < order[1], "{said}");
}

#[test]
fn a_server_that_refuses_a_commit_fails_no_run() {
    let server = S3Server::start();
    let folder = Folder::new();
    server.refuse_writes_to("MANIFEST.json");
    // The run waits for it at its end.
    let settings = [object(&server), "deadline=5s".to_owned()];
    let warned = train(&server, &folder, "12", &settings).expect(0);
    warned.expect_stderr(&[
        "tier object has no newer checkpoint: the next attempt goes on with s0000000",
    ]);
    let promoted = &folder.record()["checkpoints"]["promoted"][0];
    assert_eq!((&promoted["count"], &promoted["last_step"]), (&json!(0), &json!(null)));
    assert_eq!(folder.result(), *uninterrupted());
}
