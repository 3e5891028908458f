//! Real Prometheus that scrapes two ranks while they train, and queries about them.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Folder, Running, free_port, mpirun, run};

/// Killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The body of the answer; `None` if nobody answers.
fn http_get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

/// The longest wait for an answer: for the whole run on a slow machine.
const WAIT: Duration = Duration::from_secs(120);

/// Asks again and again until the answer is as it should be.
#[track_caller]
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + WAIT;
    loop {
        match ask() {
            Some(answer) => return answer,
            None if Instant::now() > end => panic!("not within {WAIT:?}: {what}"),
            None => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// Starts a Prometheus that scrapes a port five times a second.
fn prometheus(folder: &Path, scraped: u16, own: u16) -> Server {
    let file = folder.join("prometheus.yml");
    let configuration = format!(
        "global:\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\nscrape_configs:\n  \
         - job_name: yardstick\n    static_configs:\n      - targets: ['127.0.0.1:{scraped}']\n"
    );
    fs::write(&file, configuration).unwrap();
    let child = Command::new("prometheus")
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{own}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("prometheus is installed: scripts/setup.sh test");
    Server(child)
}

/// The value of an instant query, if it has one.
fn query(port: u16, expression: &str) -> Option<f64> {
    let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let answer = http_get(port, &format!("/api/v1/query?query={encoded}"))?;
    let answer: Value = serde_json::from_str(&answer).ok()?;
    let value = answer["data"]["result"][0]["value"][1].as_str()?;
    value.parse().ok().filter(|value: &f64| value.is_finite())
}

/// Returns the complaints of `promtool check metrics`.
fn complaints(text: &str) -> String {
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed: scripts/setup.sh test");
    check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    if output.status.success() { said } else { format!("{}: {said}", output.status) }
}

#[test]
fn prometheus_answers_questions_about_both_ranks() {
    let folder = Folder::new();
    let (endpoint, server) = (free_port(), free_port());
    let _server = prometheus(Path::new(&folder.sibling("")), endpoint, server);
    let is_ready = |answer: &String| answer.contains("is Ready");
    until("a server", || http_get(server, "/-/ready").filter(is_ready));
    let address = format!("127.0.0.1:{endpoint}");
    let linger = ["--set", "telemetry.prometheus_linger=1h", "--set", "schedule.steps=200"];
    // Long enough for scrapes in the middle, so that counters grow between two of them.
    let slow = ["--inject", "slow@step=100,rank=0"];
    let linger = [&linger[..], &slow, &["--checkpoint-every", "50steps"]].concat();
    let out = folder.text();
    let flags = ["train", "--out", &out, "--prometheus", &address];
    let training = Running::start(mpirun(2, &[&flags[..], &linger].concat()));
    until("both ranks", || query(server, "count(yardstick_step)").filter(|count| *count == 2.0));
    // Steps may be over already, and the first of them before the first scrape.
    let tokens = "sum by (rank) (increase(yardstick_tokens_total{rank=\"1\"}[1h]))";
    until("tokens", || query(server, tokens).filter(|tokens| *tokens > 1_000.0));
    let median = "histogram_quantile(0.5, rate(yardstick_step_duration_seconds_bucket[1h]))";
    until("step time", || query(server, median).filter(|seconds| (0.001..5.0).contains(seconds)));
    let phases = "count(yardstick_phase_duration_seconds_count{rank=\"0\"})";
    // A scrape that is too late leaves no value until the next one.
    until("phases", || query(server, phases).filter(|count| *count == 8.0));
    until("a checkpoint", || query(server, "max(yardstick_checkpoint_step)"));
    let info = "yardstick_run_info{workload=\"smoke\",attempt=\"1\"}";
    until("info", || query(server, info).filter(|value| *value == 1.0));
    // In the linger, when all steps are done.
    let last = |text: &String| text.contains("yardstick_step{rank=\"1\"} 200");
    let text = until("the last step", || http_get(endpoint, "/metrics").filter(last));
    assert_eq!(complaints(&text), "");
    assert!(text.contains("yardstick_steps_total{rank=\"0\"} 200"), "{text}");
    assert!(!text.contains("yardstick_lost_events_total{rank=\"0\"} 1"), "{text}");
    drop(training);
}

#[test]
fn a_run_ends_after_its_linger() {
    let folder = Folder::new();
    let flags = ["--steps", "2", "--prometheus", "127.0.0.1:0"];
    let start = Instant::now();
    folder.train(&[&flags[..], &["--set", "telemetry.prometheus_linger=2s"]].concat()).expect(0);
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn the_endpoint_answers_while_a_collective_hangs() {
    let folder = Folder::new();
    let endpoint = free_port();
    let (out, address) = (folder.text(), format!("127.0.0.1:{endpoint}"));
    let flags = ["train", "--out", &out, "--prometheus", &address, "--deadline", "60s"];
    let hang = ["--inject", "hang@step=20,rank=1"];
    let training = Running::start(mpirun(2, &[&flags[..], &hang].concat()));
    let hangs = |text: &String| text.contains("yardstick_step{rank=\"1\"} 19");
    until("step 19", || http_get(endpoint, "/metrics").filter(hangs));
    std::thread::sleep(Duration::from_secs(1));
    let text = until("an answer", || http_get(endpoint, "/metrics"));
    assert!(hangs(&text) && text.contains("yardstick_last_step_timestamp_seconds"), "{text}");
    drop(training); // the frozen rank would sleep for an hour
}

#[test]
fn an_address_that_is_taken_is_a_warning() {
    let folder = Folder::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let finished = folder.train(&["--steps", "3", "--prometheus", &address]).expect(0);
    finished.expect_stderr(&["warning: telemetry.prometheus: no metrics of this rank: "]);
    let anomaly = folder.record()["anomalies"].to_string();
    assert!(anomaly.contains("telemetry.prometheus"), "{anomaly}");
    run(&["train", "--set", "telemetry.prometheus=nowhere"])
        .expect(2)
        .expect_stderr(&["telemetry.prometheus"]);
}
