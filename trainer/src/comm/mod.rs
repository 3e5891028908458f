//! `yardstick comm`: a benchmark of communication between ranks, without training.
//!
//! `sweep.rs` measures collective operations over a range of sizes, as NVIDIA's nccl-tests do, and
//! verifies every element; `pattern.rs` has the numbers sent and the results expected. `links.rs`
//! measures single links: of every pair of nodes, and of all ranks across a cut of the job;
//! `slow.rs` finds slow ones. `report.rs` prints everything.

mod links;
mod operation;
mod pattern;
mod report;
mod slow;
mod sweep;

use std::time::Duration;

use device::Device;
use launch::bootstrap::World;

pub use operation::CommOperation;
pub use report::CommReport;

use crate::config::Config;
use crate::failure::{Failure, Outcome};
use crate::ranks::Ranks;
use crate::run::{Exit, in_world};
#[cfg(test)]
pub(crate) use links::Link;
use links::Links;
pub use links::Pairs;
use record::ExitCode;
use record::text::number_format::count;
use sweep::Sweep;

/// Selection of measurements.
#[derive(Debug, Clone)]
pub struct CommOptions {
    /// Resolved configuration.
    pub config: Config,
    /// Operations to measure.
    pub operations: Vec<CommOperation>,
    /// Smallest buffer in bytes.
    pub bytes_min: u64,
    /// Largest buffer in bytes.
    pub bytes_max: u64,
    /// Factor between two sizes.
    pub factor: u64,
    /// Iterations per size; limited by time if `None`.
    pub iterations: Option<u32>,
    /// Measures links between pairs instead of operations.
    pub pairs: bool,
    /// Measures both halves of the ranks at the same time.
    pub bisection: bool,
    /// Bytes of a message over a link.
    pub message_bytes: u64,
}

/// Measures on all ranks, and prints the report on rank 0.
///
/// # Errors
/// Exit code 2 if something is not possible here, 4 if a received element is wrong, 5 if a rank is
/// lost or late.
pub fn run(
    options: &CommOptions,
    print: impl FnOnce(&CommReport) -> Outcome<ExitCode> + Send,
) -> Outcome<Exit> {
    in_world(&options.config, |world, device, collective| {
        let ranks = Ranks::new(collective, options.config.settings.collectives.deadline);
        if ranks.is_alone() {
            let text = "comm: expected several ranks, found one; start it with mpirun";
            return Err(Failure::usage(text));
        }
        let report = measure(options, world, device, ranks)?;
        if ranks.rank() == 0 {
            print(&report)?;
        }
        // Every rank has gathered the same sums.
        match report.wrong_elements() {
            0 => Ok(()),
            wrong => {
                let wrong = count(wrong as usize, "wrong element");
                let text = format!("{wrong}: data was corrupted in transit");
                Err(Failure::new(ExitCode::Numerical, anyhow::anyhow!(text)))
            }
        }
    })
}

fn measure(
    options: &CommOptions,
    world: &World,
    device: &Device,
    ranks: Ranks<'_>,
) -> Outcome<CommReport> {
    let mut report = CommReport::new(ranks, world, device);
    if options.pairs || options.bisection {
        if matches!(device, Device::Cuda(_)) {
            let text = "comm: links are measured between hosts only: use --device cpu";
            return Err(Failure::usage(text));
        }
        let mut links = Links::new(ranks, world, options.message_bytes);
        if options.pairs {
            report.pairs = Some(links.pairs()?);
        }
        if options.bisection {
            report.cuts = links.bisection()?;
        }
        return Ok(report);
    }
    let mut sweep = Sweep::new(options, world, device, ranks)?;
    for operation in &options.operations {
        report.rows.extend(sweep.measure(*operation)?);
    }
    report.notes.extend(sweep.into_notes());
    Ok(report)
}

/// Measures the links between every two nodes, or ranks of one node. Collective.
pub(crate) fn measure_pairs(ranks: Ranks<'_>, world: &World, message_bytes: u64) -> Outcome<Pairs> {
    Links::new(ranks, world, message_bytes).pairs()
}

/// Time for which a size is measured, unless the number of iterations is given.
const MEASURE_TIME: Duration = Duration::from_millis(300);
