//! `yardstick baseline`: records to compare with.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use comfy_table::{Cell, CellAlignment, Table, presets};

use super::{print, print_json, storage};
use record::ExitCode;
use record::Record;
use record::text::number_format;
use trainer::failure::{Failure, Outcome};
use verdict::baseline::{Baselines, Key, StoredRecord, Summary};

/// Store records of runs, and choose the ones that new runs are compared with.
///
/// A store is a folder or the URL of an object store. It groups records by workload, world size and
/// machine type. `yardstick compare STORE NEW` takes the records of NEW's group.
#[derive(Debug, Args)]
pub(super) struct Baseline {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Add(Add),
    Show(Show),
    Promote(Promote),
}

/// Add records of complete runs. `train --records STORE` does this at the end of a run.
#[derive(Debug, Args)]
struct Add {
    /// Folder or URL of the store.
    store: String,
    /// Folders of runs, record.json files, or folders of several runs.
    #[arg(required = true)]
    runs: Vec<PathBuf>,
}

/// Show the stored records, their speed, and the deviation between runs and between sessions.
#[derive(Debug, Args)]
struct Show {
    /// Folder or URL of the store.
    store: String,
    /// Show only groups whose name contains this text, such as the id of a workload.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Copy the records of the current baseline to another store, for `yardstick compare DIR NEW`
    /// later. The copy also has the oldest record of each machine, which shows whether the machine
    /// has changed.
    #[arg(long, value_name = "DIR")]
    save: Option<String>,
    /// Copy at most this many records of each workload, world size and machine type, the newest
    /// first.
    #[arg(long, value_name = "N", requires = "save")]
    newest: Option<usize>,
    /// Exit with 0 if there is no record yet, as before the first run of a workload.
    #[arg(long)]
    allow_none: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Make the newest records the baseline, as after a deliberate change.
#[derive(Debug, Args)]
struct Promote {
    /// Folder or URL of the store.
    store: String,
    /// Number of records of each workload, world size and machine type.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    newest: u32,
    /// Promote only groups whose name, as in `baseline show`, contains this text.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

impl Baseline {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        match self.command {
            Command::Add(add) => add.run(),
            Command::Show(show) => show.run(),
            Command::Promote(promote) => promote.run(),
        }
    }
}

fn usage(error: impl std::fmt::Display) -> Failure {
    Failure::usage(error)
}

fn open(store: &str) -> Outcome<Baselines> {
    Baselines::open(storage::open, store.as_ref()).map_err(usage)?.ok_or_else(|| {
        usage(format!("{store}: no baselines\n  hint: `yardstick baseline add {store} RUN`"))
    })
}

impl Add {
    fn run(self) -> Outcome<ExitCode> {
        let store = Baselines::at(storage::open, &self.store).map_err(usage)?;
        let mut records = Vec::new();
        for run in &self.runs {
            records.extend(Record::read_all(run).map_err(usage)?);
        }
        for (path, record) in &records {
            if let Some(unusable) = record.unusable() {
                return Err(usage(format!("{}: {unusable}", path.display())));
            }
        }
        for (_, record) in &records {
            print(store.add(record).map_err(usage)?.display())?;
        }
        Ok(ExitCode::Done)
    }
}

impl Show {
    fn run(self) -> Outcome<ExitCode> {
        // A store that cannot be listed is an error on the first night, too.
        let store = if self.allow_none {
            Baselines::at(storage::open, &self.store).map_err(usage)?
        } else {
            open(&self.store)?
        };
        let found = self.found(&store).map_err(usage)?;
        if let Some(save) = &self.save {
            self.copy(&store, &found, save).map_err(usage)?;
        }
        let summary = |(key, kept): &(Key, Vec<StoredRecord>)| Summary::of(key.to_string(), kept);
        let summaries: Vec<_> = found.iter().filter_map(summary).collect();
        if self.json {
            return print_json(&summaries);
        }
        if summaries.is_empty() && self.allow_none {
            let of = if self.only.is_empty() { "" } else { " of " };
            return print(format!("{}: no baseline{of}{} yet", self.store, self.only));
        }
        print(table(&summaries))
    }

    /// Returns the records that are kept, by key.
    fn found(&self, store: &Baselines) -> verdict::Result<Vec<(Key, Vec<StoredRecord>)>> {
        let keys = store.keys()?.into_iter();
        let chosen = keys.filter(|key| key.to_string().contains(&self.only));
        chosen.map(|key| Ok((key.clone(), store.records(&key)?))).collect()
    }

    /// Copies the chosen records, or none, which is what the first run is compared with.
    fn copy(
        &self,
        from: &Baselines,
        found: &[(Key, Vec<StoredRecord>)],
        place: &str,
    ) -> verdict::Result<()> {
        if place == self.store {
            let text = format!("--save {place}: expected another store than that");
            return Err(verdict::Error::Usage(text));
        }
        let store = Baselines::at(storage::open, place)?;
        store.create()?;
        let newest = self.newest.unwrap_or(usize::MAX);
        found.iter().try_for_each(|(key, kept)| store.copy(from, key, kept, newest))
    }
}

impl Promote {
    fn run(self) -> Outcome<ExitCode> {
        let store = open(&self.store)?;
        let keys = store.keys().map_err(usage)?;
        let chosen: Vec<&Key> =
            keys.iter().filter(|key| key.to_string().contains(&self.only)).collect();
        if chosen.is_empty() {
            return Err(usage(format!("--only {}: no group of that name", self.only)));
        }
        for key in chosen {
            let count = store.promote(key, self.newest as usize).map_err(usage)?;
            print(match count {
                0 => format!("{key}: no comparable run, the baseline is unchanged"),
                count => {
                    let records = number_format::count(count, "complete run");
                    format!("{key}: the baseline is the newest {records}")
                }
            })?;
        }
        Ok(ExitCode::Done)
    }
}

fn table(summaries: &[Summary]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).force_no_tty();
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let percent = |share: Option<f64>| share.map_or("null".to_owned(), number_format::percent);
    let names = ["records", "baseline", "sessions", "tokens/s", "between runs", "sessions"];
    let names = names.map(|name| right(name.to_owned()));
    table.set_header([Cell::new("baseline")].into_iter().chain(names));
    for summary in summaries {
        table.add_row([
            Cell::new(&summary.key),
            right(summary.records.to_string()),
            right(summary.promoted.to_string()),
            right(summary.sessions.to_string()),
            right(number_format::thousands(summary.tokens_per_second)),
            right(percent(summary.deviation_of_runs)),
            right(percent(summary.deviation_of_sessions)),
        ]);
    }
    table
}
