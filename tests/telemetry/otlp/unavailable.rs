//! Collectors that cannot be reached.

use std::net::TcpListener;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::receiver::Collector;
use support::{Finished, Folder, finish, free_port, run, yardstick};

/// Longest wait of a run for a collector when it has ended, and for its other work then on a busy
/// machine: less than the 10 s that a request may take by OpenTelemetry's default.
const END_MS: u64 = 2_000 + 7_000;

/// Runs a few steps, too few for anything to be sent before the end unless they are slow, and
/// returns how long the process continued when its attempt had ended.
#[track_caller]
fn train(folder: &Folder, url: &str, spans_of_request: &str) -> Ended {
    let out = folder.text();
    let flags = ["train", "--out", &out, "--steps", "20", "--otlp", url];
    let mut command = yardstick(&flags);
    command.env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", spans_of_request).env("NO_PROXY", "127.0.0.1");
    let finished = finish(command).expect(0);
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let ended_ms = folder.record()["attempts"][0]["ended_unix_ms"].as_u64().unwrap();
    Ended { finished, waited_ms: now_ms - ended_ms }
}

struct Ended {
    finished: Finished,
    waited_ms: u64,
}

impl Ended {
    /// Expects one warning, of this collector and with this reason, and an otherwise normal run.
    #[track_caller]
    fn expect(&self, folder: &Folder, url: &str, why: &str) {
        let Self { finished, waited_ms } = self;
        let is_told = |line: &&str| line.contains("telemetry.otlp");
        let told: Vec<_> = finished.stderr.lines().filter(is_told).collect();
        let [line] = told[..] else { panic!("{finished:?}") };
        assert!(line.contains(url) && line.contains(why), "{line}");
        assert!(*waited_ms < END_MS, "{waited_ms} ms with a collector that is unavailable: {why}");
        let anomalies = folder.record()["anomalies"].to_string();
        assert!(!anomalies.contains("delayed"), "{anomalies}");
        assert_eq!(folder.steps(0).len(), 20);
    }
}

/// Both runs finish like one without a collector, but for one warning and the wait at the end.
#[test]
fn a_collector_that_hangs_or_is_absent_is_one_warning() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap(); // accepts connections, answers none
    let hanging = listener.local_addr().unwrap().port();
    let absent = free_port();
    for (port, why) in [(hanging, "timed out"), (absent, "Connection refused")] {
        let folder = Folder::new();
        let url = format!("http://127.0.0.1:{port}");
        train(&folder, &url, "512").expect(&folder, &url, why);
    }
}

/// Answers each request in time, but all of them together too late.
#[test]
fn a_collector_that_is_too_slow_for_the_end_is_one_warning() {
    let collector = Collector::slow(Duration::from_millis(300));
    let (folder, url) = (Folder::new(), collector.url());
    train(&folder, &url, "1").expect(&folder, &url, "did not take the rest within 2s of the end");
}

#[test]
fn what_is_no_url_is_refused() {
    for wrong in ["nowhere", "localhost:4318", "grpc://localhost:4317"] {
        let setting = format!("telemetry.otlp={wrong}");
        run(&["train", "--set", &setting]).expect(2).expect_stderr(&[
            "telemetry.otlp",
            wrong,
            "http://HOST:4318",
        ]);
    }
}
