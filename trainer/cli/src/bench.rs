//! `yardstick bench`.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use clap::Args;

use super::train::Train;
use super::{print, print_json};
use record::ExitCode;
use trainer::failure::{Failure, Outcome};
use trainer::run::{self, Exit, RunOptions, dated};
use verdict::repeats::Bench;

/// Run a workload several times in one job, and print its speed with intervals.
///
/// Also runs under `mpirun`. Every repeat trains from step 1 in its own folder in --out, until it
/// has measured enough steps after the warm-up, and leaves a record there. `yardstick compare` and
/// `baseline add` take the folder of all repeats. An interrupted bench resumes in its folder; a
/// complete one is refused. The flags are those of `train`.
#[derive(Debug, Args)]
pub(super) struct BenchCommand {
    /// Number of repeats.
    #[arg(long, value_name = "R", default_value = "3",
          value_parser = clap::value_parser!(u16).range(1..))]
    repeats: u16,
    /// Number of steps to measure in each repeat once step times have settled. A repeat ends after
    /// four times as many steps (at least 168) or at the end of the schedule, even if it has
    /// measured fewer. With --steps, each repeat has exactly that many steps in all.
    #[arg(long, value_name = "N", default_value = "100",
          value_parser = clap::value_parser!(u32).range(1..))]
    measure_steps: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) train: Train,
}

/// Steps, for each that should be measured, after which a repeat stops waiting for a steady state.
const STEPS_PER_MEASURED: u64 = 4;

/// Fewest steps that can show whether step times have settled.
const SETTLING_STEPS_MIN: u64 = 42;

impl BenchCommand {
    /// Returns the folders of the runs, where a folder for them is named.
    pub(super) fn folders(&self) -> Option<Vec<PathBuf>> {
        Some(folders_in(self.train.out()?, self.repeats).collect())
    }

    pub(super) fn run(self) -> Outcome<Exit> {
        let options = self.train.options()?;
        let root = options.out.clone().unwrap_or_else(|| new_root(&options.config.name));
        let wanted = u64::from(self.measure_steps);
        let mut repeats: Vec<RunOptions> = folders_in(&root, self.repeats)
            .map(|folder| until_measured(&options, wanted, folder))
            .collect();
        if let Some(last) = repeats.last_mut() {
            last.refuse_complete = true; // the others may be complete where a bench resumes
        }
        let exit = run::run(&repeats)?;
        if exit.rank == 0 && exit.code == ExitCode::Done {
            let folders: Vec<PathBuf> = folders_in(&root, self.repeats).collect();
            let bench = Bench::read(&folders, wanted)
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

/// Returns the folder of this bench, as `runs/bench-smoke-2026-11-25T02-00-07Z-3f9a21c7`. Repeats
/// are created only when they begin, so the name alone keeps those of two benches apart.
fn new_root(workload: &str) -> PathBuf {
    let random = RandomState::new().hash_one(std::process::id()) as u32;
    Path::new("runs").join(format!("{}-{random:08x}", dated(&format!("bench-{workload}"))))
}

/// Returns the options of a repeat that ends after so many steady steps, unless its steps are
/// given.
fn until_measured(options: &RunOptions, wanted: u64, out: PathBuf) -> RunOptions {
    let scheduled = options.config.workload.schedule.steps;
    let bound = STEPS_PER_MEASURED * wanted.max(SETTLING_STEPS_MIN);
    RunOptions {
        out: Some(out),
        steps: options.steps.or(Some(bound.min(scheduled))),
        steady_steps: options.steps.is_none().then_some(wanted),
        ..options.clone()
    }
}

fn folders_in(root: &Path, repeats: u16) -> impl Iterator<Item = PathBuf> {
    (1..=repeats).map(move |repeat| root.join(format!("repeat-{repeat:02}")))
}
