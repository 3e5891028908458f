//! `yardstick ckpt`: a file for each subcommand, and the tiers of a run, which all of them use.

mod bench;
mod gc;
mod ls;
mod pin;
mod plan;
mod promote;
mod show;
mod tiers;
mod verify;

use clap::{Args, Subcommand};

use record::ExitCode;
use trainer::failure::{Failure, Outcome};

pub(super) use tiers::RunTiers;

/// List, verify, pin, copy and remove the checkpoints of a run, on all of its tiers.
///
/// The tiers are those of the run's configuration and of LOCAL_CHECKPOINT_DIR and
/// SHARED_CHECKPOINT_DIR, as in training. Of a per-node tier, only the part of this node is
/// visible. Tiers without checkpoints of the run, and tiers that this machine cannot reach, are
/// named on stderr and skipped.
#[derive(Debug, Args)]
pub(super) struct Ckpt {
    #[command(subcommand)]
    command: CkptCommand,
}

#[derive(Debug, Subcommand)]
enum CkptCommand {
    Ls(ls::Ls),
    Show(show::Show),
    Verify(verify::Verify),
    Pin(pin::Pin),
    Unpin(pin::Unpin),
    Promote(promote::Promote),
    Gc(gc::Gc),
    Plan(plan::Plan),
    Bench(bench::Bench),
}

impl Ckpt {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        match self.command {
            CkptCommand::Ls(ls) => ls.run(),
            CkptCommand::Show(show) => show.run(),
            CkptCommand::Verify(verify) => verify.run(),
            CkptCommand::Pin(pin) => pin.run(),
            CkptCommand::Unpin(unpin) => unpin.run(),
            CkptCommand::Promote(promote) => promote.run(),
            CkptCommand::Gc(gc) => gc.run(),
            CkptCommand::Plan(plan) => plan.run(),
            CkptCommand::Bench(bench) => bench.run(),
        }
    }
}

/// Returns the failure of a command for an error of checkpoints.
fn unusable(error: impl Into<anyhow::Error>) -> Failure {
    Failure::new(ExitCode::Checkpoint, error)
}
