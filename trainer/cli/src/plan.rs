//! `yardstick plan`.

use clap::Args;
use comfy_table::{CellAlignment, Table, presets::NOTHING};

use super::{print, print_json};
use record::ExitCode;
use record::text::number_format::{binary, count, thousands};
use serde::Serialize;
use trainer::config::{Config, size};
use trainer::failure::{Failure, Outcome};
use trainer::plan::{
    Ceilings, DEVICES_OF_NODE, JobShape, RankPlan, StepCost, compute_threads, device_bytes_of_rank,
    with_chosen_recompute,
};

/// Print the memory plan of a workload, without allocating anything.
///
/// Exits with 3 if the workload does not fit. The limit on processors is the memory of this
/// machine, divided among its ranks; on GPUs it is that of --device-memory.
#[derive(Debug, Args)]
pub(super) struct Plan {
    /// Preset (see `yardstick workloads`) or TOML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "smoke")]
    workload: String,
    /// Set a value of the configuration, as in `--set batch.micro_sequences=2`; may be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    overrides: Vec<String>,
    /// Device to compute on [default: cpu].
    #[arg(long, value_parser = ["cpu", "cuda"])]
    device: Option<String>,
    /// Memory of the device of each rank, as in 80GiB [default: that of the GPUs of this machine,
    /// if it has any, divided among its ranks].
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    device_memory: Option<u64>,
    /// Number of ranks of the run.
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive)]
    ranks: usize,
    /// Number of GPUs of the run, a rank each: the same as --device cuda --ranks N with up to 8
    /// ranks on a machine.
    #[arg(
        long,
        value_name = "N",
        value_parser = positive,
        conflicts_with_all = ["ranks", "device"]
    )]
    devices: Option<usize>,
    /// Number of ranks on one machine [default: all, or 8 with --devices].
    #[arg(long, value_name = "N", value_parser = positive)]
    local_ranks: Option<usize>,
    /// Fail unless the workload has this id: another version of this program may have another
    /// preset of the same name. A workload that does not fit is then reported, but is no failure,
    /// as jobs check the id on another machine than they train on.
    #[arg(long, value_name = "ID")]
    expect_id: Option<String>,
    /// Print the cost of a step on a GPU as well: launches, FLOPs and bytes of each op, and the
    /// time that they take at given rates.
    #[arg(long)]
    cost: bool,
    /// Matmul rate for --cost, in FLOP/s; by default 80 % of the bf16 peak of an H100.
    #[arg(long, value_name = "FLOP/S", default_value = "790e12", value_parser = rate)]
    matmul_rate: f64,
    /// Memory rate for --cost, in bytes/s; by default that of copies on an H100.
    #[arg(long, value_name = "BYTES/S", default_value = "3.0e12", value_parser = rate)]
    memory_rate: f64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A plan, and the cost of a step if it was asked for.
#[derive(Debug, Serialize)]
struct Planned<'a> {
    #[serde(flatten)]
    plan: &'a RankPlan,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<StepCost>,
}

/// Memory of the device of each rank.
struct DeviceMemory {
    /// Its size, if known.
    bytes: Option<u64>,
    /// True if the ranks would run on this machine, whose memory is known.
    is_of_here: bool,
}

impl DeviceMemory {
    /// Judges a plan by it. The host memory of other machines is not known.
    fn judge(&self, plan: RankPlan) -> RankPlan {
        let plan = if self.is_of_here { plan } else { plan.on_machine(None) };
        match self.bytes.filter(|_| plan.device.is_some()) {
            Some(bytes) => plan.on_device(bytes),
            None => plan,
        }
    }
}

/// Largest number of ranks: far above any machine, and too small for a product with it to overflow.
const RANKS_MAX: usize = 1 << 24;

fn positive(text: &str) -> Result<usize, String> {
    let expected = || format!("expected a number from 1 to {RANKS_MAX}");
    text.parse().ok().filter(|n| (1..=RANKS_MAX).contains(n)).ok_or_else(expected)
}

fn rate(text: &str) -> Result<f64, String> {
    let expected = || "expected a number above 0, as in 3.0e12".to_owned();
    text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0).ok_or_else(expected)
}

impl Plan {
    pub(super) fn run(mut self) -> Outcome<ExitCode> {
        if let Some(devices) = self.devices {
            self.ranks = devices;
            self.device = Some("cuda".to_owned());
            self.local_ranks.get_or_insert(devices.min(DEVICES_OF_NODE));
        }
        let device = self.device.iter().map(|device| format!("run.device={device}"));
        let overrides: Vec<_> = self.overrides.iter().cloned().chain(device).collect();
        let config = Config::load(&self.workload, &overrides)?;
        self.check_id(&config)?;
        config.workload.batch.accumulation(self.ranks)?;
        let local = self.local_ranks()?;
        let threads = compute_threads(&config, local);
        let shape = JobShape { world: self.ranks, local, threads, shares_memory: true };
        let memory = self.memory_of_device(&config, local)?;
        let config = with_chosen_recompute(&config, shape, memory.bytes)?;
        let plan = memory.judge(RankPlan::new(&config, shape, None)?);
        let ceilings = Ceilings {
            matmul_flops_per_second: self.matmul_rate,
            memory_bytes_per_second: self.memory_rate,
        };
        let cost = self.cost.then(|| StepCost::of(&config, self.ranks, ceilings)).transpose()?;
        if self.json {
            print_json(&Planned { plan: &plan, cost })?;
        } else {
            let cost = cost.map_or_else(String::new, |cost| format!("\n\n{}", cost.text()));
            print(self.text(&config, &plan, local) + &cost)?;
        }
        let fails = plan.fits == Some(false) && self.expect_id.is_none();
        Ok(if fails { ExitCode::Environment } else { ExitCode::Done })
    }

    /// Returns the memory of the device of each rank.
    fn memory_of_device(&self, config: &Config, local: usize) -> Outcome<DeviceMemory> {
        if !config.is_on_cuda() {
            return match self.device_memory {
                Some(_) => Err(Failure::usage("--device-memory: expected --device cuda")),
                None => Ok(DeviceMemory { bytes: None, is_of_here: true }),
            };
        }
        if let Some(bytes) = self.device_memory {
            return Ok(DeviceMemory { bytes: Some(bytes), is_of_here: false });
        }
        // A rank on each device, of this kind if there are some here.
        let sharing = if self.devices.is_some() { 1 } else { local };
        let bytes = device_bytes_of_rank(sharing);
        Ok(DeviceMemory { bytes, is_of_here: bytes.is_some() && self.devices.is_none() })
    }

    fn text(&self, config: &Config, plan: &RankPlan, local: usize) -> String {
        format!(
            "{}: {}, {} on {}, {} of {} tokens a micro-batch, recomputation: {}\n\n{}",
            config.name,
            count(self.ranks, "rank"),
            thousands(local as f64),
            if self.devices.is_some() { "each machine" } else { "this machine" },
            count(config.workload.batch.micro_sequences, "sequence"),
            thousands(config.workload.batch.sequence_tokens as f64),
            plan.recompute,
            table(plan, local)
        )
    }

    /// Checks the expected id, which depends on the content of data files, which a plan does not
    /// read.
    fn check_id(&self, config: &Config) -> Outcome<()> {
        let Some(expected) = &self.expect_id else { return Ok(()) };
        let name = &config.name;
        if !config.workload.data.files.is_empty() {
            let text = "expected a workload without data files, as its id depends on their content";
            return Err(Failure::usage(format!("--expect-id: {name}: {text}")));
        }
        let found = config.workload.id(None);
        if found == *expected {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{name}: expected the workload with id {expected}, found {found}\n  hint: this is \
             yardstick {}; a job needs the image of the version that rendered it",
            env!("CARGO_PKG_VERSION")
        )))
    }

    /// Returns the number of ranks on this machine: at most that of the run.
    fn local_ranks(&self) -> Outcome<usize> {
        let local = self.local_ranks.unwrap_or(self.ranks);
        if local > self.ranks {
            let expected = format!("expected at most --ranks {}, those of the run", self.ranks);
            return Err(Failure::usage(format!("--local-ranks {local}: {expected}")));
        }
        Ok(local)
    }
}

/// Assumptions of the table where several ranks are on one machine.
const SHARED: &str = "\
This assumes that the ranks of a machine can share memory. Shared gradients are counted once, for
the rank that allocated them; `top` counts them for every rank that maps them. A run finds out
whether memory can be shared, plans accordingly, and records its plan (`ranks[].planned_bytes`).

";

/// Describes the accuracy of the table for an engine that allocates during the step.
fn estimated(tolerance: f64) -> String {
    let percent = 100.0 * tolerance;
    format!(
        "With run.engine = candle, the items from block activations to parameter gradients are an\n\
         estimate: together they are within {percent:.0} % of what it allocates.\n\n"
    )
}

fn table(plan: &RankPlan, local: usize) -> String {
    let known = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), binary);
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["one rank", "memory"]);
    for item in &plan.plan.items {
        table.add_row([item.purpose.to_owned(), binary(item.bytes)]);
    }
    table.add_row(["total of one rank".to_owned(), binary(plan.total_bytes)]);
    let together = plan.total_bytes.saturating_mul(local as u64);
    table.add_row([format!("total of {} here", count(local, "rank")), binary(together)]);
    table.add_row(["available here".to_owned(), known(plan.available_bytes)]);
    table.add_row(["one checkpoint, all ranks".to_owned(), binary(plan.checkpoint_bytes)]);
    if let Some(device) = &plan.device {
        table.add_row(["", ""]).add_row(["one rank on its device", "memory"]);
        for item in &device.plan.items {
            table.add_row([item.purpose.to_owned(), binary(item.bytes)]);
        }
        table.add_row(["total on the device".to_owned(), binary(device.total_bytes)]);
        table.add_row(["available there".to_owned(), known(device.available_bytes)]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let shared = if local > 1 { SHARED } else { "" };
    let estimated = plan.activation_tolerance.map_or_else(String::new, estimated);
    format!("{table}\n\n{estimated}{shared}{}", verdict(plan))
}

fn verdict(plan: &RankPlan) -> String {
    if let Err(problem) = plan.require() {
        return problem.to_string();
    }
    let unknown = if plan.device.is_some() {
        "Whether it fits is not known: device memory unknown.\n  hint: --device-memory SIZE, as in \
         80GiB"
    } else {
        "Whether it fits is not known: memory of this machine unknown."
    };
    if plan.fits.is_some() { "It fits." } else { unknown }.to_owned()
}
