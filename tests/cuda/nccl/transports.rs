//! Transports in the record: from NCCL's log, as the emulated NCCL writes it.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::{arguments, two_ranks};
use support::{Finished, Folder, finish, run};

/// Start of the names of logs in the folder for temporary files.
const LOG: &str = "yardstick-nccl-";

const WITHOUT_GDR: &str = "GPUDirect RDMA is not on in both directions";
const UNKNOWN: &str = "transports are not known";

/// Two steps on two ranks that have a folder for temporary files of their own.
fn job(folder: &Folder, flags: &[&str], variables: &[(&str, &str)]) -> Command {
    let temporary = folder.sibling("tmp");
    std::fs::create_dir_all(&temporary).unwrap();
    let mut command = two_ranks(&folder.text(), &[&["--steps", "2"], flags].concat());
    command.env("TMPDIR", &temporary).envs(variables.iter().copied());
    command
}

#[track_caller]
fn train(folder: &Folder, variables: &[(&str, &str)]) -> Finished {
    finish(job(folder, &[], variables)).expect(0)
}

/// The logs that are left in the folder for temporary files.
fn logs_left(folder: &Folder) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.sibling("tmp")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(LOG)).collect()
}

fn anomaly(folder: &Folder, start: &str) -> Option<String> {
    let record = folder.record();
    let anomalies = record["anomalies"].as_array().unwrap();
    let texts = anomalies.iter().map(|anomaly| anomaly["text"].as_str().unwrap());
    texts.filter(|text| text.starts_with(start)).map(str::to_owned).next()
}

fn network(from: usize, to: usize, send: bool, receive: bool) -> Value {
    let end = |gdr| json!({"nics": ["mlx5_0:1"], "gdr": gdr});
    json!({
        "from": from,
        "to": to,
        "name": "NET/IB",
        "channels": 2,
        "send": end(send),
        "receive": end(receive),
    })
}

#[test]
fn ranks_of_a_machine_are_recorded_with_their_transport() {
    let folder = Folder::new();
    let stderr = train(&folder, &[]).stderr;
    let local = |from, to| {
        json!({
            "from": from,
            "to": to,
            "name": "SHM/direct",
            "channels": 2,
            "send": null,
            "receive": null,
        })
    };
    assert_eq!(folder.record()["transports"], json!([local(0, 1), local(1, 0)]));
    assert!(!stderr.contains("RDMA") && !stderr.contains("NCCL"), "{stderr}");
    assert_eq!(logs_left(&folder), [""; 0].map(PathBuf::from), "removed");
    let report = run(&["report", &folder.text()]).expect(0).stdout;
    assert!(report.contains("transports") && report.contains("SHM/direct in 2 pairs"), "{report}");
}

#[test]
fn gdr_in_both_directions_is_no_reason_for_a_warning() {
    let folder = Folder::new();
    train(&folder, &[("EMULATED_CUDA_NCCL_NET", "IB")]);
    let full = json!([network(0, 1, true, true), network(1, 0, true, true)]);
    assert_eq!(folder.record()["transports"], full);
    assert_eq!(anomaly(&folder, WITHOUT_GDR), None);
}

#[test]
fn one_direction_without_gdr_is_warned_about_with_rank_and_host() {
    let folder = Folder::new();
    let stderr = train(&folder, &[("EMULATED_CUDA_NCCL_NET", "IB,1:receive")]).stderr;
    let half = json!([network(0, 1, true, false), network(1, 0, true, true)]);
    let record = folder.record();
    assert_eq!(record["transports"], half);
    let text = anomaly(&folder, WITHOUT_GDR).unwrap();
    let host = record["ranks"][1]["host"].as_str().unwrap();
    let named = format!(" over NET/IB: {host} receives without it (rank 1)");
    assert!(text.ends_with(&named), "{text}");
    assert_eq!(stderr.matches(&text).count(), 1, "{stderr}");
    let report = run(&["report", &folder.text()]).expect(0).stdout;
    assert!(report.contains("1 of them without GPUDirect RDMA"), "{report}");
}

#[test]
fn the_users_file_is_read_and_stays() {
    let folder = Folder::new();
    let pattern = folder.sibling("log.%h.%p");
    let file = ("NCCL_DEBUG_FILE", pattern.to_str().unwrap());
    train(&folder, &[file, ("EMULATED_CUDA_NCCL_NET", "Socket")]);
    let record = folder.record();
    assert_eq!(record["transports"][0]["name"], "NET/Socket");
    assert_eq!(record["transports"][0]["send"], json!({"nics": ["lo"], "gdr": false}));
    assert!(anomaly(&folder, WITHOUT_GDR).unwrap().contains("over NET/Socket: "));
    for rank in record["ranks"].as_array().unwrap() {
        let host = rank["host"].as_str().unwrap().split('.').next().unwrap();
        let log = folder.sibling(&format!("log.{host}.{}", rank["pid"]));
        assert!(std::fs::read_to_string(&log).unwrap().contains("via NET/Socket/0"), "{log:?}");
    }
    assert!(logs_left(&folder).is_empty());
}

/// Output that NCCL would have written to stdout is in files, which stay.
#[test]
fn a_log_that_was_asked_for_stays() {
    let folder = Folder::new();
    let finished = train(&folder, &[("NCCL_DEBUG", "INFO")]);
    assert!(!finished.stdout.contains("NCCL INFO"), "{}", finished.stdout);
    assert_eq!(folder.record()["transports"].as_array().unwrap().len(), 2);
    let logs = logs_left(&folder);
    assert_eq!(logs.len(), 2, "{logs:?}");
    let note = finished.stderr.lines().find(|line| line.starts_with("NCCL_DEBUG")).unwrap();
    assert!(logs.iter().any(|log| note.contains(log.to_str().unwrap())), "{note}");
}

#[test]
fn settings_that_hide_the_transports_are_respected_and_named() {
    for (name, value) in [("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_SUBSYS", "COLL")] {
        let folder = Folder::new();
        train(&folder, &[(name, value), ("EMULATED_CUDA_NCCL_NET", "IB")]);
        assert_eq!(folder.record()["transports"], Value::Null);
        let text = anomaly(&folder, UNKNOWN).unwrap();
        assert!(text.contains(&format!("all ranks: {name}={value} hides them")), "{text}");
        assert!(logs_left(&folder).is_empty());
    }
}

#[test]
fn an_error_of_nccl_names_its_log_which_stays() {
    let folder = Folder::new();
    let one_device = [("EMULATED_CUDA_DEVICES", "1")];
    let stderr = finish(job(&folder, &[], &one_device)).expect(3).stderr;
    let logs = logs_left(&folder);
    assert_eq!(logs.len(), 2, "{logs:?}");
    // The launcher may end one rank before it reports the error.
    let is_named = |log: &&PathBuf| stderr.contains(&format!("NCCL's log is {}", log.display()));
    let named = logs.iter().find(is_named).expect(&stderr);
    let text = std::fs::read_to_string(named).unwrap();
    assert!(text.contains("NCCL WARN Duplicate GPU detected"), "{text}");
}

#[test]
fn a_failed_run_has_its_transports_too() {
    let folder = Folder::new();
    let nan = ["--inject", "nan@step=2,rank=1"];
    finish(job(&folder, &nan, &[("EMULATED_CUDA_NCCL_NET", "IB,0:send")])).expect(4);
    assert_eq!(folder.record()["transports"][0], network(0, 1, false, true));
    assert!(anomaly(&folder, WITHOUT_GDR).unwrap().contains("sends without it (rank 0)"));
    assert!(logs_left(&folder).is_empty(), "NCCL's log cannot explain that");
}

#[test]
fn a_single_rank_has_no_transports_and_no_warning() {
    let folder = Folder::new();
    let flags = ["--steps", "1", "--set", "collectives.backend=nccl"];
    run(&arguments(&folder.text(), &flags)).expect(0);
    assert_eq!(folder.record()["transports"], Value::Null);
    assert_eq!(anomaly(&folder, UNKNOWN), None);
}
