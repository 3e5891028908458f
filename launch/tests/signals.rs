//! SIGINT and SIGTERM in a separate process, because the second SIGINT ends it.
#![allow(clippy::unwrap_used, clippy::exit, reason = "a test, and a process that ends itself")]
#![allow(clippy::print_stdout, reason = "how the child reports to the test")]

use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use yardstick_launch::signals::{SignalFlags, StopSignal};

/// Variable with the signals that the child sends to itself. A test that finds it set starts no
/// child, so that it cannot start itself without end.
const SIGNALS: &str = "YARDSTICK_TEST_SIGNALS";

/// Body of the child, which is not a test by itself.
#[test]
fn child() {
    let Ok(signals) = std::env::var(SIGNALS) else { return };
    let reports = Arc::new(AtomicUsize::new(0));
    let reported = Arc::clone(&reports);
    let report = move |signal: StopSignal| {
        println!("{signal:?}");
        reported.fetch_add(1, Ordering::SeqCst);
    };
    let flags = SignalFlags::install(report).unwrap();
    let mut interrupts = 0;
    for (number, name) in (1..).zip(signals.split(' ')) {
        let signal = if name == "INT" { Signal::INT } else { Signal::TERM };
        kill_process(getpid(), signal).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        let is_handled = || flags.stop_requested() && reports.load(Ordering::SeqCst) >= number;
        while !is_handled() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        interrupts += usize::from(name == "INT");
        // The end that follows from a report may be late; where none follows, none must come.
        let end =
            if interrupts == 2 { Duration::from_secs(60) } else { Duration::from_millis(300) };
        std::thread::sleep(end);
        println!("alive after {name}, asked to stop: {}", flags.stop_requested());
    }
    std::process::exit(75);
}

/// Runs the child; returns its exit status, and how many signals it survived with its flag set.
fn send(signals: &str) -> (ExitStatus, usize) {
    assert!(std::env::var_os(SIGNALS).is_none(), "the child starts no child");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture"]).env(SIGNALS, signals);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    (output.status, text.matches("asked to stop: true").count())
}

#[test]
fn the_second_interrupt_ends_the_process_and_not_the_first() {
    let (status, survived) = send("INT INT");
    assert_eq!((status.code(), survived), (Some(130), 1));
}

/// Checks that Ctrl-C after the launcher's SIGTERM does not interrupt the last save.
#[test]
fn the_first_interrupt_after_a_sigterm_does_not_end_the_process() {
    let (status, survived) = send("TERM INT");
    assert_eq!((status.code(), survived), (Some(75), 2));
    let (status, survived) = send("TERM INT INT");
    assert_eq!((status.code(), survived), (Some(130), 2));
}
