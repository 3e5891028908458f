//! `--profile-step N`: what each op of one step took, against what the cores and the memory can do.

use std::io::Write;
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use models::meter::{Count, Kind, Op, Role};
use models::workload::Compute;

use crate::config::{Config, Engine};
use crate::failure::{Failure, Outcome};
use crate::probe;
use crate::step::{Stepped, Trainer, Wish};

/// How long either rate is measured, where the run has not measured it anyway.
const PROBE: Duration = Duration::from_millis(250);

/// What is said where the step was done before.
pub(crate) const MISSED: &str = "there is no profile";

/// Refuses a step that no engine can measure or that never comes.
pub(crate) fn check(step: Option<u64>, config: &Config, last_step: u64) -> Outcome<()> {
    let Some(step) = step else { return Ok(()) };
    if config.settings.run.engine == Engine::Candle {
        let what = "--profile-step with run.engine = candle".to_owned();
        let hint = "--engine fused measures its ops".to_owned();
        return Err(models::Error::Unsupported { what, hint }.into());
    }
    if !(1..=last_step).contains(&step) {
        let expected = format!("expected 1 to the last step, {last_step}");
        return Err(Failure::usage(format!("--profile-step {step}: {expected}")));
    }
    Ok(())
}

/// What a rank with so many threads holds for a profile between two steps: one probe after the
/// other.
pub(crate) fn bytes(
    step: Option<u64>,
    compute: Compute,
    local_world: usize,
    threads: usize,
) -> usize {
    let triad_bytes = probe::triad_bytes(local_world);
    step.map_or(0, |_| triad_bytes.max(probe::matmul_bytes(compute, threads)))
}

/// What the machine can do, as measured in this run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rates {
    matmul_flops_per_second: f64,
    memory_bytes_per_second: f64,
}

impl Rates {
    /// Measures what is not known yet. Every rank of a machine does at the same time, as they also
    /// train.
    pub(crate) fn measure(
        compute: Compute,
        local_world: usize,
        matmul_flops_per_second: Option<f64>,
    ) -> Self {
        let matmul = matmul_flops_per_second
            .or_else(|| probe::matmul_flops_per_second(compute, PROBE))
            .unwrap_or(f64::NAN);
        let memory = probe::memory_bytes_per_second(local_world, PROBE);
        Self { matmul_flops_per_second: matmul, memory_bytes_per_second: memory }
    }
}

/// One step that is measured op by op.
#[derive(Debug)]
pub(crate) struct Profile {
    step: u64,
    is_told: bool,
    tokens: u64,
    wall: Duration,
    counts: Vec<(Op, Count)>,
}

impl Profile {
    /// Of this step; on one rank it is told.
    pub(crate) fn new(step: u64, is_told: bool) -> Self {
        Self { step, is_told, tokens: 0, wall: Duration::ZERO, counts: Vec::new() }
    }

    /// Whether it is this step that is measured.
    pub(crate) fn is_of(&self, step: u64) -> bool {
        self.step == step
    }

    /// Runs the step with every meter on.
    pub(crate) fn measure(&mut self, trainer: &mut Trainer<'_>, wish: Wish) -> Outcome<Stepped> {
        trainer.optimizer.meter.start();
        trainer.model.meter().into_iter().for_each(models::Meter::start);
        let start = Instant::now();
        let stepped = trainer.step(wish);
        self.wall = start.elapsed();
        self.tokens = trainer.tokens_per_step / trainer.collective.world() as u64;
        for meter in trainer.model.meter().into_iter().chain([&mut trainer.optimizer.meter]) {
            meter.stop();
            self.counts.extend(meter.counts());
        }
        stepped
    }

    /// Prints the table to stdout, where it is told; a reader that went away is no error.
    pub(crate) fn tell(&self, rates: &Rates) {
        if self.is_told {
            let _ = writeln!(std::io::stdout(), "{}", self.text(rates));
        }
    }

    /// Warns, where it would be told, that the run ended after step `last` and before this one.
    pub(crate) fn tell_missing(&self, last: u64) {
        if self.is_told {
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
        for (op, count) in &self.counts {
            table.add_row(self.row(&name(*op), count, rates));
        }
        let mut ops = Count::default();
        for (_, count) in &self.counts {
            ops.calls += count.calls;
            ops.time += count.time;
            ops.work += count.work;
        }
        table.add_row(self.row("all ops", &ops, rates));
        let rest = Count { time: self.wall.saturating_sub(ops.time), ..Count::default() };
        table.add_row(self.row("everything else", &rest, rates));
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        format!("{}\n\n{table}\n\n{}", self.title(), self.notes(rates))
    }

    fn title(&self) -> String {
        let ms = self.wall.as_secs_f64() * 1e3;
        let tokens_per_second = self.tokens as f64 / self.wall.as_secs_f64();
        format!("step {} on rank 0: {ms:.1} ms, {tokens_per_second:.0} tokens/s", self.step)
    }

    fn row(&self, name: &str, count: &Count, rates: &Rates) -> [String; 9] {
        let seconds = count.time.as_secs_f64();
        let work = count.work;
        let Rates { matmul_flops_per_second, memory_bytes_per_second } = rates;
        let (flops, bytes) = (work.flops / seconds, work.bytes / seconds);
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
            percent(seconds / self.wall.as_secs_f64()),
            shown(work.flops / 1e9, 4),
            shown(flops / 1e9, 1),
            shown(bytes / 1e9, 1),
            percent(flops / matmul_flops_per_second),
            percent(bytes / memory_bytes_per_second),
        ]
    }

    fn notes(&self, rates: &Rates) -> String {
        let sum = |of: fn(Op) -> bool| -> f64 {
            let counts = self.counts.iter().filter(|(op, _)| of(*op));
            counts.map(|(_, count)| count.work.flops).sum::<f64>() / 1e9
        };
        let matrices = sum(|(role, kind)| role != Role::Attention && kind != Kind::Again);
        let attention = sum(|(role, kind)| role == Role::Attention && kind != Kind::Again);
        format!(
            "measured here: matmul {:.1} GFLOP/s, memory {:.1} GB/s (a = b + s c)\n\
             FLOPs are of matrix products: {matrices:.4} GFLOP in matrices, {attention:.4} in \
             attention as computed\n(blocks of {} up to the diagonal, scores again in backward). \
             GB are useful traffic, each operand once.\nEpilogues (bias, residual, GELU and its \
             derivative) are in their product; `again` is what forward did not keep.",
            rates.matmul_flops_per_second / 1e9,
            rates.memory_bytes_per_second / 1e9,
            models::ops::attention::BLOCK
        )
    }
}

fn name((role, kind): Op) -> String {
    format!("{} {}", role.name(), kind.name()).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use models::ops::Work;

    use super::*;

    fn profile() -> Profile {
        let product = Count {
            calls: 12,
            time: Duration::from_millis(20),
            work: Work { flops: 4e9, bytes: 2e8 },
        };
        let pass = Count {
            calls: 1,
            time: Duration::from_millis(30),
            work: Work { flops: 0.0, bytes: 6e8 },
        };
        let counts =
            vec![((Role::Head, Kind::Weight), product), ((Role::AdamW, Kind::Whole), pass)];
        Profile { step: 7, is_told: true, tokens: 1000, wall: Duration::from_millis(100), counts }
    }

    #[test]
    fn rates_and_shares_by_hand() {
        let rates = Rates { matmul_flops_per_second: 4e11, memory_bytes_per_second: 5e10 };
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
