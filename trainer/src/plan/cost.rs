//! Cost of a step on a GPU: launches, FLOPs and bytes of each op, counted from the calls, and the
//! time that they would take at given rates.

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use device::cuda::Launched;
use models::meter::Count;
use serde::Serialize;

use crate::config::Config;
use crate::failure::{Failure, Outcome};
use crate::step::{DryStep, dry_step};
use crate::timing::profile::op_name;
use record::text::number_format::thousands;

/// Rates at which times are computed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ceilings {
    /// FLOP/s of matrix products.
    pub matmul_flops_per_second: f64,
    /// Bytes/s read from memory and written to it.
    pub memory_bytes_per_second: f64,
}

impl Ceilings {
    /// The time at these rates, where products and memory overlap.
    fn seconds(&self, flops: f64, bytes: f64) -> f64 {
        (flops / self.matmul_flops_per_second).max(bytes / self.memory_bytes_per_second)
    }
}

/// Cost of one rank's step.
#[derive(Debug, Clone, Serialize)]
pub struct StepCost {
    /// Tokens of the rank.
    pub tokens: u64,
    /// Rates of the times.
    pub ceilings: Ceilings,
    /// Ops in the order of their roles.
    pub ops: Vec<OpCost>,
    /// Sum of all ops.
    pub total: OpCost,
}

/// Cost of all calls of one op in a step.
#[derive(Debug, Clone, Serialize)]
pub struct OpCost {
    /// Name, as in `--profile-step`.
    pub op: String,
    /// Calls.
    pub calls: u64,
    /// Kernels, products, copies and fills that were launched.
    pub launches: u64,
    /// Multiplications and additions of matrix products, without those that are only masked out.
    pub flops: f64,
    /// Bytes of all operands of these launches, each read or written once a launch.
    pub bytes: f64,
    /// Time at these rates.
    pub seconds: f64,
}

impl StepCost {
    /// Counts a step of one of `world` ranks.
    ///
    /// # Errors
    /// Exit code 2 without `run.device = cuda`, and for a workload that the engine does not compute
    /// on a GPU.
    pub fn of(config: &Config, world: usize, ceilings: Ceilings) -> Outcome<Self> {
        if !config.is_on_cuda() {
            return Err(Failure::usage("--cost: expected --device cuda"));
        }
        let DryStep { tokens, counts, launched } = dry_step(config, world)?;
        let mut of_ops = Launched::default();
        counts.iter().for_each(|(_, count)| of_ops += count.launched);
        let rest = Count { launched: launched.since(of_ops), ..Count::default() };
        let costs = counts.iter().map(|(op, count)| OpCost::of(op_name(*op), count, &ceilings));
        let rest = OpCost::of("everything else".to_owned(), &rest, &ceilings);
        let ops: Vec<_> = costs.chain([rest]).collect();
        let sum = |of: fn(&OpCost) -> f64| ops.iter().map(of).sum::<f64>();
        let total = OpCost {
            op: "all".to_owned(),
            calls: ops.iter().map(|op| op.calls).sum(),
            launches: ops.iter().map(|op| op.launches).sum(),
            flops: sum(|op| op.flops),
            bytes: sum(|op| op.bytes),
            seconds: sum(|op| op.seconds),
        };
        Ok(Self { tokens, ceilings, ops, total })
    }

    /// The table for people.
    pub fn text(&self) -> String {
        let mut table = Table::new();
        let header = ["op", "calls", "launches", "GFLOP", "MB", "ms", "share", "bound by"];
        table.load_style(NOTHING).set_header(header);
        for op in self.ops.iter().chain([&self.total]) {
            table.add_row(self.row(op));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let Ceilings { matmul_flops_per_second, memory_bytes_per_second } = self.ceilings;
        let tokens_per_second = self.tokens as f64 / self.total.seconds;
        format!(
            "one step of one rank, {} tokens, without collectives\n\n{table}\n\n\
             counted from the calls of a step on a device that computes nothing: each operand once \
             a launch\nms: at {:.0} TFLOP/s and {:.2} TB/s, ops one after the other; {} tokens/s",
            thousands(self.tokens as f64),
            matmul_flops_per_second / 1e12,
            memory_bytes_per_second / 1e12,
            thousands(tokens_per_second),
        )
    }

    fn row(&self, op: &OpCost) -> [String; 8] {
        let of_matmul = op.flops / self.ceilings.matmul_flops_per_second;
        let of_memory = op.bytes / self.ceilings.memory_bytes_per_second;
        let is_sum = std::ptr::eq(op, &raw const self.total);
        let bound = match (is_sum, of_matmul > of_memory) {
            (true, _) => "",
            (false, true) => "products",
            (false, false) => "memory",
        };
        let gigaflop = if op.flops > 0.0 { thousands(op.flops / 1e9) } else { "-".to_owned() };
        [
            op.op.clone(),
            thousands(op.calls as f64),
            thousands(op.launches as f64),
            gigaflop,
            thousands(op.bytes / 1e6),
            format!("{:.3}", 1e3 * op.seconds),
            format!("{:.1} %", 100.0 * op.seconds / self.total.seconds),
            bound.to_owned(),
        ]
    }
}

impl OpCost {
    fn of(op: String, count: &Count, ceilings: &Ceilings) -> Self {
        let Count { calls, launched: Launched { launches, moved_bytes }, work, .. } = *count;
        let bytes = moved_bytes as f64;
        let seconds = ceilings.seconds(work.flops, bytes);
        Self { op, calls, launches, flops: work.flops, bytes, seconds }
    }
}
