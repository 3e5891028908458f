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
use verdict::published::{self, PublishedComparison};

/// Judge whether runs got worse, by how much, and in which phase and on which rank.
///
/// A side is the folder of a run, a record.json, a folder of several runs, or a baseline (see
/// `yardstick baseline`). Separate several of them by commas. Gated metrics decide; all others are
/// printed.
///
/// BASE may also be published:DEVICE/MODEL/PRECISION, as in published:h100/llama3.1-8b/bf16: the
/// run's throughput is printed beside published figures of the same work. That is never a gate: 0
/// if the work is the same, else 12. An unknown key lists all keys.
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
    #[arg(long, value_name = "PERCENT", default_value = THRESHOLD, value_parser = share)]
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

/// Default of --threshold.
const THRESHOLD: &str = "3%";

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
        if let Some(key) = self.published_key()? {
            return self.beside_published(&key);
        }
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

    /// Returns the key of published figures, if BASE names some.
    fn published_key(&self) -> Outcome<Option<String>> {
        let Some(Places(base)) = &self.base else { return Ok(None) };
        let keys = base.iter().filter_map(|place| published::key(place.to_str()?));
        let keys: Vec<String> = keys.map(str::to_owned).collect();
        match &keys[..] {
            [] => Ok(None),
            [key] if base.len() == 1 => Ok(Some(key.clone())),
            [key, ..] => Err(Failure::usage(format!(
                "published:{key}: expected no other base with published figures"
            ))),
        }
    }

    /// Prints a run beside published figures.
    fn beside_published(&self, key: &str) -> Outcome<ExitCode> {
        if let Some(flag) = self.flag_of_verdicts() {
            return Err(Failure::usage(format!(
                "{flag}: has no effect with published:{key}, which gives no verdict"
            )));
        }
        let compared = judged(PublishedComparison::of(key, places(self.new.as_ref())))?;
        if self.json { print_json(&compared) } else { print(&compared) }
    }

    /// Returns a given flag that only a comparison with a verdict has.
    fn flag_of_verdicts(&self) -> Option<&'static str> {
        let is_given = [
            ("--threshold", share(THRESHOLD) != Ok(self.threshold)),
            ("--gate", !self.gates.is_empty()),
            ("--per-rank", self.per_rank),
            ("--deviation", self.deviation.is_some()),
            ("--allow-noisy", self.allow_noisy),
            ("--allow-injected", self.allow_injected),
            ("--allow-no-baseline", self.allow_no_baseline),
            ("--bundle", self.bundle.is_some()),
        ];
        is_given.into_iter().find_map(|(flag, is_given)| is_given.then_some(flag))
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

#[cfg(test)]
mod tests {
    use models::config::ModelConfig;
    use models::{flops::flops_per_token, presets};
    use record::peaks::PEAKS;
    use serde_json::json;
    use verdict::published::{Convention, Published, Row};

    /// FLOPs per token of a published row by its own figures.
    fn published_flops_per_token(row: &Row, driver_name: &str) -> Option<f64> {
        let peak = PEAKS.iter().find(|peak| peak.name == driver_name).unwrap();
        let peak =
            if row.precision == "bf16" { Some(peak.bf16_teraflops) } else { peak.fp8_teraflops };
        let teraflops = row.teraflops.or_else(|| Some(row.mfu? * peak?))?;
        Some(1e12 * teraflops / row.tokens_per_second)
    }

    /// Published rates divided by published tokens are FLOPs per token in the convention of their
    /// row, and not in the other one.
    #[test]
    fn conventions_of_published_rows_are_those_of_their_figures() {
        for published in Published::all() {
            let preset = match published.shape["family"].as_str().unwrap() {
                "llama" => "llama3-8b",
                "gpt" => "gpt3-175b",
                _ => continue,
            };
            let preset = presets::load(preset).unwrap();
            let mut model = json!(preset.model);
            for (key, value) in &published.shape {
                model[key] = value.clone();
            }
            let model: ModelConfig = serde_json::from_value(model).unwrap();
            let flops = flops_per_token(&model, preset.batch.sequence_tokens);
            for row in &published.rows {
                let Some(found) = published_flops_per_token(row, &published.driver_name) else {
                    assert_eq!(row.convention, Convention::NotStated, "{row:?}");
                    continue;
                };
                let expected = match row.convention {
                    Convention::Causal => [flops.causal, flops.full],
                    Convention::Full => [flops.full, flops.causal],
                    Convention::NotStated => panic!("{row:?}: it can be found"),
                };
                let [own, other] = expected.map(|flops| (found / flops - 1.0).abs());
                assert!(own < 0.025 && own < other, "{row:?}: {own} and {other}");
            }
        }
    }
}
