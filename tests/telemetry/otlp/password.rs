//! Password in the URL of a collector: it is sent there, and nowhere else.

use std::path::{Path, PathBuf};

use super::receiver::Collector;
use support::{Finished, Folder, finish, free_port, run, text, yardstick};

const PASSWORD: &str = "PASS1234";
/// The header of `user:PASS1234`, in lower case as the receiver keeps it.
const HEADER: &str = "authorization: basic dxnlcjpqqvntmtizna==";

fn with_password(url: &str) -> String {
    url.replace("http://", &format!("http://user:{PASSWORD}@"))
}

/// Trains with all that a library may log.
fn train(folder: &Folder, steps: &str, flags: &[&str]) -> Finished {
    let out = folder.text();
    let every = ["--checkpoint-every", "5steps", "--trace-steps", "2", "--log-format", "json"];
    let own = ["train", "--out", &out, "--steps", steps];
    let mut command = yardstick(&[&own[..], &every, flags].concat());
    command.env("RUST_LOG", "trace").env("NO_PROXY", "127.0.0.1");
    finish(command)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[track_caller]
fn expect_hidden(what: &str, bytes: &[u8]) {
    let is_shown = bytes.windows(PASSWORD.len()).any(|window| window == PASSWORD.as_bytes());
    assert!(!is_shown, "{what} has the password");
}

#[track_caller]
fn expect_hidden_in(folder: &Folder, finished: &Finished) {
    expect_hidden("stdout", finished.stdout.as_bytes());
    expect_hidden("stderr", finished.stderr.as_bytes());
    for path in files(&folder.path()) {
        expect_hidden(&path.display().to_string(), &std::fs::read(&path).unwrap());
    }
}

#[test]
fn only_the_collector_gets_the_password() {
    let (folder, collector) = (Folder::new(), Collector::start());
    let url = with_password(&collector.url());
    let finished = train(&folder, "10", &["--otlp", &url]).expect(0);
    let heads = collector.heads();
    let is_sent = |head: &Vec<String>| head.iter().any(|line| line == HEADER);
    assert!(!heads.is_empty() && heads.iter().all(is_sent), "{heads:?}");
    let page = folder.path().join("report.html");
    let reported = run(&["report", &folder.text(), "--html", &text(&page)]).expect(0);
    expect_hidden("report", reported.stdout.as_bytes());
    expect_hidden_in(&folder, &finished);
    let shown = collector.url().replace("http://", "http://***@");
    assert_eq!(folder.record()["run"]["telemetry"]["otlp"], shown.as_str());
}

#[test]
fn a_collector_that_is_absent_is_named_without_the_password() {
    let absent = format!("127.0.0.1:{}", free_port());
    let folder = Folder::new();
    let url = format!("http://user:{PASSWORD}@{absent}");
    let finished = train(&folder, "10", &["--otlp", &url]).expect(0);
    let finished = finished.expect_stderr(&["telemetry.otlp", &absent]);
    expect_hidden_in(&folder, &finished);
}

#[test]
fn a_stored_configuration_needs_the_password_again() {
    let (folder, collector) = (Folder::new(), Collector::start());
    let url = with_password(&collector.url());
    train(&folder, "10", &["--otlp", &url]).expect(0);
    let config = text(&folder.path().join("config.toml"));
    let from_file = ["--workload", &config];
    train(&folder, "15", &from_file).expect(2).expect_stderr(&["telemetry.otlp", "--otlp"]);
    collector.heads();
    train(&folder, "15", &[&from_file[..], &["--otlp", &url]].concat()).expect(0);
    assert!(!collector.heads().is_empty());
    run(&["ckpt", "ls", &folder.text()]).expect(0); // which reads that file, too
}

#[test]
fn an_address_that_is_refused_is_named_without_the_password() {
    for (key, url) in [
        ("telemetry.otlp", "ftp://user:PASS1234@host"),
        ("telemetry.otlp", "http://host:4318?token=PASS1234"),
        ("telemetry.records", "s3://key:PASS1234@bucket/a"),
        ("telemetry.records", "https://user:PASS1234@host/a"),
        ("checkpoint.object.path", "s3://key:PASS1234@bucket/a"),
        ("checkpoint.shared.path", "az://container/a?sig=PASS1234"),
    ] {
        let setting = format!("{key}={url}");
        for command in ["train", "plan", "doctor"] {
            let finished = run(&[command, "--set", &setting]).expect(2).expect_stderr(&[key]);
            expect_hidden(&setting, finished.stderr.as_bytes());
        }
    }
}
