//! Checkpoints of a world that no test machine has: what rank 0 holds and decides, and the goodput
//! that cadence and tiers can give.
//!
//! All ranks are written by this process with the code that ranks run; only their gathers are
//! simulated. Ends with 1 when a limit is exceeded.
//!
//! ```text
//! checkpoint_scale [RANKS] [FOLDER]
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a table is what it is for")]

mod goodput;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

/// Size of the largest root manifest.
const MANIFEST_BYTES_MAX: u64 = 4 << 20;
/// Longest time in which a restore is planned.
const PLAN_SECONDS_MAX: f64 = 1.0;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let ranks = arguments.next().map_or(Ok(16_384), |text| text.parse())?;
    let folder = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let found = world::measure(ranks, &folder)?;
    println!("{ranks} ranks, {} on a node, three tiers", world::RANKS_PER_NODE);
    println!("root manifest            {:10.2} MiB", found.manifest_bytes as f64 / 1048576.0);
    println!("vote and commit, rank 0  {:10.3} s", found.commit_seconds);
    println!("what all ranks see       {:10.2} MiB", found.inventory_bytes as f64 / 1048576.0);
    println!("decoding what they see   {:10.3} s", found.decode_seconds);
    println!("restore plan             {:10.3} s", found.plan_seconds);
    println!("retention plan           {:10.3} s", found.retention_seconds);
    println!();
    goodput::print();
    let is_small = found.manifest_bytes < MANIFEST_BYTES_MAX;
    let is_fast = found.plan_seconds < PLAN_SECONDS_MAX;
    if !is_small {
        eprintln!("the manifest has more than {MANIFEST_BYTES_MAX} bytes");
    }
    if !is_fast {
        eprintln!("planning a restore took more than {PLAN_SECONDS_MAX} s");
    }
    Ok(if is_small && is_fast { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
