//! Gap of a profiled step, as `yardstick report --gap` prints it, and its growth by a planted loss.

use serde_json::Value;

use crate::folder::Folder;
use crate::process::run;

/// Gap of the profiled step of a run.
#[derive(Debug)]
pub struct StepGap(Value);

impl StepGap {
    /// Reports the gap of a run. `flags` are those of links.
    #[track_caller]
    pub fn of(folder: &Folder, flags: &[&str]) -> Self {
        let path = folder.text();
        let command = [&["report", "--gap", "--json"], flags, &[&path]].concat();
        Self(serde_json::from_str(&run(&command).expect(0).stdout).unwrap())
    }

    /// Number of the profiled step.
    pub fn step(&self) -> u64 {
        self.0["step"].as_u64().unwrap()
    }

    /// Time of the profiled step.
    pub fn step_ms(&self) -> f64 {
        self.0["step_ms"].as_f64().unwrap()
    }

    /// Rows of these phases, or of all others.
    fn rows(&self, phases: &[&str], are_those: bool) -> impl Iterator<Item = &Value> {
        let rows = self.0["rows"].as_array().unwrap().iter();
        rows.filter(move |row| phases.contains(&row["phase"].as_str().unwrap()) == are_those)
    }
}

/// Growth of the gap of a step.
#[derive(Debug)]
pub struct GapGrowth {
    /// Loss that was planted.
    pub planted_ms: f64,
    /// Growth of the gaps of the rows in which it belongs; `None` if one is not known under the
    /// limit. One that is not known without it counts as zero, which shows as too much growth.
    pub right_ms: Option<f64>,
    /// Growth of the times of all other rows.
    pub other_ms: f64,
}

/// Largest error, as a share of the planted loss.
const ERROR_MAX: f64 = 0.1;

impl GapGrowth {
    /// Compares a step with the same under a limit, which costs so much in these phases.
    pub fn new(free: &StepGap, limited: &StepGap, phases: &[&str], planted_ms: f64) -> Self {
        let gap_ms = |row: &Value| row["gap_ms"].as_f64();
        let of_others = |gap: &StepGap| -> f64 {
            gap.rows(phases, false).map(|row| row["ms"].as_f64().unwrap()).sum()
        };
        let before_ms: f64 = free.rows(phases, true).filter_map(gap_ms).sum();
        let after_ms: Option<f64> = limited.rows(phases, true).map(gap_ms).sum();
        Self {
            planted_ms,
            right_ms: after_ms.map(|after_ms| after_ms - before_ms),
            other_ms: of_others(limited) - of_others(free),
        }
    }

    fn is_planted(&self) -> bool {
        let is_small = |ms: f64| ms.abs() <= ERROR_MAX * self.planted_ms;
        self.right_ms.is_some_and(|ms| is_small(ms - self.planted_ms)) && is_small(self.other_ms)
    }
}

/// Times to measure: another process of the machine may disturb any step.
const ROUNDS_MAX: usize = 5;

/// Fails unless the gaps of the right rows grow by the planted loss, and no other row does, in one
/// of a few rounds.
#[track_caller]
pub fn assert_gap_grows_as_planted(measure: impl Fn() -> GapGrowth) {
    let mut all: Vec<GapGrowth> = Vec::new();
    while all.len() < ROUNDS_MAX && !all.last().is_some_and(GapGrowth::is_planted) {
        all.push(measure());
    }
    assert!(all.last().unwrap().is_planted(), "{all:#?}");
}
