//! `yardstick comm`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{LogArguments, print, print_json};
use record::text::duration;
use trainer::comm::{self, CommOperation, CommOptions};
use trainer::config::{Config, size};
use trainer::failure::{Failure, Outcome};
use trainer::run::Exit;

/// Measure the bandwidth and latency between ranks: `mpirun -np N yardstick comm`.
///
/// Sweeps collective operations over sizes and prints the columns of NVIDIA's nccl-tests. Every
/// element is verified: a wrong one ends it with exit code 4. Operations run in place; the
/// out-of-place columns include a copy of the input. With --pairs or --bisection it measures links
/// instead, and names slow ones.
#[derive(Debug, Args)]
pub(super) struct Comm {
    /// Memory of the buffers.
    #[arg(long, value_parser = ["cpu", "cuda"], default_value = "cpu")]
    device: String,
    /// Operations to measure [default: all].
    #[arg(long = "operation", value_enum, value_name = "OPERATION", value_delimiter = ',')]
    operations: Vec<CommOperation>,
    /// Smallest size, as in 1K.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "1K")]
    min_bytes: u64,
    /// Largest size, as in 4G; limited by the available memory.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "4G")]
    max_bytes: u64,
    /// Factor between successive sizes.
    #[arg(long, value_name = "N", default_value = "4",
          value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// Number of measurements of each size [default: for 0.3 s, at most 100].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    iterations: Option<u32>,
    /// Measure every pair of nodes in both directions; on one node, every pair of ranks.
    #[arg(long)]
    pairs: bool,
    /// Measure all ranks at the same time, each with a partner 1, 2, 4, ... ranks away.
    #[arg(long)]
    bisection: bool,
    /// Size of a message over a link.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "16M")]
    message_bytes: u64,
    /// Timeout of every operation, as in 90s or 5m [default: 2m].
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    deadline: Option<Duration>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) log: LogArguments,
}

/// Parses the size of a buffer, which has at least one element.
fn bytes(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if bytes < 4 { Err(format!("{text:?}: expected at least 4 bytes")) } else { Ok(bytes) }
}

impl Comm {
    pub(super) fn run(self) -> Outcome<Exit> {
        if self.min_bytes > self.max_bytes {
            let Self { min_bytes, max_bytes, .. } = self;
            return Err(Failure::usage(format!(
                "--min-bytes {min_bytes}: expected at most --max-bytes {max_bytes}"
            )));
        }
        let mut overrides = vec![format!("run.device={}", self.device)];
        let deadline = self.deadline.map(duration::format);
        overrides.extend(deadline.map(|text| format!("collectives.deadline={text}")));
        let options = CommOptions {
            config: Config::load("smoke", &overrides)?,
            operations: match &self.operations[..] {
                [] => CommOperation::value_variants().to_vec(),
                chosen => chosen.to_vec(),
            },
            bytes_min: self.min_bytes,
            bytes_max: self.max_bytes,
            factor: self.factor,
            iterations: self.iterations,
            pairs: self.pairs,
            bisection: self.bisection,
            message_bytes: self.message_bytes,
        };
        comm::run(&options, |report| if self.json { print_json(report) } else { print(report) })
    }
}
