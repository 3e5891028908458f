//! `yardstick workloads`.

use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde::Serialize;

use super::{print, print_json};
use crate::config::Config;
use crate::failure::{ExitCode, Outcome};
use crate::plan::{JobShape, RankPlan, compute_threads};

/// List the preset workloads and their sizes, or show one as TOML.
#[derive(Debug, Args)]
pub(super) struct Workloads {
    #[command(subcommand)]
    command: Option<WorkloadsCommand>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum WorkloadsCommand {
    /// Print a workload's configuration as TOML, which `--workload` accepts as a file.
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
    plan: RankPlan,
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
            let shape = JobShape { world: 1, local: 1, threads, shares_memory: false };
            let plan = RankPlan::new(&config, shape, None)?;
            Ok(Row { name, id, plan })
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
        let plan = &row.plan;
        let gibibytes = |bytes: u64| format!("{:.2}", bytes as f64 / f64::from(1 << 30));
        table.add_row([
            row.name.to_owned(),
            plan.parameters.to_string(),
            format!("{:.1}", plan.flops_per_token_causal / 1e6),
            format!("{:.1}", plan.flops_per_token_full / 1e6),
            gibibytes(plan.weight_bytes),
            gibibytes(plan.optimizer_bytes),
            gibibytes(plan.activation_bytes),
            gibibytes(plan.checkpoint_bytes),
            if plan.fits { "runs" } else { "plan-only" }.to_owned(),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}
