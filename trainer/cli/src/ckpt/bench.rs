//! `yardstick ckpt bench`.

use std::path::PathBuf;

use clap::Args;
use comfy_table::{CellAlignment, Table, presets::NOTHING};

use super::super::{print, print_json};
use super::tiers::Configured;
use super::unusable;
use record::ExitCode;
use trainer::checkpoints::bench::{Load, TierRates, bench};
use trainer::config::size;
use trainer::failure::{Failure, Outcome};

/// Measure the write, read and metadata rates of tiers, without training.
///
/// The terms are those of the checkpointing test of MLPerf Storage. Each thread stands for a
/// process with its own file; a duration is that of the slowest thread, and throughput is all bytes
/// divided by it. Writes are durable when they end: O_DIRECT where it is supported, and fdatasync,
/// also of directories. Another thread than the writer reads each file, after the page cache was
/// dropped; a * marks rates that came from memory nevertheless. Metadata operations create, look
/// up, list and delete small durable files.
///
/// All files are in one folder `yardstick-bench-...` on the tier, which is removed at the end, even
/// after an error. If the process is killed, a later one removes the folder after a day.
#[derive(Debug, Args)]
pub(super) struct Bench {
    /// Folder of a run, all of whose tiers are measured.
    #[arg(value_name = "RUN", required_unless_present = "paths")]
    folder: Option<PathBuf>,
    /// Folder or URL (such as s3://bucket/prefix) to measure; may be repeated.
    #[arg(long = "path", value_name = "ADDRESS")]
    paths: Vec<String>,
    /// Total size of the files of all threads, as in 512MiB or 4GiB.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size::parse)]
    bytes: u64,
    /// Number of threads.
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    threads: u16,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let load = Load { bytes: self.bytes, threads: self.threads.into() };
        if load.bytes < load.threads as u64 {
            return Err(Failure::usage("--bytes: expected at least one for each thread"));
        }
        let mut rates = Vec::new();
        for address in self.addresses()? {
            rates.push(bench(&address, load).map_err(unusable)?);
        }
        if self.json { print_json(&rates) } else { print(table(&rates)) }
    }

    fn addresses(&self) -> Outcome<Vec<String>> {
        let mut addresses = self.paths.clone();
        if let Some(folder) = &self.folder {
            let tiers = Configured::read(folder)?.planned;
            addresses.extend(tiers.into_iter().map(|tier| tier.address));
        }
        Ok(addresses)
    }
}

fn table(rates: &[TierRates]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header([
        "tier",
        "size\nGiB",
        "threads",
        "write\nGiB/s",
        "write\ns",
        "read\nGiB/s",
        "read\ns",
        "create\n1/s",
        "stat\n1/s",
        "list\n1/s",
        "delete\n1/s",
    ]);
    for rates in rates {
        let filesystem =
            rates.filesystem.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        let is_warm = rates.read_is_cold == Some(false);
        let warm = if is_warm { "*" } else { "" };
        table.add_row([
            format!("{}{filesystem}", rates.address),
            format!("{:.2}", rates.bytes as f64 / f64::from(1 << 30)),
            rates.threads.to_string(),
            format!("{:.2}", rates.write_gib_per_second),
            format!("{:.2}", rates.write_seconds),
            format!("{:.2}{warm}", rates.read_gib_per_second),
            format!("{:.2}", rates.read_seconds),
            format!("{:.0}", rates.creates_per_second),
            format!("{:.0}", rates.stats_per_second),
            format!("{:.0}", rates.lists_per_second),
            format!("{:.0}", rates.deletes_per_second),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}
