//! Runs of `yardstick` under mpirun in which one rank is refused what shared memory needs.
//!
//! Who uses this has a test `rank_of_a_job` that calls [`become_yardstick`].

#![allow(unreachable_pub, reason = "each test binary has its own")]
#![allow(clippy::unwrap_used, reason = "a test's helper may panic")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::refuse;
use crate::support::{mpirun_test, yardstick};

/// The rank that is refused something, what it is, and the arguments of `yardstick`; to the ranks.
const REFUSED: &str = "YARDSTICK_TEST_REFUSED";

/// Two ranks of `yardstick`. `refused` is the rank and what it is refused, in two lines.
pub fn two_ranks(refused: &str, arguments: &[&str]) -> Command {
    let mut command = mpirun_test(2, "rank_of_a_job");
    command.env(REFUSED, format!("{refused}\n{}", arguments.join("\n")));
    command
}

/// What such a rank does before it becomes `yardstick`; nothing in a process that is none.
pub fn become_yardstick() {
    let Ok(told) = std::env::var(REFUSED) else { return };
    let mut told = told.split('\n');
    let (rank, what) = (told.next().unwrap(), told.next().unwrap());
    let names = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"];
    if names.iter().any(|name| std::env::var(name).is_ok_and(|found| found == rank)) {
        match what {
            "making" => refuse::making_memory(),
            _ => refuse::opening_to_write(),
        }
    }
    let error = yardstick(&told.collect::<Vec<_>>()).exec();
    panic!("{error}");
}
