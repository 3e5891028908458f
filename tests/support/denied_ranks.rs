//! Runs `yardstick` under mpirun with one rank to which the kernel denies what shared memory needs.
//!
//! A test binary that uses this has a test `rank_of_a_job` at its root, which calls
//! [`become_yardstick`].

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::{mpirun_test, seccomp, yardstick};

/// Set for the ranks: the denied rank and what it is denied (`Denied::encode`), then the
/// arguments of `yardstick`, one per line.
const DENIED: &str = "YARDSTICK_TEST_DENIED";

/// Operation that is denied to one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// This rank cannot create shared memory.
    Creating(usize),
    /// This rank cannot open the shared memory of other ranks.
    Opening(usize),
}

impl Denied {
    fn encode(self) -> String {
        match self {
            Self::Creating(rank) => format!("creating {rank}"),
            Self::Opening(rank) => format!("opening {rank}"),
        }
    }
}

/// Returns a command that starts two ranks of `yardstick`.
pub fn two_ranks(denied: Option<Denied>, arguments: &[&str]) -> Command {
    let mut command = mpirun_test(2, "rank_of_a_job");
    let denied = denied.map_or("nothing".to_owned(), Denied::encode);
    command.env(DENIED, format!("{denied}\n{}", arguments.join("\n")));
    command
}

/// Replaces a rank of [`two_ranks`] by `yardstick`; does nothing in any other process.
pub fn become_yardstick() {
    let Ok(job) = std::env::var(DENIED) else { return };
    let mut lines = job.split('\n');
    let denied = lines.next().unwrap();
    match denied.split_once(' ') {
        Some(("creating", rank)) if is_rank(rank) => seccomp::deny_memfd_create(),
        Some(("opening", rank)) if is_rank(rank) => seccomp::deny_opening_to_write(),
        _ => {}
    }
    let error = yardstick(&lines.collect::<Vec<_>>()).exec();
    panic!("{error}");
}

fn is_rank(rank: &str) -> bool {
    let names = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"];
    names.iter().any(|name| std::env::var(name).is_ok_and(|found| found == rank))
}
