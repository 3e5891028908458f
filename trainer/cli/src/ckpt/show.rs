//! `yardstick ckpt show`.

use checkpoint::{Contents, Description, FileSize};
use clap::Args;
use comfy_table::{Table, presets::NOTHING};
use serde::Serialize;

use super::super::{print, print_json};
use super::tiers::{RunTiers, SeenTier, Selection, state};
use super::unusable;
use record::ExitCode;
use record::text::number_format;
use trainer::failure::Outcome;

/// Describe a checkpoint and its copy on each tier, without reading its data.
#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    selection: Selection,
    /// Name of the checkpoint (see `yardstick ckpt ls`).
    #[arg(value_name = "NAME")]
    checkpoint: String,
    /// Print JSON, with the names and sizes of all files.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    description: Description,
    tiers: Vec<Copy>,
}

/// Copy of a checkpoint on one tier.
#[derive(Debug, Serialize)]
struct Copy {
    tier: &'static str,
    address: String,
    state: String,
    pinned: bool,
    /// Contents of its indexes; `None` where they cannot be read.
    contents: Option<Contents>,
}

impl Show {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let tiers = self.selection.open()?;
        let description = describe(&tiers, &self.checkpoint)?;
        let mut copies = Vec::new();
        for tier in &tiers.seen {
            copies.extend(copy(tier, &self.checkpoint)?);
        }
        let shown = Shown { description, tiers: copies };
        if self.json { print_json(&shown) } else { print(shown.text()) }
    }
}

/// Describes a checkpoint by the nearest tier whose manifest is readable.
fn describe(tiers: &RunTiers, checkpoint: &str) -> Outcome<Description> {
    let mut failure = None;
    for tier in tiers.holders(checkpoint)? {
        match tier.store.describe(checkpoint) {
            Ok(description) => return Ok(description),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(unusable(failure.expect("there is a holder")))
}

fn copy(SeenTier { planned, store }: &SeenTier, checkpoint: &str) -> Outcome<Option<Copy>> {
    let listed = store.list().map_err(unusable)?;
    let Some(listed) = listed.into_iter().find(|listed| listed.name == checkpoint) else {
        return Ok(None);
    };
    let presence = store.presence(checkpoint);
    Ok(Some(Copy {
        tier: planned.name,
        address: planned.address.clone(),
        state: state(&listed.status),
        pinned: presence.is_ok_and(|presence| presence.is_pinned),
        contents: store.contents(checkpoint).ok(),
    }))
}

impl Shown {
    fn text(&self) -> String {
        let Description {
            checkpoint,
            step,
            attempt,
            parent,
            run,
            workload,
            software,
            world,
            bytes,
            state,
        } = &self.description;
        let mut facts = Table::new();
        facts.load_style(NOTHING);
        let parent = parent.as_deref().unwrap_or("none");
        let bytes = number_format::scaled(*bytes as f64, "B");
        let rows = [
            ("checkpoint", checkpoint.clone()),
            ("step", step.to_string()),
            ("attempt", attempt.to_string()),
            ("parent", parent.to_owned()),
            ("run", run.clone()),
            ("workload", workload.clone()),
            ("software", software.clone()),
            ("ranks", world.to_string()),
            ("data", bytes),
            ("state", state.to_string()),
        ];
        facts.add_rows(rows.map(|(key, value)| [key.to_owned(), value]));
        format!("{}\n\n{}", facts.trim_fmt(), self.tier_table().trim_fmt())
    }

    fn tier_table(&self) -> Table {
        let mut table = Table::new();
        let header = ["tier", "state", "pinned", "ranks", "tensors", "files", "size", "address"];
        table.load_style(NOTHING).set_header(header);
        for Copy { tier, address, state, pinned, contents } in &self.tiers {
            let shown = |number: fn(&Contents) -> String| {
                contents.as_ref().map_or_else(|| "-".to_owned(), number)
            };
            table.add_row([
                (*tier).to_owned(),
                state.clone(),
                if *pinned { "pinned".to_owned() } else { String::new() },
                shown(|contents| contents.ranks.to_string()),
                shown(|contents| contents.tensors.to_string()),
                shown(|contents| contents.files.len().to_string()),
                shown(|contents| number_format::scaled(size(&contents.files) as f64, "B")),
                address.clone(),
            ]);
        }
        table
    }
}

fn size(files: &[FileSize]) -> u64 {
    files.iter().map(|file| file.bytes).sum()
}
