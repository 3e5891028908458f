//! `yardstick ckpt plan`.

use checkpoint::{Member, Preview, Tiers};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets::NOTHING};

use super::super::{note, print, print_json};
use super::tiers::Selection;
use record::ExitCode;
use record::text::number_format::{count, scaled};
use trainer::failure::Outcome;

/// Show the sources of a restore, read from manifests and indexes alone.
///
/// The plan is that of training, from the view of this machine: the nodes of other ranks count as
/// empty. Every rank is assumed to read all tensors. With a sharded optimizer it reads only its
/// part of some, so the shown bytes are an upper bound. `ckpt verify` checks the data itself. Exits
/// with 6 if no checkpoint is complete.
#[derive(Debug, Args)]
pub(super) struct Plan {
    #[command(flatten)]
    selection: Selection,
    /// Number of ranks that restore.
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    /// Number of these ranks on this machine [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ranks_here: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Plan {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let run = self.selection.open()?;
        let members = run.seen.iter().map(|tier| Member {
            name: tier.planned.name.to_owned(),
            scope: tier.planned.scope,
            store: tier.store.clone(),
        });
        let here = self.ranks_here.unwrap_or(self.ranks);
        let tiers = Tiers::new(members.collect());
        let preview = tiers.preview(self.ranks as usize, here as usize).map_err(super::unusable)?;
        for passed_over in &preview.passed_over {
            note(format!("{}: passed over: {}", passed_over.checkpoint, passed_over.reason));
        }
        if self.json {
            print_json(&preview)?;
        }
        let Some(checkpoint) = &preview.checkpoint else {
            return Err(
                run.nothing("no checkpoint is complete on the tiers that this machine can reach")
            );
        };
        if self.json {
            return Ok(ExitCode::Done);
        }
        print(format!(
            "{checkpoint}: {} of data, saved by {}, to {}",
            scaled(preview.bytes as f64, "B"),
            count(preview.saved_by, "rank"),
            count(self.ranks as usize, "rank")
        ))?;
        print(table(&preview))
    }
}

fn table(preview: &Preview) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["tier", "files", "data", "read", "by peers"]);
    for source in &preview.sources {
        let bytes = |bytes: u64| scaled(bytes as f64, "B");
        table.add_row([
            source.tier.clone(),
            source.files.to_string(),
            bytes(source.bytes),
            bytes(source.read_bytes),
            bytes(source.from_peers_bytes),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}
