//! Golden losses from trusted runs, and the comparison of a run's losses with them.

use std::path::Path;

use record::Compute;

use crate::error::{Error, Result};
use record::golden::{ExactLosses, Found, Golden, GoldenCheck, GoldenKey, GoldenWatch};
use record::{Record, SumOrder, read_steps, steps_path};

/// Ratio of a tolerance to the largest difference between the runs.
const TOLERANCE_PER_SPREAD: f64 = 10.0;

/// Minimum tolerance for rounding, in nats: runs may be too alike to show it.
fn least_tolerance_nats(compute: Compute) -> f64 {
    match compute {
        Compute::F32 => 0.002,
        Compute::Bf16 => 0.02,
    }
}

/// Loss of a step on rank 0.
#[derive(Debug, Clone, Copy)]
struct StepLoss {
    step: u64,
    loss: f64,
    tokens: u64,
}

fn losses(dir: &Path) -> Result<Vec<StepLoss>> {
    let lines = read_steps(&steps_path(dir, 0))?;
    let loss = |line: std::result::Result<record::StepLine, _>| -> Result<StepLoss> {
        let sample = line?.sample;
        Ok(StepLoss { step: sample.step, loss: sample.loss, tokens: sample.tokens })
    };
    let losses: Vec<StepLoss> = lines.map(loss).collect::<Result<_>>()?;
    if losses.is_empty() {
        return Err(Error::Usage(format!("{}: expected a run with steps", dir.display())));
    }
    Ok(losses)
}

fn device(record: &Record) -> &'static str {
    let is_cuda = record.ranks.iter().any(|rank| rank.device.is_some());
    if is_cuda { "cuda" } else { "cpu" }
}

/// Returns whether a step is kept: 1, 2, 5, 10, 20, 50, and so on.
fn is_kept(step: u64) -> bool {
    let mut leading = step;
    while leading >= 10 && leading.is_multiple_of(10) {
        leading /= 10;
    }
    [1, 2, 5].contains(&leading)
}

/// Builds the text of a file with the golden losses of one workload from one or more of its runs:
/// the losses of the first run, with a tolerance that the others are well within, and the bits of
/// each order of sums, from runs with the steps of the first.
///
/// # Errors
/// Exit code 2 when the runs are not of the same workload, device and batch, or differ in bits
/// although they add up in the same order.
pub fn make(runs: &[impl AsRef<Path>]) -> Result<String> {
    let mut golden: Option<Golden> = None;
    let mut spread: f64 = 0.0;
    for run in runs {
        let run = run.as_ref();
        let record = Record::read(run).map_err(|error| Error::Usage(error.to_string()))?;
        let own = of_run(&record, &losses(run)?);
        match &mut golden {
            None => golden = Some(own),
            Some(first) if first.key() != own.key() => {
                let shown = run.display();
                return Err(Error::Usage(format!(
                    "{shown}: expected a run of {} ({}) on {} with {} tokens per step, found {} \
                     ({}) on {} with {}",
                    first.workload,
                    first.workload_id,
                    first.device,
                    first.tokens_per_step,
                    own.workload,
                    own.workload_id,
                    own.device,
                    own.tokens_per_step
                )));
            }
            Some(first) => {
                let all = own.steps.iter().zip(&own.losses);
                let differences = all.filter_map(|(step, loss)| first.difference(*step, *loss));
                spread = differences.fold(spread, f64::max);
                if own.steps == first.steps {
                    add_bits(&mut first.exact, own.exact, run)?;
                }
            }
        }
    }
    let Some(mut golden) = golden else { return Err(Error::Usage("expected a run".to_owned())) };
    let tolerance = golden.tolerance_nats.max(TOLERANCE_PER_SPREAD * spread);
    golden.tolerance_nats = (tolerance * 1e4).ceil() / 1e4;
    golden.to_file().map_err(Error::Usage)
}

/// Adds the bits of a run, unless they are known.
fn add_bits(known: &mut Vec<ExactLosses>, own: Vec<ExactLosses>, run: &Path) -> Result<()> {
    for exact in own {
        match known.iter().find(|known| known.order == exact.order) {
            None => known.push(exact),
            Some(known) if known.losses == exact.losses => {}
            Some(_) => {
                return Err(Error::Usage(format!(
                    "{}: expected the bits of an earlier run, which adds up in the same order, \
                     found others",
                    run.display()
                )));
            }
        }
    }
    Ok(())
}

fn of_run(record: &Record, losses: &[StepLoss]) -> Golden {
    let kept: Vec<_> = losses.iter().filter(|line| is_kept(line.step)).collect();
    let is_bf16 = record.workload.config["precision"]["compute"] == "bf16";
    let compute = if is_bf16 { Compute::Bf16 } else { Compute::F32 };
    Golden {
        workload: record.workload.name.clone(),
        workload_id: record.workload.id.clone(),
        device: device(record).to_owned(),
        tokens_per_step: losses[0].tokens,
        tolerance_nats: least_tolerance_nats(compute),
        steps: kept.iter().map(|line| line.step).collect(),
        // Rounded to more digits than any tolerance needs.
        losses: kept.iter().map(|line| (line.loss * 1e7).round() / 1e7).collect(),
        exact: vec![ExactLosses {
            losses: kept.iter().map(|line| line.loss).collect(),
            order: SumOrder::of(record),
        }],
    }
}

/// Compares all steps of a run with golden losses.
///
/// # Errors
/// Exit code 12 without golden losses that are comparable, 2 when the run or the file cannot be
/// read.
pub fn check(run: &Path, file: Option<&Path>) -> Result<GoldenCheck> {
    let record = Record::read(run).map_err(|error| Error::Usage(error.to_string()))?;
    let losses = losses(run)?;
    let key = GoldenKey {
        workload_id: &record.workload.id,
        device: device(&record),
        tokens_per_step: losses[0].tokens,
    };
    let not_comparable =
        |reason: &str| Error::NotComparable(format!("{}: not comparable: {reason}", run.display()));
    let golden = match Golden::find(file, &record.workload.name, key)? {
        Found::Golden(golden) => golden,
        Found::NotComparable(differing) => return Err(not_comparable(&differing)),
        Found::Nothing => return Err(not_comparable("there are no golden losses for it")),
    };
    let mut watch = GoldenWatch::new(golden);
    // A miss is recorded in the check.
    let _ =
        losses.iter().try_for_each(|line| watch.observe(line.step, line.loss, std::iter::empty()));
    Ok(watch.check(&SumOrder::of(&record)))
}
