//! What SIGINT does to a process: a child is needed, because the second one ends it.
#![allow(clippy::unwrap_used, clippy::exit, reason = "a test, and a process that ends itself")]
#![allow(clippy::print_stdout, reason = "how the child tells the test what it saw")]

use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use yardstick_launch::StopFlag;

/// Set for the child: the signals that it sends itself. Without it a test starts a child, with it
/// never, so that a test cannot start itself without end.
const SIGNALS: &str = "YARDSTICK_TEST_SIGNALS";

/// Not a test by itself: what the child does.
#[test]
fn child() {
    let Ok(signals) = std::env::var(SIGNALS) else { return };
    let flags = StopFlag::install().unwrap();
    for name in signals.split(' ') {
        let signal = if name == "INT" { Signal::INT } else { Signal::TERM };
        kill_process(getpid(), signal).unwrap();
        let end = Instant::now() + Duration::from_secs(5);
        while !flags.stop_requested() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(300)); // all handlers of it have run
        println!("alive after {name}, asked to stop: {}", flags.stop_requested());
    }
    std::process::exit(75);
}

/// Runs the child; its exit status, and the signals after which it lived and had heard them.
fn after(signals: &str) -> (ExitStatus, usize) {
    assert!(std::env::var_os(SIGNALS).is_none(), "the child starts no child");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture"]).env(SIGNALS, signals);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    (output.status, text.matches("asked to stop: true").count())
}

#[test]
fn the_second_interrupt_ends_the_process_and_not_the_first() {
    let (status, heard) = after("INT INT");
    assert_eq!((status.code(), heard), (Some(130), 1));
}

/// A user who presses Ctrl-C while the launcher's SIGTERM is being obeyed must not lose the save.
#[test]
fn an_interrupt_after_a_request_to_terminate_is_the_first() {
    let (status, heard) = after("TERM INT");
    assert_eq!((status.code(), heard), (Some(75), 2));
    let (status, heard) = after("TERM INT INT");
    assert_eq!((status.code(), heard), (Some(130), 2));
}
