//! `yardstick ckpt promote`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use checkpoint::promotion::{Promoter, PromoterOptions, Route, RouteStatus, Share};
use checkpoint::{NoFailpoints, Scope, Store};
use clap::Args;
use indicatif::ProgressBar;

use super::super::{note, print};
use super::tiers::{RunTiers, SeenTier};
use super::unusable;
use record::ExitCode;
use record::text::number_format::scaled;
use trainer::checkpoints::open::place;
use trainer::failure::{Failure, Outcome};

/// Interval between updates of the progress bar.
const POLL: Duration = Duration::from_millis(100);
/// Number of tries: the first starts at once, the others after pauses.
const TRIES: u64 = 3;

/// Copy a checkpoint to a shared tier, and verify it while it is read.
///
/// Files that are complete there are not sent again: after a failure, the same command resumes the
/// copy. Nothing on either tier is removed for its age. The retention of the run applies to the
/// copy: pin it to keep it longer. The run may be training meanwhile.
#[derive(Debug, Args)]
pub(super) struct Promote {
    /// Folder of the run.
    #[arg(value_name = "RUN")]
    folder: PathBuf,
    /// Name of the checkpoint (see `yardstick ckpt ls`).
    #[arg(value_name = "NAME")]
    checkpoint: String,
    /// Destination tier: shared or object.
    #[arg(long, value_name = "TIER")]
    to: String,
    /// Source tier [default: the nearest that has all of it].
    #[arg(long, value_name = "TIER")]
    from: Option<String>,
}

impl Promote {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let tiers = RunTiers::open(&self.folder)?;
        let to = tiers.planned(&self.to)?;
        if to.scope == Scope::Node {
            return Err(Failure::usage(format!("--to {}: expected a shared tier", self.to)));
        }
        let source = self.source(&tiers)?;
        let target =
            place(&to.address, Duration::MAX).and_then(|tier| Store::open(tier, &tiers.identity));
        let target = Arc::new(target.map_err(unusable)?);
        let of_target = target.newest_number().map_err(unusable)?;
        let attempt = tiers.newest_attempt()?.max(of_target);
        let route = Route {
            from: Arc::clone(&source.store),
            to: Arc::clone(&target),
            name: self.to.clone(),
            keep: 0,
        };
        let share = Share { rank: 0, world: 1, attempt };
        let options = PromoterOptions::default();
        let promoter = Promoter::start(vec![route], share, options, Arc::new(NoFailpoints));
        let promoter = promoter.map_err(unusable)?;
        let description = source.store.describe(&self.checkpoint).map_err(unusable)?;
        let all_ranks = (0..description.world).collect();
        promoter.submit_restored(&self.checkpoint, 0, all_ranks).map_err(unusable)?;
        let status = follow(&promoter, description.bytes);
        self.report(&target, source, &status)
    }

    fn source<'a>(&self, tiers: &'a RunTiers) -> Outcome<&'a SeenTier> {
        if let Some(from) = &self.from {
            tiers.planned(from)?;
        }
        let holders = tiers.holders(&self.checkpoint)?;
        let is_allowed = |tier: &SeenTier| {
            let name = tier.planned.name;
            name != self.to && self.from.as_deref().is_none_or(|from| from == name)
        };
        for tier in holders.into_iter().filter(|tier| is_allowed(tier)) {
            let presence = tier.store.presence(&self.checkpoint);
            let description = tier.store.describe(&self.checkpoint);
            if let (Ok(presence), Ok(description)) = (presence, description)
                && presence.ranks == description.world
            {
                return Ok(tier);
            }
        }
        let place = self.from.as_deref().unwrap_or("any other tier");
        Err(tiers.nothing(&format!("{} is not whole on {place}", self.checkpoint)))
    }

    /// Reports the outcome, as the target itself shows it.
    fn report(&self, target: &Store, source: &SeenTier, status: &RouteStatus) -> Outcome<ExitCode> {
        let (name, from, to) = (&self.checkpoint, source.planned.name, &self.to);
        let is_there = target.holds(name).map_err(unusable)?;
        if !is_there {
            let reason = status.last_error.as_deref().unwrap_or("unknown");
            return Err(unusable(anyhow::anyhow!("{name}: not copied to {to}: {reason}")));
        }
        if let Some(warning) = &status.last_error {
            note(format!("{to}: {warning}"));
        }
        match status.promoted.first() {
            None => print(format!("{name}: {to} has it already")),
            Some(promoted) => {
                let seconds = promoted.duration.as_secs_f64();
                let rate = scaled(status.bytes as f64 / status.seconds.max(1e-9), "B/s");
                let sent = scaled(status.bytes as f64, "B");
                print(format!(
                    "{name}: copied from {from} to {to}, {sent} sent in {seconds:.1} s, {rate}"
                ))
            }
        }
    }
}

/// Waits until a promotion is done or has failed too often.
fn follow(promoter: &Promoter, bytes: u64) -> RouteStatus {
    let bar = ProgressBar::new(bytes);
    loop {
        let is_done = promoter.finish(Instant::now() + POLL);
        let status = promoter.status().swap_remove(0);
        bar.set_position(status.bytes.min(bytes));
        if is_done || status.failures >= TRIES {
            bar.finish_and_clear();
            return status;
        }
    }
}
