//! `yardstick plan`.

use clap::Args;
use comfy_table::{CellAlignment, Table, presets::NOTHING};

use super::{print, print_json};
use crate::config::Config;
use crate::failure::{ExitCode, Failure, Outcome};
use crate::sizing::{Shape, Sizing, compute_threads};

/// Print the memory plan of a workload, before anything is allocated.
#[derive(Debug, Args)]
pub(super) struct Plan {
    /// A preset or a TOML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "smoke")]
    workload: String,
    /// Changes one value, as in `--set batch.micro_sequences=2`; may be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    overrides: Vec<String>,
    /// Ranks of the run.
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive)]
    ranks: usize,
    /// Ranks on this machine [default: all].
    #[arg(long, value_name = "N", value_parser = positive)]
    local_ranks: Option<usize>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Far above any machine, and no product with it wraps.
const RANKS_MAX: usize = 1 << 24;

fn positive(text: &str) -> Result<usize, String> {
    let expected = || format!("expected a number from 1 to {RANKS_MAX}");
    text.parse().ok().filter(|n| (1..=RANKS_MAX).contains(n)).ok_or_else(expected)
}

impl Plan {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let config = Config::load(&self.workload, &self.overrides)?;
        config.workload.batch.accumulation(self.ranks)?;
        let local = self.local_ranks()?;
        let threads = compute_threads(&config, local);
        let shape = Shape { world: self.ranks, local, threads, shares_memory: true };
        let sizing = Sizing::new(&config, shape, 0)?;
        if self.json {
            return print_json(&sizing);
        }
        print(format!(
            "{}: {} ranks, {local} on this machine, {} sequences of {} tokens a micro-batch\n\n{}",
            config.name,
            self.ranks,
            config.workload.batch.micro_sequences,
            config.workload.batch.sequence_tokens,
            table(&sizing, local)
        ))
    }

    /// A machine has no more ranks than the run.
    fn local_ranks(&self) -> Outcome<usize> {
        let local = self.local_ranks.unwrap_or(self.ranks);
        if local > self.ranks {
            let expected = format!("expected at most --ranks {}, those of the run", self.ranks);
            return Err(Failure::usage(format!("--local-ranks {local}: {expected}")));
        }
        Ok(local)
    }
}

/// What a number in the table means where ranks share memory.
const SHARED: &str = "\
This assumes that ranks of one machine may share memory. Gradients in it count once, for the rank
that made them; what `top` shows of one rank has its neighbours' in it as well. A run finds out
whether they may, plans with that, and leaves the plan in its record (`ranks[].planned_bytes`).

";

/// How exact a number in the table is where the engine allocates as it goes along.
fn estimated(tolerance: f64) -> String {
    let percent = 100.0 * tolerance;
    format!(
        "With run.engine = candle, the items from block activations to parameter gradients are an\n\
         estimate: together they are within {percent:.0} % of what it allocates.\n\n"
    )
}

fn table(sizing: &Sizing, local: usize) -> String {
    let mebibytes = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["one rank", "MiB"]);
    for item in &sizing.plan.items {
        table.add_row([item.name.clone(), mebibytes(item.bytes)]);
    }
    table.add_row(["total of one rank".to_owned(), mebibytes(sizing.total_bytes)]);
    let together = sizing.total_bytes.saturating_mul(local as u64);
    table.add_row([format!("total of {local} ranks here"), mebibytes(together)]);
    let available = sizing.available_bytes.map_or("unknown".to_owned(), mebibytes);
    table.add_row(["available here".to_owned(), available]);
    table.add_row(["one checkpoint, all ranks".to_owned(), mebibytes(sizing.checkpoint_bytes)]);
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let verdict =
        sizing.require(local).map_or_else(|problem| problem.to_string(), |()| "It fits.".into());
    let shared = if local > 1 { SHARED } else { "" };
    let estimated = sizing.activation_tolerance.map_or_else(String::new, estimated);
    format!("{table}\n\n{estimated}{shared}{verdict}")
}
