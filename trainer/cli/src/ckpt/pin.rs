//! `yardstick ckpt pin` and `ckpt unpin`.

use clap::Args;

use super::super::print;
use super::tiers::Selection;
use super::unusable;
use record::ExitCode;
use trainer::failure::Outcome;

/// Protect a checkpoint from retention, on each tier that has it.
///
/// Retention neither removes nor counts a pinned checkpoint, on these tiers and on those to which
/// it is copied later. On a per-node tier, only the part on this node is protected. Removing the
/// file PINNED from its folder has the effect of `ckpt unpin`.
#[derive(Debug, Args)]
pub(super) struct Pin {
    #[command(flatten)]
    selection: Selection,
    /// Name of the checkpoint (see `yardstick ckpt ls`).
    #[arg(value_name = "NAME")]
    checkpoint: String,
}

/// Allow retention to remove a checkpoint again.
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
