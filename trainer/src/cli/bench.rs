//! `yardstick bench`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::train::Train;
use super::{print, print_json};
use crate::bench::Bench;
use crate::failure::{ExitCode, Failure, Outcome};
use crate::run::{self, Exit, RunOptions};

/// Run a workload several times in one job, and print its speed with intervals.
///
/// Under `mpirun` too. Every repeat trains from step 1 in a folder of its own in --out, and leaves
/// a record there: `yardstick compare` and `baseline add` take the folder of all. The flags are
/// those of `train`.
#[derive(Debug, Args)]
pub(super) struct BenchCommand {
    /// How often the workload is run.
    #[arg(long, value_name = "R", default_value = "3",
          value_parser = clap::value_parser!(u16).range(1..))]
    repeats: u16,
    /// Steps to measure in each, after a warm-up of up to half as many; --steps says how many there
    /// are in all.
    #[arg(long, value_name = "N", default_value = "100",
          value_parser = clap::value_parser!(u32).range(1..))]
    measure_steps: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) train: Train,
}

impl BenchCommand {
    pub(super) fn run(self) -> Outcome<Exit> {
        let options = self.train.options()?;
        let root = options
            .out
            .clone()
            .ok_or_else(|| Failure::usage("bench: expected --out DIR, for the runs' folders"))?;
        let measured = u64::from(self.measure_steps);
        let scheduled = options.config.workload.schedule.steps;
        let steps = options.steps.unwrap_or((measured + measured / 2).min(scheduled));
        let repeats: Vec<RunOptions> = (1..=self.repeats)
            .map(|repeat| RunOptions {
                out: Some(folder(&root, repeat)),
                steps: Some(steps),
                ..options.clone()
            })
            .collect();
        let exit = run::run(&repeats)?;
        if exit.rank == 0 && exit.code == ExitCode::Done {
            let folders: Vec<PathBuf> =
                (1..=self.repeats).map(|repeat| folder(&root, repeat)).collect();
            let bench = Bench::read(&folders, measured.min(steps))
                .map_err(|error| Failure::new(ExitCode::Internal, error))?;
            if self.json {
                print_json(&bench)?
            } else {
                print(&bench)?
            };
        }
        Ok(exit)
    }
}

fn folder(root: &Path, repeat: u16) -> PathBuf {
    root.join(format!("repeat-{repeat:02}"))
}
