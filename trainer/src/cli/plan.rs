//! `yardstick plan`.

use clap::Args;
use comfy_table::{CellAlignment, Table, presets::NOTHING};

use super::{print, print_json};
use crate::config::Config;
use crate::failure::{ExitCode, Failure, Outcome};
use crate::plan::{JobShape, RankPlan, compute_threads};

/// Print the memory plan of a workload, without allocating anything.
#[derive(Debug, Args)]
pub(super) struct Plan {
    /// A preset (see `yardstick workloads`) or a TOML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "smoke")]
    workload: String,
    /// Set one value of the configuration, as in `--set batch.micro_sequences=2`; may be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    overrides: Vec<String>,
    /// Number of ranks of the run.
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive)]
    ranks: usize,
    /// Number of ranks on this machine [default: all].
    #[arg(long, value_name = "N", value_parser = positive)]
    local_ranks: Option<usize>,
    /// Fail unless the workload has this id, as for another version of this program, whose preset
    /// of the same name may be another one.
    #[arg(long, value_name = "ID")]
    expect_id: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Far above any machine, and small enough that no product with it overflows.
const RANKS_MAX: usize = 1 << 24;

fn positive(text: &str) -> Result<usize, String> {
    let expected = || format!("expected a number from 1 to {RANKS_MAX}");
    text.parse().ok().filter(|n| (1..=RANKS_MAX).contains(n)).ok_or_else(expected)
}

impl Plan {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let config = Config::load(&self.workload, &self.overrides)?;
        self.check_id(&config)?;
        config.workload.batch.accumulation(self.ranks)?;
        let local = self.local_ranks()?;
        let threads = compute_threads(&config, local);
        let shape = JobShape { world: self.ranks, local, threads, shares_memory: true };
        let plan = RankPlan::new(&config, shape, None)?;
        if self.json {
            return print_json(&plan);
        }
        print(format!(
            "{}: {} ranks, {local} on this machine, {} sequences of {} tokens a micro-batch\n\n{}",
            config.name,
            self.ranks,
            config.workload.batch.micro_sequences,
            config.workload.batch.sequence_tokens,
            table(&plan, local)
        ))
    }

    /// The id depends on the content of data files, which a plan does not read.
    fn check_id(&self, config: &Config) -> Outcome<()> {
        let Some(expected) = &self.expect_id else { return Ok(()) };
        let name = &config.name;
        if !config.workload.data.files.is_empty() {
            let text = "expected a workload without data files, on whose content its id depends";
            return Err(Failure::usage(format!("--expect-id: {name}: {text}")));
        }
        let found = config.workload.id(None);
        if found == *expected {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{name}: expected the workload with id {expected}, found {found}\n  hint: this is \
             yardstick {}; a job needs the image of the version that rendered it",
            env!("CARGO_PKG_VERSION")
        )))
    }

    /// Ranks on this machine: at most those of the run.
    fn local_ranks(&self) -> Outcome<usize> {
        let local = self.local_ranks.unwrap_or(self.ranks);
        if local > self.ranks {
            let expected = format!("expected at most --ranks {}, those of the run", self.ranks);
            return Err(Failure::usage(format!("--local-ranks {local}: {expected}")));
        }
        Ok(local)
    }
}

/// What the table assumes where several ranks are on one machine.
const SHARED: &str = "\
This assumes that the ranks of a machine can share memory. Shared gradients are counted once, for
the rank that allocated them; `top` counts them for every rank that maps them. A run finds out
whether memory can be shared, plans accordingly, and records its plan (`ranks[].planned_bytes`).

";

/// How accurate the table is for an engine that allocates during the step.
fn estimated(tolerance: f64) -> String {
    let percent = 100.0 * tolerance;
    format!(
        "With run.engine = candle, the items from block activations to parameter gradients are an\n\
         estimate: together they are within {percent:.0} % of what it allocates.\n\n"
    )
}

fn table(plan: &RankPlan, local: usize) -> String {
    let mebibytes = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["one rank", "MiB"]);
    for item in &plan.plan.items {
        table.add_row([item.purpose.to_owned(), mebibytes(item.bytes)]);
    }
    table.add_row(["total of one rank".to_owned(), mebibytes(plan.total_bytes)]);
    let together = plan.total_bytes.saturating_mul(local as u64);
    table.add_row([format!("total of {local} ranks here"), mebibytes(together)]);
    let available = plan.available_bytes.map_or("unknown".to_owned(), mebibytes);
    table.add_row(["available here".to_owned(), available]);
    table.add_row(["one checkpoint, all ranks".to_owned(), mebibytes(plan.checkpoint_bytes)]);
    if let Some(device) = &plan.device {
        table.add_row(["", ""]).add_row(["one rank on its device", "MiB"]);
        for item in &device.plan.items {
            table.add_row([item.purpose.to_owned(), mebibytes(item.bytes)]);
        }
        table.add_row(["total on the device".to_owned(), mebibytes(device.total_bytes)]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let verdict =
        plan.require(local).map_or_else(|problem| problem.to_string(), |()| "It fits.".into());
    let shared = if local > 1 { SHARED } else { "" };
    let estimated = plan.activation_tolerance.map_or_else(String::new, estimated);
    format!("{table}\n\n{estimated}{shared}{verdict}")
}
