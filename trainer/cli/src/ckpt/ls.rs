//! `yardstick ckpt ls`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::SystemTime;

use checkpoint::{Listed, Presence, Status};
use clap::Args;
use comfy_table::{Table, presets::NOTHING};
use serde::Serialize;

use super::super::{print, print_json};
use super::tiers::{Age, RunTiers, SeenTier, Selection, age, state};
use super::unusable;
use record::ExitCode;
use trainer::failure::Outcome;

/// List the checkpoints of all tiers, newest first.
///
/// State: committed (on at least one tier), uncommitted (interrupted, or being written), deleted
/// (its removal was interrupted), damaged, rejected (a restore found it damaged), or refused (of
/// another run, workload or format). Age: time since the first of the tiers that still have it
/// committed it. Durable on: the tiers that have it committed. Pinned checkpoints are never removed
/// (`ckpt pin`).
#[derive(Debug, Args)]
pub(super) struct Ls {
    #[command(flatten)]
    selection: Selection,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One checkpoint, on any tier.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    step: u64,
    attempt: u64,
    state: String,
    /// Ranks that saved it.
    ranks: Option<usize>,
    /// Bytes of tensor data.
    bytes: Option<u64>,
    age_seconds: Option<u64>,
    pinned: bool,
    tiers: Vec<Copy>,
}

/// Copy of a checkpoint on one tier.
#[derive(Debug, Serialize)]
struct Copy {
    tier: &'static str,
    state: String,
    /// Ranks whose files are visible there.
    ranks_here: Option<usize>,
    age_seconds: Option<u64>,
    pinned: bool,
}

impl Ls {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let rows = rows(&self.selection.open()?)?;
        if self.json { print_json(&rows) } else { print(table(&rows)) }
    }
}

fn rows(tiers: &RunTiers) -> Outcome<Vec<Row>> {
    let mut rows: BTreeMap<Reverse<Age>, Row> = BTreeMap::new();
    for tier in &tiers.seen {
        for listed in tier.store.list().map_err(unusable)? {
            let row = rows.entry(Reverse(age(&listed))).or_insert_with(|| Row::new(&listed));
            row.add(tier, &listed);
        }
    }
    Ok(rows.into_values().collect())
}

impl Row {
    fn new(Listed { name, step, attempt, status }: &Listed) -> Self {
        Self {
            name: name.clone(),
            step: *step,
            attempt: *attempt,
            state: state(status),
            ranks: None,
            bytes: None,
            age_seconds: None,
            pinned: false,
            tiers: Vec::new(),
        }
    }

    fn add(&mut self, tier: &SeenTier, listed: &Listed) {
        let is_committed = matches!(listed.status, Status::Committed { .. });
        // Retention may have removed it since the listing.
        let presence = tier.store.presence(&listed.name).ok().filter(|_| is_committed);
        if let Status::Committed { world, bytes } = listed.status {
            self.state = state(&listed.status);
            self.ranks = Some(world);
            self.bytes = Some(bytes);
        }
        let copy = Copy {
            tier: tier.planned.name,
            state: state(&listed.status),
            ranks_here: presence.map(|presence| presence.ranks),
            age_seconds: presence.map(age_seconds),
            pinned: presence.is_some_and(|presence| presence.is_pinned),
        };
        self.age_seconds = self.age_seconds.max(copy.age_seconds);
        self.pinned |= copy.pinned;
        self.tiers.push(copy);
    }

    /// Returns the tiers that have it committed, with the number of ranks where the copy is
    /// partial.
    fn durable_on(&self) -> String {
        let durable = |copy: &Copy| {
            let here = copy.ranks_here?;
            let world = self.ranks.unwrap_or(here);
            let part =
                if here < world { format!(" ({here} of {world} ranks)") } else { String::new() };
            Some(format!("{}{part}", copy.tier))
        };
        self.tiers.iter().filter_map(durable).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the age of a committed checkpoint; 0 where clocks differ and it is in the future.
fn age_seconds(presence: Presence) -> u64 {
    let age = SystemTime::now().duration_since(presence.committed);
    age.map_or(0, |age| age.as_secs())
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    let header = ["checkpoint", "step", "state", "ranks", "MiB", "age", "durable on", "pinned"];
    table.load_style(NOTHING).set_header(header);
    for row in rows {
        let mebibytes = row.bytes.map(|bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 20)));
        let is_pinned = if row.pinned { "pinned" } else { "" };
        table.add_row([
            row.name.clone(),
            row.step.to_string(),
            row.state.clone(),
            row.ranks.map(|ranks| ranks.to_string()).unwrap_or_default(),
            mebibytes.unwrap_or_default(),
            row.age_seconds.map(shown).unwrap_or_default(),
            row.durable_on(),
            is_pinned.to_owned(),
        ]);
    }
    table
}

/// Formats an age in its largest unit.
fn shown(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_digits_or_three() {
        let ages = [0, 119, 120, 7199, 7200, 172_799, 172_800].map(shown);
        assert_eq!(ages, ["0s", "119s", "2m", "119m", "2h", "47h", "2d"]);
    }
}
