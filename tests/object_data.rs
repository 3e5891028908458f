//! Training from an object store: an S3 server in this process, ranks in others.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(feature = "mpi")]

#[path = "support/s3.rs"]
mod s3;
mod support;

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use s3::S3Server;
use serde_json::Value;
use support::{Finished, Folder, finish, mpirun, text, yardstick};

const FILE: &str = "text.bin";

/// Flags of a short run on a token file.
fn flags(folder: &Folder, file: &str) -> Vec<String> {
    let settings = [
        "data.source=files".to_owned(),
        format!("data.files=['{file}']"),
        format!("run.data_cache='{}'", folder.sibling("cache").display()),
        "run.data_deadline=3s".to_owned(),
        "telemetry.matmul_probe=0s".to_owned(),
    ];
    settings.into_iter().flat_map(|setting| ["--set".to_owned(), setting]).collect()
}

/// Tokens on the server, and a copy on this machine.
fn store_tokens(server: &S3Server, copy: &Path) {
    let bytes = (0..40_000_u32).map(|position| (position.wrapping_mul(position) / 7 % 251) as u16);
    let bytes: Vec<u8> = bytes.flat_map(u16::to_le_bytes).collect();
    std::fs::write(copy, &bytes).unwrap();
    std::fs::write(server.file(FILE), &bytes).unwrap();
}

/// Trains two steps in a folder of this name.
fn train(mut command: Command, folder: &Folder, run: &str, flags: &[String]) -> Finished {
    let out = text(&folder.sibling(run));
    command.args(["train", "--steps", "2", "--out", &out]).args(flags);
    finish(command)
}

fn record(folder: &Folder, run: &str) -> Value {
    support::record(&folder.sibling(run))
}

fn downloads(server: &S3Server) -> usize {
    let line = format!("GET /{}/{FILE}", s3::BUCKET);
    server.requests().iter().filter(|request| **request == line).count()
}

#[test]
fn two_ranks_train_from_one_download_as_from_a_file() {
    let server = S3Server::start();
    let folder = Folder::new();
    let copy = folder.sibling("copy.bin");
    store_tokens(&server, &copy);
    let remote = flags(&folder, &server.url(FILE));
    let ranks = || {
        let mut command = mpirun(2, &[]);
        command.envs(server.environment());
        command
    };
    train(ranks(), &folder, "first", &remote).expect(0);
    assert_eq!(downloads(&server), 1);
    train(ranks(), &folder, "again", &remote).expect(0);
    assert_eq!(downloads(&server), 1);
    train(mpirun(2, &[]), &folder, "local", &flags(&folder, &text(&copy))).expect(0);
    let run = |name| {
        let record = record(&folder, name);
        (record["workload"]["id"].clone(), record["fingerprint"].clone())
    };
    assert_eq!(run("first"), run("local"));
    assert_eq!(run("again"), run("local"));
}

#[test]
fn a_server_that_is_not_there_is_one_error() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let folder = Folder::new();
    let mut command = yardstick(&[]);
    command.env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}"));
    command.envs([("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")]);
    let failed = train(command, &folder, "run", &flags(&folder, "s3://bucket/text.bin")).expect(2);
    let failed = failed.expect_stderr(&["s3://bucket/text.bin: cannot stat: Connection refused"]);
    assert_eq!(failed.stderr.matches("s3://").count(), 1, "{}", failed.stderr);
}

#[test]
fn bench_prints_a_rate_for_each_way_that_data_takes() {
    let server = S3Server::start();
    let folder = Folder::new();
    let copy = folder.sibling("copy.bin");
    store_tokens(&server, &copy);
    let bench = |file: &str, more: &[&str]| {
        let mut command = yardstick(&["data", "bench"]);
        command.args(flags(&folder, file)).args(more).envs(server.environment());
        finish(command)
    };
    let printed = bench(&server.url(FILE), &["--json"]).expect(0).stdout;
    let rates: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(rates[0]["file"], server.url(FILE));
    assert_eq!(rates[0]["size_bytes"], 80_000);
    for key in ["download_bytes_per_second", "warm_bytes_per_second"] {
        assert!(rates[0][key].as_f64() > Some(0.0), "{key} in {printed}");
    }
    let printed = bench(&text(&copy), &["--json"]).expect(0).stdout;
    let rates: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(rates[0]["download_bytes_per_second"], Value::Null);
    let table = bench(&text(&copy), &[]).expect(0).stdout;
    for part in ["download", "cold", "warm", "80.0 kB", "copy.bin"] {
        assert!(table.contains(part), "no {part:?} in {table}");
    }
    let synthetic = finish(yardstick(&["data", "bench"])).expect(2);
    synthetic.expect_stderr(&["expected data.files, found none"]);
}
