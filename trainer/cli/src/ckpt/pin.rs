//! `yardstick ckpt pin` and `ckpt unpin`.

use clap::Args;

use super::super::print;
use super::tiers::Selection;
use super::unusable;
use record::ExitCode;
use trainer::failure::Outcome;

/// Keep a checkpoint for ever, on each tier that has it.
///
/// Retention neither removes it nor counts it, on these tiers and on those to which it is copied
/// later. On a tier of each node this protects the part on this node only. Removing the file PINNED
/// from its folder does the same as `ckpt unpin`.
#[derive(Debug, Args)]
pub(super) struct Pin {
    #[command(flatten)]
    selection: Selection,
    /// Name of the checkpoint (see `yardstick ckpt ls`).
    #[arg(value_name = "NAME")]
    checkpoint: String,
}

/// Let retention remove a checkpoint again.
#[derive(Debug, Args)]
pub(super) struct Unpin {
    #[command(flatten)]
    selection: Selection,
    /// Name of the checkpoint.
    #[arg(value_name = "NAME")]
    checkpoint: String,
}

impl Pin {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        for tier in self.selection.open()?.holders(&self.checkpoint)? {
            tier.store.pin(&self.checkpoint).map_err(unusable)?;
            print(format!("{}: pinned on {}", self.checkpoint, tier.planned.name))?;
        }
        Ok(ExitCode::Done)
    }
}

impl Unpin {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        for tier in self.selection.open()?.holders(&self.checkpoint)? {
            tier.store.unpin(&self.checkpoint).map_err(unusable)?;
            print(format!("{}: not pinned on {}", self.checkpoint, tier.planned.name))?;
        }
        Ok(ExitCode::Done)
    }
}
