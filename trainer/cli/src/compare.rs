//! `yardstick compare`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, Parser};

use super::{Arguments, Command, note, print, print_json};
use super::{VERSION, judged, storage};
use record::ExitCode;
use trainer::failure::{Failure, Outcome};
use verdict::Base;
use verdict::baseline::Key;
use verdict::compare::{
    Bundle, Comparison, Gate, Settings, Side, Turns, require_empty, require_side, share, take_turns,
};

/// Judge whether runs got worse, by how much, and in which phase and on which rank.
///
/// A side is the folder of a run, a record.json, a folder of several runs, or a baseline (see
/// `yardstick baseline`). Separate several of them by commas. Gated metrics decide; all others are
/// printed.
///
/// Exit codes: 0 better, same or not worse; 10 worse; 11 too noisy to exclude a regression; 12 not
/// comparable.
#[derive(Debug, Args)]
pub(super) struct Compare {
    /// Runs to compare with.
    #[arg(required_unless_present = "run", conflicts_with = "run")]
    base: Option<Places>,
    /// Runs to judge.
    #[arg(required_unless_present = "run")]
    new: Option<Places>,
    /// Run two commands in turn and compare them: this one, and the one after `--`. The shell runs
    /// each of them, with its own --out.
    #[arg(long, value_name = "COMMAND", requires = "with")]
    run: Option<String>,
    /// The second command.
    #[arg(last = true, requires = "run", value_name = "COMMAND")]
    with: Vec<String>,
    /// Number of runs of each command.
    #[arg(long, value_name = "N", default_value = "10", requires = "run",
          value_parser = clap::value_parser!(u16).range(3..))]
    rounds: u16,
    /// Keep the runs of --run in this folder [default: a temporary one].
    #[arg(long, value_name = "DIR", requires = "run")]
    keep: Option<PathBuf>,
    /// Largest change that does not matter, as in 3%.
    #[arg(long, value_name = "PERCENT", default_value = "3%", value_parser = share)]
    threshold: f64,
    /// Metric that decides, with its own threshold if one is given, as in checkpoint_rate=10%; may
    /// be repeated [default: tokens_per_second].
    #[arg(long = "gate", value_name = "METRIC[=PERCENT]")]
    gates: Vec<Gate>,
    /// Compare rates per rank: the sides may have different world sizes.
    #[arg(long)]
    per_rank: bool,
    /// Known standard deviation between sessions of this machine, for when there are too few
    /// sessions to measure it.
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    deviation: Option<f64>,
    /// Exit with 0 if the runs are too noisy to exclude a regression.
    #[arg(long)]
    allow_noisy: bool,
    /// Compare runs into which faults were injected, as in a drill.
    #[arg(long)]
    allow_injected: bool,
    /// Exit with 0 if a store of baselines has no record to compare with, as after the first run of
    /// a workload on new machines.
    #[arg(long, conflicts_with_all = ["run", "json"])]
    allow_no_baseline: bool,
    /// Save the inputs of the verdict in this folder, for `yardstick verify`.
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Checks the flags of a comparison that will run elsewhere.
///
/// # Errors
/// Exit code 2 for anything that is not a flag of `compare`.
pub(super) fn check_flags(flags: &[String]) -> Outcome<()> {
    let command = ["yardstick", "compare"].map(str::to_owned);
    let sides = ["BASE", "NEW"].map(str::to_owned);
    let words = command.into_iter().chain(flags.iter().cloned()).chain(sides);
    let refused =
        |text: &str| Failure::usage(format!("workflow.reporting.compare = {flags:?}: {text}"));
    match Arguments::try_parse_from(words) {
        Ok(Arguments { command: Command::Compare(compare) }) if compare.is_of_base_and_new() => {
            Ok(())
        }
        Ok(_) => Err(refused("expected flags alone: the workflow names both sides")),
        Err(error) => {
            let first = error.to_string();
            let first = first.lines().next().unwrap_or_default();
            Err(refused(first.trim_start_matches("error: ")))
        }
    }
}

/// One or more paths, separated by commas.
#[derive(Debug, Clone)]
struct Places(Vec<PathBuf>);

impl FromStr for Places {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let places: Vec<_> = text.split(',').map(PathBuf::from).collect();
        if places.iter().any(|place| place.as_os_str().is_empty()) {
            return Err("expected a path, found an empty text: is a variable not set?".to_owned());
        }
        Ok(Self(places))
    }
}

fn places(given: Option<&Places>) -> &[PathBuf] {
    &given.expect("required without --run").0
}

impl Compare {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        if let Some(folder) = &self.bundle {
            judged(require_empty("--bundle", folder))?;
        }
        let internal = |error| Failure::new(ExitCode::Internal, anyhow::Error::from(error));
        let temporary; // until the bundle has what is in it
        let [base, new] = match &self.run {
            Some(command) => {
                temporary = tempfile::tempdir().map_err(internal)?;
                self.in_turn(command, temporary.path())?
            }
            None => {
                let new = judged(Side::read(places(self.new.as_ref())))?;
                match judged(Base::read(storage::open, places(self.base.as_ref()), &new))? {
                    Base::Found(base) => [base, new],
                    Base::None { key, changed } => {
                        judged(require_side(&new, &self.settings()))?;
                        return self.without_baseline(&key, changed);
                    }
                }
            }
        };
        let settings = self.settings();
        let comparison = judged(Comparison::of(&base, &new, &settings))?;
        if let Some(folder) = &self.bundle {
            let bundle = Bundle::at(folder, VERSION);
            judged(bundle.write([&base, &new], &settings, &comparison))?;
        }
        if self.json {
            print_json(&comparison)?
        } else {
            print(&comparison)?
        };
        ExitCode::try_from(comparison.exit_code).map_err(|code| {
            Failure::new(ExitCode::Internal, anyhow::anyhow!("unknown exit code {code}"))
        })
    }

    /// Returns whether the sides are the two words after the flags.
    fn is_of_base_and_new(&self) -> bool {
        let is = |place: Option<&Places>, name: &str| {
            place.is_some_and(|place| place.0 == [PathBuf::from(name)])
        };
        is(self.base.as_ref(), "BASE") && is(self.new.as_ref(), "NEW")
    }

    fn settings(&self) -> Settings {
        let is_default = self.gates.is_empty();
        Settings {
            threshold: self.threshold,
            gates: if is_default { vec![Gate::primary()] } else { self.gates.clone() },
            per_rank: self.per_rank,
            deviation: self.deviation,
            allow_injected: self.allow_injected,
            allow_noisy: self.allow_noisy,
        }
    }

    /// Reports that there is nothing to compare with, as for the first run on new machines: an
    /// error, unless it was expected. Machines that have changed are not new.
    fn without_baseline(&self, key: &Key, changed: Option<String>) -> Outcome<ExitCode> {
        let Places(stores) = self.base.as_ref().expect("required without --run");
        let stores: Vec<_> = stores.iter().map(|path| path.display().to_string()).collect();
        let stores = stores.join(",");
        let refused = |text| {
            let error = anyhow::anyhow!("not comparable: {stores}: {text}");
            Err(Failure::new(ExitCode::NotComparable, error))
        };
        match changed {
            Some(changed) => refused(format!(
                "the machine of {key} has changed: {changed}\n  hint: if that is meant, `yardstick \
                 baseline add {stores} RUN` and `yardstick baseline promote {stores} --only {key} \
                 --newest 1` begin a new baseline"
            )),
            None if self.allow_no_baseline => {
                if let Some(bundle) = &self.bundle {
                    note(format!("{}: not written: nothing was compared", bundle.display()));
                }
                print(format!("{stores}: no baseline: it has no other comparable record of {key}"))
            }
            None => refused(format!(
                "expected other records of {key} that can be compared, found none\n  hint: \
                 --allow-no-baseline for the first run"
            )),
        }
    }

    fn in_turn(&self, base: &str, temporary: &Path) -> Outcome<[Side; 2]> {
        let folder = self.keep.as_deref().unwrap_or(temporary);
        judged(require_empty("--keep", folder))?;
        let turns = Turns { base, new: &self.with.join(" "), rounds: self.rounds.into(), folder };
        judged(take_turns(&turns, |round, side| note(format!("round {round}: {side}"))))
    }
}
