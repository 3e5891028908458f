//! Checkpoints on real files: ranks are threads, or processes where they are killed.
#![allow(clippy::unwrap_used, reason = "helpers of tests too, not only tests, may panic")]
#![allow(clippy::print_stdout, reason = "a skipped test says so")]

mod agreement;
mod cutting;
mod damage;
mod epoch;
mod full_disk;
mod identity;
mod kill;
mod retention;
mod round_trip;
mod support;
