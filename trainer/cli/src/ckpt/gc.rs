//! `yardstick ckpt gc`.

use checkpoint::{Removal, RemovalReason};
use clap::Args;
use comfy_table::{Table, presets::NOTHING};
use serde::Serialize;

use super::super::{note, print, print_json};
use super::tiers::{RunTiers, Selection};
use super::unusable;
use record::ExitCode;
use record::text::number_format::count;
use trainer::failure::{Failure, Outcome};
use trainer::run::Folder;

/// Apply retention on all tiers.
///
/// Removes checkpoints older than the newest ones that `checkpoint.keep`, or the tier's own `keep`,
/// keeps; uncommitted files of earlier attempts, if something newer is committed; half-removed
/// checkpoints; and incomplete multipart uploads to an object store. Keeps pinned checkpoints, and
/// the uncommitted files of the newest attempt, which may still be writing them.
///
/// Exits with 2 while the run is training, as the run applies retention itself. If the file system
/// of RUN has no locks, a running run is not detected: a checkpoint that is being copied to another
/// tier may then be removed, and the run copies the next one.
#[derive(Debug, Args)]
pub(super) struct Gc {
    #[command(flatten)]
    selection: Selection,
    /// List only, and remove nothing. Works while the run is training.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    tier: &'static str,
    checkpoint: String,
    /// Bytes of tensor data of all ranks, where the checkpoint has a manifest.
    bytes: Option<u64>,
    reason: String,
    removed: bool,
}

impl Gc {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let tiers = self.selection.open()?;
        let mut folder = Folder::new(&tiers.folder);
        if !self.dry_run && !folder.lock_soon()? {
            let shown = tiers.folder.display();
            let hint = "hint: the run applies retention itself; --dry-run only lists";
            return Err(Failure::usage(format!("{shown}: the run is training\n  {hint}")));
        }
        let mut rows = Vec::new();
        let failures = self.collect(&tiers, &mut rows)?;
        if self.json {
            print_json(&rows)?;
        } else {
            print(self.table(&rows))?;
        }
        if failures == 0 {
            return Ok(ExitCode::Done);
        }
        Err(unusable(anyhow::anyhow!("{} could not be removed", count(failures, "checkpoint"))))
    }

    /// Removes, or lists, what retention would remove. Returns the number of failed removals.
    fn collect(&self, tiers: &RunTiers, rows: &mut Vec<Row>) -> Outcome<usize> {
        let attempt = tiers.newest_attempt()?;
        let mut failures = 0;
        for tier in &tiers.seen {
            let keep = tier.planned.keep;
            for removal in tier.store.plan_retention(attempt, keep).map_err(unusable)? {
                let removed =
                    if self.dry_run { Ok(false) } else { tier.store.remove_planned(&removal) };
                let removed = removed.unwrap_or_else(|error| {
                    failures += 1;
                    note(format!("tier {}: {}: {error}", tier.planned.name, removal.checkpoint));
                    false
                });
                let reason = describe(removal.reason, keep);
                let Removal { checkpoint, bytes, .. } = removal;
                rows.push(Row { tier: tier.planned.name, checkpoint, bytes, reason, removed });
            }
        }
        Ok(failures)
    }

    fn table(&self, rows: &[Row]) -> String {
        if rows.is_empty() {
            return "nothing to remove".to_owned();
        }
        let mut table = Table::new();
        let header = ["tier", "checkpoint", "MiB", "", "why"];
        table.load_style(NOTHING).set_header(header);
        for row in rows {
            let mebibytes = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
            let became = match row.removed {
                true => "removed",
                false if self.dry_run => "would be removed",
                false => "not removed",
            };
            table.add_row([
                row.tier,
                &row.checkpoint,
                &row.bytes.map(mebibytes).unwrap_or_default(),
                became,
                &row.reason,
            ]);
        }
        table.trim_fmt()
    }
}

fn describe(reason: RemovalReason, keep: usize) -> String {
    match reason {
        RemovalReason::Old => format!("older than the newest {keep}"),
        RemovalReason::Abandoned => "not committed by an earlier attempt".to_owned(),
        RemovalReason::HalfRemoved => "its removal was interrupted".to_owned(),
        RemovalReason::OpenUploads => "uploads in parts, not completed".to_owned(),
    }
}
