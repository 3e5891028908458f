//! `yardstick comm`: how fast ranks communicate, without training.
//!
//! `sweep.rs` measures collective operations over a range of sizes, as NVIDIA's nccl-tests do, and
//! verifies every element; `pattern.rs` has the numbers that it sends and what has to come back.
//! `links.rs` measures single links: of every pair of nodes, and of all ranks across a cut of the
//! job; `slow.rs` finds slow ones. `report.rs` prints everything.

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

/// What to measure.
#[derive(Debug, Clone)]
pub struct CommOptions {
    /// The resolved configuration.
    pub config: Config,
    /// Operations that are measured.
    pub operations: Vec<CommOperation>,
    /// Smallest buffer in bytes.
    pub bytes_min: u64,
    /// Largest buffer in bytes.
    pub bytes_max: u64,
    /// Factor between two sizes.
    pub factor: u64,
    /// How often each is measured; by time if `None`.
    pub iterations: Option<u32>,
    /// Links instead of operations.
    pub pairs: bool,
    /// Both halves of the ranks at the same time.
    pub bisection: bool,
    /// Bytes of a message over a link.
    pub message_bytes: u64,
}

/// Measures on all ranks; returns what rank 0 has to print.
///
/// # Errors
/// Exit code 2 for what is not possible here, 4 when a received element is wrong, 5 when a rank is
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
                let text = format!("{wrong}: data was changed on its way");
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

/// For how long a size is measured, unless it is said how often.
const MEASURE_TIME: Duration = Duration::from_millis(300);
