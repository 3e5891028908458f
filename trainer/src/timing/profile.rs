//! Profile of `--profile-step N`: the time of each op of one step, and its rate relative to the
//! measured rates of cores and memory.

use std::io::Write;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use device::Device;
use models::meter::{Count, Kind, Op, Role};
use models::{ModelConfig, weight_shape};
use record::phase::{Phase, PhaseTimes};
use record::{OpRecord, ProfileRecord};

use super::matmul_probe::MatmulProbe;
use super::memory_probe::MemoryProbe;
use crate::failure::Outcome;

/// Time for measuring each rate, if the run has not measured it yet.
const PROBE: Duration = Duration::from_millis(250);

/// Rates of the machine, measured in this run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rates {
    /// Not a number if it could not be measured, as the next one.
    matmul_flops_per_second: f64,
    memory_bytes_per_second: f64,
    /// True if a CUDA device computes.
    on_cuda: bool,
}

impl Rates {
    /// Measures the rates that are still unknown. All ranks of a machine measure at the same time,
    /// as they also train at the same time.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn measure(
        matmul: &mut MatmulProbe,
        device: &Device,
        local_world: usize,
    ) -> Outcome<Self> {
        if matmul.flops_per_second().is_none() {
            let _ = matmul.measure(device, PROBE)?;
        }
        let memory_bytes_per_second = match MemoryProbe::new(device, local_world)? {
            Some(mut memory) => memory.bytes_per_second(PROBE)?,
            None => f64::NAN,
        };
        Ok(Self {
            matmul_flops_per_second: matmul.flops_per_second().unwrap_or(f64::NAN),
            memory_bytes_per_second,
            on_cuda: matches!(device, Device::Cuda(_)),
        })
    }
}

/// Measurements of one step.
#[derive(Debug, Default)]
pub(crate) struct StepProfile {
    /// Tokens of this rank.
    tokens: u64,
    wall: Duration,
    counts: Vec<(Op, Count)>,
    /// First error by which times of ops are missing.
    incomplete: Option<String>,
}

impl StepProfile {
    /// Sets the time of the step, of so many tokens.
    pub(crate) fn set_time(&mut self, tokens: u64, wall: Duration) {
        self.tokens = tokens;
        self.wall = wall;
    }

    /// Sets the error by which times of ops are missing.
    pub(crate) fn set_incomplete(&mut self, error: &impl ToString) {
        self.incomplete.get_or_insert_with(|| error.to_string());
    }

    /// Adds the counts of a meter.
    pub(crate) fn extend(&mut self, counts: impl Iterator<Item = (Op, Count)>) {
        self.counts.extend(counts);
    }
}

/// Profile of the requested step.
#[derive(Debug)]
pub(crate) struct Profile {
    step: u64,
    /// True if this rank prints and records it: on one rank only.
    is_printed: bool,
    pub(crate) measured: StepProfile,
    /// Times of the phases of the step, once they are known.
    phases_ns: Option<PhaseTimes>,
}

impl Profile {
    /// Creates a profile of this step.
    pub(crate) fn new(step: u64, is_printed: bool) -> Self {
        Self { step, is_printed, measured: StepProfile::default(), phases_ns: None }
    }

    /// Returns whether to profile this step.
    pub(crate) fn is_of(&self, step: u64) -> bool {
        self.step == step
    }

    /// Sets the times of the phases of the step.
    pub(crate) fn set_phases(&mut self, phases_ns: PhaseTimes) {
        self.phases_ns = Some(phases_ns);
    }

    /// Returns the profile for the record, on the rank that records it.
    pub(crate) fn record(&self, rates: &Rates, model: &ModelConfig) -> Option<ProfileRecord> {
        let known = |rate: f64| rate.is_finite().then_some(rate);
        let op = |(op, count): &(Op, Count)| OpRecord {
            name: op_name(*op),
            phase: phase(*op),
            weight: weight_shape(model, op.0).filter(|_| count.work.flops > 0.0),
            calls: count.calls,
            ms: 1e3 * count.time.as_secs_f64(),
            flops: count.work.flops,
            bytes: count.work.bytes,
        };
        self.is_printed.then(|| ProfileRecord {
            step: self.step,
            phases_ns: self.phases_ns,
            ops: self.measured.counts.iter().map(op).collect(),
            matmul_flops_per_second: known(rates.matmul_flops_per_second),
            memory_bytes_per_second: known(rates.memory_bytes_per_second),
            incomplete: self.measured.incomplete.clone(),
        })
    }

    /// Prints the table to stdout; a closed stdout is not an error.
    pub(crate) fn print(&self, rates: &Rates) {
        if self.is_printed {
            let _ = writeln!(std::io::stdout(), "{}", self.text(rates));
        }
    }

    /// Warns that the run ended after step `last` and before this one.
    pub(crate) fn warn_missing(&self, last: u64) {
        if self.is_printed {
            let step = self.step;
            tracing::warn!("--profile-step {step}: no profile, the run ended after step {last}");
        }
    }

    fn text(&self, rates: &Rates) -> String {
        let mut table = Table::new();
        table.load_style(NOTHING).set_header([
            "op",
            "calls",
            "ms",
            "of step",
            "GFLOP",
            "GFLOP/s",
            "GB/s",
            "of matmul",
            "of memory",
        ]);
        for (op, count) in &self.measured.counts {
            table.add_row(self.row(&op_name(*op), count, rates));
        }
        let ops = self.all_ops();
        table.add_row(self.row("all ops", &ops, rates));
        let rest = Count { time: self.measured.wall.saturating_sub(ops.time), ..Count::default() };
        table.add_row(self.row("everything else", &rest, rates));
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        format!("{}\n\n{table}\n\n{}", self.title(), self.notes(rates))
    }

    fn all_ops(&self) -> Count {
        let mut all = Count::default();
        for (_, count) in &self.measured.counts {
            all.calls += count.calls;
            all.time += count.time;
            all.work += count.work;
        }
        all
    }

    fn title(&self) -> String {
        let ms = self.measured.wall.as_secs_f64() * 1e3;
        let tokens_per_second = self.measured.tokens as f64 / self.measured.wall.as_secs_f64();
        format!("step {} on rank 0: {ms:.1} ms, {tokens_per_second:.0} tokens/s", self.step)
    }

    fn row(&self, name: &str, count: &Count, rates: &Rates) -> [String; 9] {
        let seconds = count.time.as_secs_f64();
        let work = count.work;
        let Rates { matmul_flops_per_second, memory_bytes_per_second, .. } = rates;
        let flops = work.flops / seconds;
        let bytes = work.bytes / seconds;
        let shown = |number: f64, digits: usize| {
            if number > 0.0 { format!("{number:.digits$}") } else { "-".to_owned() }
        };
        let percent = |share: f64| {
            if share > 0.0 { format!("{:.1} %", 100.0 * share) } else { "-".to_owned() }
        };
        [
            name.to_owned(),
            shown(count.calls as f64, 0),
            format!("{:.3}", 1e3 * seconds),
            percent(seconds / self.measured.wall.as_secs_f64()),
            shown(work.flops / 1e9, 4),
            shown(flops / 1e9, 1),
            shown(bytes / 1e9, 1),
            percent(flops / matmul_flops_per_second),
            percent(bytes / memory_bytes_per_second),
        ]
    }

    fn notes(&self, rates: &Rates) -> String {
        let sum = |of: fn(Op) -> bool| -> f64 {
            let counts = self.measured.counts.iter().filter(|(op, _)| of(*op));
            counts.map(|(_, count)| count.work.flops).sum::<f64>() / 1e9
        };
        let matrices = sum(|(role, kind)| role != Role::Attention && kind != Kind::Recompute);
        let attention = sum(|(role, kind)| role == Role::Attention && kind != Kind::Recompute);
        format!(
            "measured on this machine: matmul {} GFLOP/s, memory {} GB/s ({})\n\
             FLOPs of matrix products: {matrices:.4} GFLOP in linear layers, {attention:.4} in \
             attention, counted\nin blocks of {} up to the diagonal, with five products in \
             backward. GB/s count each operand once.\nEpilogues (bias, residual, GELU and its \
             derivative) are part of their product; `recompute` is what forward did not keep.",
            giga(rates.matmul_flops_per_second),
            giga(rates.memory_bytes_per_second),
            if rates.on_cuda { "copies" } else { "a = b + s c" },
            models::ops::attention::BLOCK
        )
    }
}

/// A rate in billions, if it was measured.
fn giga(rate: f64) -> String {
    if rate.is_nan() { "unknown".to_owned() } else { format!("{:.1}", rate / 1e9) }
}

/// Phase in which an op is called. The loss is computed in forward, with its gradient where one
/// kernel computes both.
fn phase((role, kind): Op) -> Phase {
    match (role, kind) {
        (Role::GradientNorm | Role::AdamW | Role::UpdateNorm, _) => Phase::Optimizer,
        (_, Kind::Forward | Kind::Whole) => Phase::Forward,
        (_, Kind::Recompute | Kind::Input | Kind::Weight | Kind::Bias | Kind::Backward) => {
            Phase::Backward
        }
    }
}

/// Name of an op in tables.
pub(crate) fn op_name((role, kind): Op) -> String {
    format!("{} {}", role.name(), kind.name()).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use models::meter::Work;

    use super::*;

    fn profile() -> Profile {
        let product = Count {
            calls: 12,
            time: Duration::from_millis(20),
            work: Work { flops: 4e9, bytes: 2e8 },
            ..Count::default()
        };
        let pass = Count {
            calls: 1,
            time: Duration::from_millis(30),
            work: Work { flops: 0.0, bytes: 6e8 },
            ..Count::default()
        };
        let counts =
            vec![((Role::Head, Kind::Weight), product), ((Role::AdamW, Kind::Whole), pass)];
        let wall = Duration::from_millis(100);
        let measured = StepProfile { tokens: 1000, wall, counts, incomplete: None };
        Profile { step: 7, is_printed: true, measured, phases_ns: None }
    }

    #[test]
    fn the_record_has_every_op_with_its_phase_and_weight() {
        let model = models::presets::load("smoke").unwrap().model;
        let rates = Rates {
            matmul_flops_per_second: 4e11,
            memory_bytes_per_second: f64::NAN,
            on_cuda: true,
        };
        let mut profile = profile();
        profile.set_phases(PhaseTimes { forward: 7, ..PhaseTimes::default() });
        let found = profile.record(&rates, &model).unwrap();
        assert_eq!((found.step, found.phases_ns.map(|phases| phases.forward)), (7, Some(7)));
        assert_eq!(found.memory_bytes_per_second, None, "it could not be measured");
        let [head, adamw] = &found.ops[..] else { panic!("{found:?}") };
        let weight = record::WeightShape { inputs: model.width, outputs: model.vocabulary };
        assert_eq!((head.name.as_str(), head.phase), ("head dW", Phase::Backward));
        assert_eq!((head.weight, head.ms, head.flops), (Some(weight), 20.0, 4e9));
        assert_eq!((adamw.phase, adamw.weight, adamw.bytes), (Phase::Optimizer, None, 6e8));
        let on_another_rank = Profile { is_printed: false, ..profile };
        assert_eq!(on_another_rank.record(&rates, &model), None);
    }

    #[test]
    fn rates_and_shares_by_hand() {
        let rates =
            Rates { matmul_flops_per_second: 4e11, memory_bytes_per_second: 5e10, on_cuda: false };
        let text = profile().text(&rates);
        let cells = |name: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
            let line = line.trim_start().trim_start_matches(name).replace(" %", "%");
            line.split_whitespace().map(str::to_owned).collect()
        };
        let product = ["12", "20.000", "20.0%", "4.0000", "200.0", "10.0", "50.0%", "20.0%"];
        assert_eq!(cells("head dW"), product);
        assert_eq!(cells("AdamW"), ["1", "30.000", "30.0%", "-", "-", "20.0", "-", "40.0%"]);
        assert_eq!(cells("everything else"), ["-", "50.000", "50.0%", "-", "-", "-", "-", "-"]);
        assert!(text.starts_with("step 7 on rank 0: 100.0 ms, 10000 tokens/s"), "{text}");
        assert!(text.contains("matmul 400.0 GFLOP/s, memory 50.0 GB/s"), "{text}");
    }
}
