//! Training on emulated nodes, of which two cannot reach each other any more.

use std::cell::Cell;
use std::fs::{self, File};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::nodes::Nodes;
use support::{Folder, Running};

/// Trains on so many nodes until the link between the last two is down; returns the reason in the
/// record and what was printed.
fn lose_a_link(count: usize) -> (Value, String) {
    let nodes = Nodes::new(count);
    let folder = Folder::new();
    let out = folder.text();
    let settings = ["--set", "collectives.deadline=3s", "--set", "telemetry.matmul_probe=0s"];
    let train = ["train", "--out", &out, "--threads", "1"];
    let mut command = nodes.mpirun(&[&train[..], &settings].concat());
    let log = File::create(folder.sibling("log")).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let steps = folder.path().join("steps/r000000.jsonl");
    let trains = || fs::metadata(&steps).is_ok_and(|steps| steps.len() > 0);
    let is_cut = Cell::new(false);
    let record = folder.path().join("record.json");
    let has_failed = || fs::read_to_string(&record).is_ok_and(|text| text.contains("\"failed\""));
    let mut run = Running::spawn(command);
    run.poll_until_exit(|launcher| {
        if trains() && !is_cut.replace(true) {
            nodes.cut(count - 2, count - 1);
        }
        // mpirun itself waits for a node that it cannot reach.
        if has_failed() {
            let launcher = Pid::from_raw(launcher.cast_signed()).unwrap();
            let _ = kill_process_group(launcher, Signal::KILL); // it may have ended just now
        }
    });
    (folder.record()["reason"].clone(), fs::read_to_string(folder.sibling("log")).unwrap())
}

/// Loses the only link of two ranks.
#[test]
#[ignore = "adds network namespaces: needs root, and ip and tc of iproute2"]
fn a_link_that_is_down_between_two_ranks_names_the_other_one() {
    let (reason, said) = lose_a_link(2);
    assert_eq!((&reason["rank"], &reason["host"]), (&Value::from(1), &Value::from("node-1")));
    let text = reason["text"].as_str().unwrap();
    assert!(text.contains("all ranks had arrived, 0 (node-0), 1 (node-1): a link"), "{said}");
}

#[test]
#[ignore = "adds network namespaces: needs root, and ip and tc of iproute2"]
fn a_link_that_is_down_blames_no_rank_where_all_are_there() {
    let (reason, said) = lose_a_link(4);
    assert_eq!(reason["rank"], Value::Null, "{said}");
    let text = reason["text"].as_str().unwrap();
    assert!(text.contains("all ranks had arrived, "), "{said}");
}
