//! `yardstick fingerprint`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{judged, print};
use record::ExitCode;
use record::golden::GoldenCheck;
use trainer::failure::Outcome;
use verdict::golden;

/// Make and check golden losses, which show whether a machine computes a workload correctly.
///
/// A run compares its losses with the golden ones of its workload, if there are any. A miss voids
/// the run, and ends it with exit code 4.
#[derive(Debug, Args)]
pub(super) struct Fingerprint {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Make(Make),
    Check(Check),
}

/// Print the golden losses of trusted runs, as TOML for `--set telemetry.golden=FILE`.
///
/// Several runs of the workload, on other machines or numbers of ranks, show the effect of
/// rounding: the tolerance is ten times as much, and at least 0.002 nats in f32 and 0.02 in bf16.
/// The bits of each run are kept with its device, topology and NCCL settings.
#[derive(Debug, Args)]
struct Make {
    /// Folders of runs.
    #[arg(required = true)]
    runs: Vec<PathBuf>,
}

/// Compare the losses of a run with the golden ones; exit code 4 after a miss, 12 if there are none
/// that are comparable.
#[derive(Debug, Args)]
struct Check {
    /// Folder of a run.
    run: PathBuf,
    /// File of golden losses [default: those of built-in workloads].
    #[arg(long, value_name = "FILE")]
    golden: Option<PathBuf>,
}

impl Fingerprint {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        match self.command {
            Command::Make(Make { runs }) => print(judged(golden::make(&runs))?.trim_end()),
            Command::Check(Check { run, golden }) => check(&run, golden.as_deref()),
        }
    }
}

fn check(run: &std::path::Path, file: Option<&std::path::Path>) -> Outcome<ExitCode> {
    let shown = run.display();
    let found = judged(golden::check(run, file))?;
    let GoldenCheck { compared, worst_nats, tolerance_nats, missed_step, .. } = found;
    let bits = match (found.same_bits, found.other_order) {
        (Some(true), _) => "; same bits".to_owned(),
        (Some(false), _) => "; other bits, although the order of sums is the same".to_owned(),
        (None, Some(differing)) => format!("; bits not comparable: {differing}"),
        (None, None) => String::new(),
    };
    let verdict = missed_step.map_or("right".to_owned(), |step| format!("wrong at step {step}"));
    print(format!(
        "{shown}: {verdict}: {compared} losses compared, at most {worst_nats:.6} nats from the \
         golden ones (tolerance {tolerance_nats}){bits}"
    ))?;
    Ok(if missed_step.is_some() { ExitCode::Numerical } else { ExitCode::Done })
}
