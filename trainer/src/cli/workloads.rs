//! `yardstick workloads`.

use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde::Serialize;

use super::{print, print_json};
use crate::config::Config;
use crate::failure::{ExitCode, Outcome};
use crate::sizing::{Shape, Sizing, compute_threads};

/// List the workloads, or show one as TOML that `--workload FILE` accepts back.
#[derive(Debug, Args)]
pub(super) struct Workloads {
    #[command(subcommand)]
    command: Option<WorkloadsCommand>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum WorkloadsCommand {
    /// Print one workload's configuration as TOML.
    Show {
        /// A preset or a TOML file.
        name: String,
    },
}

#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    id: String,
    #[serde(flatten)]
    sizing: Sizing,
}

impl Workloads {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        if let Some(WorkloadsCommand::Show { name }) = self.command {
            return print(Config::load(&name, &[])?.to_toml().trim_end());
        }
        let rows = models::presets::names().map(|name| {
            let config = Config::load(name, &[])?;
            let id = config.workload.id(None);
            let threads = compute_threads(&config, 1);
            let shape = Shape { world: 1, local: 1, threads, shares_memory: false };
            let sizing = Sizing::new(&config, shape, 0)?;
            Ok(Row { name, id, sizing })
        });
        let rows: Vec<Row> = rows.collect::<Outcome<_>>()?;
        if self.json { print_json(&rows) } else { print(table(&rows)) }
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header([
        "workload",
        "parameters",
        "MFLOP/token\ncausal",
        "\nfull",
        "weights\nGiB/rank",
        "optimizer\nGiB/rank",
        "activations\nGiB/rank",
        "checkpoint\nGiB",
        "here",
    ]);
    for row in rows {
        let sizing = &row.sizing;
        let gibibytes = |bytes: u64| format!("{:.2}", bytes as f64 / f64::from(1 << 30));
        table.add_row([
            row.name.to_owned(),
            sizing.parameters.to_string(),
            format!("{:.1}", sizing.flops_per_token_causal / 1e6),
            format!("{:.1}", sizing.flops_per_token_full / 1e6),
            gibibytes(sizing.weight_bytes),
            gibibytes(sizing.optimizer_bytes),
            gibibytes(sizing.activation_bytes),
            gibibytes(sizing.checkpoint_bytes),
            if sizing.fits { "runs" } else { "plan-only" }.to_owned(),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}
