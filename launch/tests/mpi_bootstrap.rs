//! The rendezvous of ranks under a real `mpirun`. Each test starts its own binary again under a
//! launcher, and the processes that the launcher starts run as ranks.
#![cfg(feature = "mpi")]
#![allow(clippy::print_stdout, reason = "how a rank reports to the test")]

use std::process::{Command, Output};
use std::time::Duration;

use support::launcher;
use yardstick_launch::Error;
use yardstick_launch::bootstrap::{self, Backend, Options, World, detect_launcher};

const OPTIONS: Options = Options {
    backend: Backend::Auto,
    timeout: Duration::from_secs(60),
    close_timeout: Duration::from_secs(10),
    threads: None,
};

/// Variable of processes that a test starts: a process that does not recognise its launcher fails,
/// instead of starting itself again without end.
const STARTED_BY_TEST: &str = "YARDSTICK_TEST_RANK";

fn is_rank() -> bool {
    let launcher = detect_launcher(|name| std::env::var(name).ok());
    let is_rank = launcher.expect("a sound environment").is_some();
    assert!(is_rank || std::env::var_os(STARTED_BY_TEST).is_none(), "no launcher recognised");
    is_rank
}

/// Runs one test of this binary as the program of a command.
fn start_self(test: &str, mut command: Command) -> Output {
    let executable = std::env::current_exe().expect("this binary");
    command.arg(executable).args([test, "--exact", "--nocapture"]).env(STARTED_BY_TEST, "1");
    command.output().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
}

#[test]
fn ranks_arrive_and_know_their_placement() {
    if is_rank() {
        let world = bootstrap::open(&OPTIONS).expect("a rendezvous");
        let World { collective, placement, hosts, threads, .. } = &world;
        assert_eq!(collective.backend(), "mpi");
        assert_eq!((placement.local_rank, placement.local_world), (placement.rank, 3));
        assert_eq!((placement.nodes, hosts.len()), (1, 3));
        assert!(threads.threads >= 1);
        println!("arrived {} of {}", placement.rank, placement.world);
        return;
    }
    let mut mpirun = launcher::command();
    mpirun.args(["-np", "3"]);
    let output = start_self("ranks_arrive_and_know_their_placement", mpirun);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for rank in 0..3 {
        assert!(text.contains(&format!("arrived {rank} of 3")), "no rank {rank} in {text}");
    }
}

#[test]
fn variables_of_another_launcher_are_detected() {
    if is_rank() {
        let Err(error) = bootstrap::open(&OPTIONS) else { panic!("MPI knows one rank only") };
        assert!(matches!(error, Error::WorldMismatch { world: 1, .. }), "{error}");
        println!("detected: {error}");
        return;
    }
    let mut alone = Command::new("env");
    launcher::set_environment(&mut alone); // what MPI starts in a process of its own
    alone.envs([("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")]);
    let output = start_self("variables_of_another_launcher_are_detected", alone);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("detected: "), "{output:?}");
}

#[test]
fn without_a_launcher_mpi_is_not_touched() {
    let world = bootstrap::open(&OPTIONS).expect("one rank");
    assert_eq!((world.collective.backend(), world.placement.world), ("single", 1));
    // Opening MPI starts this thread, and no other test does so in this process.
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux lists threads");
    let names: Vec<_> = threads
        .map(|thread| std::fs::read_to_string(thread.expect("a thread").path().join("comm")))
        .map(|name| name.unwrap_or_default().trim().to_owned())
        .collect();
    assert!(!names.is_empty() && !names.contains(&"communication".to_owned()), "{names:?}");
}
