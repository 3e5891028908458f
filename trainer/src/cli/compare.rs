//! `yardstick compare`.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use super::{note, print, print_json};
use crate::compare::{Comparison, Settings, Side, Turns, Verdict, take_turns};
use crate::failure::{ExitCode, Failure, Outcome};

/// Say whether runs got worse, by how much, and which phase and rank it is.
///
/// A side is the folder of a run, a record.json, a folder of several runs, or a baseline (see
/// `yardstick baseline`); of several, separate them by commas. Exit code 10 says that something got
/// worse.
#[derive(Debug, Args)]
pub(super) struct Compare {
    /// What to compare with.
    #[arg(required_unless_present = "run", conflicts_with = "run")]
    base: Option<Places>,
    /// What to judge.
    #[arg(required_unless_present = "run")]
    new: Option<Places>,
    /// Run two commands in turn and compare them: this one, and the one after `--`. Each is for the
    /// shell, and gets an --out of its own.
    #[arg(long, value_name = "COMMAND", requires = "with")]
    run: Option<String>,
    /// The second command.
    #[arg(last = true, requires = "run", value_name = "COMMAND")]
    with: Vec<String>,
    /// How often each command runs.
    #[arg(long, value_name = "N", default_value = "10", requires = "run",
          value_parser = clap::value_parser!(u16).range(3..))]
    rounds: u16,
    /// Keep the runs of --run in this folder [default: a temporary one].
    #[arg(long, value_name = "DIR", requires = "run")]
    keep: Option<PathBuf>,
    /// A smaller change does not matter, as in 3%.
    #[arg(long, value_name = "PERCENT", default_value = "3%", value_parser = share)]
    threshold: f64,
    /// The same for one metric, as in checkpoint_rate=10%; may be repeated.
    #[arg(long, value_name = "METRIC=PERCENT", value_parser = named_share)]
    metric_threshold: Vec<(String, f64)>,
    /// Compare rates per rank: the sides may have different world sizes.
    #[arg(long)]
    per_rank: bool,
    /// Standard deviation between sessions of this machine, if it is known and there are too few
    /// sessions to see it.
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    deviation: Option<f64>,
    /// Exit with 11 if it is too noisy to say.
    #[arg(long)]
    strict: bool,
    /// Exit with 0 where a store of baselines has no record to compare with, as after the first run
    /// of a workload on a machine.
    #[arg(long, conflicts_with_all = ["run", "json"])]
    allow_no_baseline: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One or more paths, separated by commas.
#[derive(Debug, Clone)]
struct Places(Vec<PathBuf>);

impl FromStr for Places {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.split(',').map(PathBuf::from).collect()))
    }
}

/// A share, as in `3%` or `0.03`.
fn share(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 0.01));
    let share = number.trim().parse::<f64>().ok().map(|number| number * unit);
    let share = share.filter(|share| share.is_finite() && (0.0..1.0).contains(share));
    share.ok_or_else(|| format!("{text:?}: expected a share, as in 3%"))
}

fn named_share(text: &str) -> Result<(String, f64), String> {
    let expected = || format!("{text:?}: expected METRIC=PERCENT, as in checkpoint_rate=10%");
    let (name, threshold) = text.split_once('=').ok_or_else(expected)?;
    Ok((name.to_owned(), share(threshold)?))
}

fn places(given: Option<&Places>) -> &[PathBuf] {
    &given.expect("required without --run").0
}

impl Compare {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let [base, new] = match &self.run {
            Some(command) => self.in_turn(command)?,
            None => {
                let new = Side::read(places(self.new.as_ref()))?;
                let base = Side::read_base(places(self.base.as_ref()), &new)?;
                if base.is_empty() {
                    return self.without_baseline(&new);
                }
                [base, new]
            }
        };
        let settings = Settings {
            threshold: self.threshold,
            thresholds: self.metric_threshold,
            per_rank: self.per_rank,
            deviation: self.deviation,
        };
        let comparison = Comparison::of(&base, &new, &settings)?;
        if self.json {
            print_json(&comparison)?
        } else {
            print(&comparison)?
        };
        Ok(match comparison.verdict {
            Verdict::Worse => ExitCode::Regression,
            Verdict::TooNoisy if self.strict => ExitCode::TooNoisy,
            _ => ExitCode::Done,
        })
    }

    /// The first run has nothing to be compared with: an error, unless it was expected.
    fn without_baseline(&self, new: &Side) -> Outcome<ExitCode> {
        let Places(stores) = self.base.as_ref().expect("required without --run");
        let stores: Vec<_> = stores.iter().map(|path| path.display().to_string()).collect();
        let stores = stores.join(",");
        let key = new.key().map_or(String::new(), |key| key.to_string());
        if self.allow_no_baseline {
            return print(format!("{stores}: no baseline: there are no other records of {key}"));
        }
        Err(Failure::usage(format!(
            "{stores}: expected records of {key}, found none\n  hint: --allow-no-baseline for the \
             first run"
        )))
    }

    fn in_turn(&self, base: &str) -> Outcome<[Side; 2]> {
        let internal = |error| Failure::new(ExitCode::Internal, anyhow::Error::from(error));
        let temporary = tempfile::tempdir().map_err(internal)?;
        let folder = self.keep.as_deref().unwrap_or(temporary.path());
        let turns = Turns { base, new: &self.with.join(" "), rounds: self.rounds.into(), folder };
        take_turns(&turns, |round, side| note(format!("round {round}: {side}")))
    }
}
