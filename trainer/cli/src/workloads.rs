//! `yardstick workloads`.

use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde::Serialize;

use super::{print, print_json};
use record::ExitCode;
use record::text::number_format::{binary, scaled, thousands};
use trainer::config::Config;
use trainer::failure::Outcome;
use trainer::plan::{JobShape, LeastDevices, RankPlan, compute_threads, least_devices};

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
        /// Preset or TOML file.
        name: String,
    },
}

#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    id: String,
    #[serde(flatten)]
    plan: RankPlan,
    /// For each of [`DEVICES_GIB`] the least devices of that size that train it in bf16.
    least_devices: Vec<Option<LeastDevices>>,
}

/// Memory of common devices in GiB: H100, H200, and B200 or MI300X.
const DEVICES_GIB: [u64; 3] = [80, 141, 192];

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
            let least = |gib| least_devices(&config, gib << 30);
            let least_devices = DEVICES_GIB.map(least).into_iter().collect::<Outcome<_>>()?;
            Ok(Row { name, id, plan, least_devices })
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
        "a token\ncausal",
        "\nfull",
        "weights\na rank",
        "optimizer\na rank",
        "activations\na rank",
        "checkpoint\nall ranks",
        "here",
        "least devices\nof 80 GiB",
        "\nof 141 GiB",
        "\nof 192 GiB",
    ]);
    for row in rows {
        let plan = &row.plan;
        let here = match plan.fits {
            Some(true) => "runs",
            Some(false) => "plan-only",
            None => "unknown",
        };
        let cells = [
            row.name.to_owned(),
            thousands(plan.parameters as f64),
            scaled(plan.flops_per_token_causal, "FLOP"),
            scaled(plan.flops_per_token_full, "FLOP"),
            binary(plan.weight_bytes),
            binary(plan.optimizer_bytes),
            binary(plan.activation_bytes),
            binary(plan.checkpoint_bytes),
            here.to_owned(),
        ];
        table.add_row(cells.into_iter().chain(row.least_devices.iter().map(least)));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// Describes devices and what is sharded over them.
fn least(devices: &Option<LeastDevices>) -> String {
    match devices {
        None => "none".to_owned(),
        Some(LeastDevices { devices: 1, .. }) => "1".to_owned(),
        Some(LeastDevices { devices, sharded, .. }) => {
            format!("{}, {sharded}", thousands(*devices as f64))
        }
    }
}
