//! How large a workload is on one rank, and whether it fits this machine.

use collectives::{BucketPlan, Footprint, OUTSTANDING_MAX};
use launch::threads::ThreadPlan;
use models::memory::MemoryPlan;
use serde::Serialize;

use crate::assemble::placed_layout;
use crate::config::{Config, Engine};
use crate::data::prefetch::PREFETCH_DEPTH;
use crate::failure::{ExitCode, Failure, Outcome};
use crate::hugging_face::PART_BYTES;
use crate::probe;
use crate::shortage::Remedies;

/// Sizes of one workload on one rank.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sizing {
    /// N.
    pub(crate) parameters: u64,
    /// Matmul FLOPs per token, attention counted causal.
    pub(crate) flops_per_token_causal: f64,
    /// Matmul FLOPs per token, attention counted full.
    pub(crate) flops_per_token_full: f64,
    /// Master weights per rank.
    pub(crate) weight_bytes: u64,
    /// Both Adam moments per rank.
    pub(crate) optimizer_bytes: u64,
    /// What forward keeps for backward, per rank.
    pub(crate) activation_bytes: u64,
    /// How far they may be from what the engine allocates, as a share of it, where they are an
    /// estimate; `None` where the engine allocates what is planned.
    pub(crate) activation_tolerance: Option<f64>,
    /// One checkpoint, over all ranks.
    pub(crate) checkpoint_bytes: u64,
    /// Peak of one rank: all pages that it made. Those of its neighbours on a node that it sees as
    /// well are theirs, so that all ranks' together are what the node needs; `top` counts them for
    /// each.
    pub(crate) total_bytes: u64,
    /// Memory that this machine could give now, where that is known.
    pub(crate) available_bytes: Option<u64>,
    /// Whether the ranks of one machine fit into it.
    pub(crate) fits: bool,
    /// Every item of the plan.
    pub(crate) plan: MemoryPlan,
    #[serde(skip)]
    remedies: Remedies,
}

/// How the ranks of a run lie on machines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Ranks of the run.
    pub(crate) world: usize,
    /// Of them, those on this machine.
    pub(crate) local: usize,
    /// Compute threads of one rank.
    pub(crate) threads: usize,
    /// Whether those on this machine may share memory: known once they have met, assumed before.
    pub(crate) shares_memory: bool,
}

impl Sizing {
    /// For one rank of a shape. `profile_bytes` is what a profile measures with between two steps.
    pub(crate) fn new(config: &Config, shape: Shape, profile_bytes: usize) -> Outcome<Self> {
        let Shape { world, local, threads, .. } = shape;
        let available_bytes = launch::available_memory_bytes();
        let (model, batch) = (&config.workload.model, &config.workload.batch);
        let (layout, buckets) = placed_layout(config, world);
        check_buckets(config, buckets.buckets.len())?;
        let (sequences, tokens) = (batch.micro_sequences, batch.sequence_tokens);
        let compute = config.workload.precision.compute;
        let (mut items, activation_tolerance) = match config.settings.run.engine {
            Engine::Fused => {
                let options = config.fused_options(world)?;
                let shape = (sequences, tokens);
                (models::fused::activation_bytes(model, shape, options, threads), None)
            }
            Engine::Candle => {
                let items = models::candle::activation_bytes(model, sequences, tokens);
                (items, Some(models::candle::ACTIVATION_TOLERANCE))
            }
        };
        let activation_bytes =
            items.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        items.extend(around_the_engine(config, shape, &buckets, profile_bytes));
        let owners = if config.settings.run.shard_optimizer { world } else { 1 };
        let held = layout.len() / owners;
        let plan = MemoryPlan::new(layout.parameters(), layout.len(), held, compute, items);
        let flops = models::flops::flops_per_token(model, tokens);
        let total_bytes = plan.total_bytes();
        Ok(Self {
            parameters: layout.parameters() as u64,
            flops_per_token_causal: flops.causal,
            flops_per_token_full: flops.full,
            weight_bytes: plan.weight_bytes(),
            optimizer_bytes: plan.optimizer_bytes(),
            activation_bytes,
            activation_tolerance,
            checkpoint_bytes: plan.checkpoint_bytes(),
            total_bytes,
            available_bytes,
            fits: available_bytes.is_none_or(|bytes| total_bytes <= bytes / local as u64),
            plan,
            remedies: Remedies::new(config, world, local),
        })
    }

    /// Refuses what cannot fit, before anything is allocated.
    pub(crate) fn require(&self, local: usize) -> Outcome<()> {
        let Some(available) = self.available_bytes else { return Ok(()) };
        let problem = self.remedies.sentence(&self.plan, available / local as u64);
        problem.map_or(Ok(()), |problem| {
            let error = anyhow::anyhow!("this machine's {local} ranks do not fit: {problem}");
            Err(Failure::new(ExitCode::Environment, error))
        })
    }
}

/// All buckets may be under way at once, and a vote beside them.
fn check_buckets(config: &Config, buckets: usize) -> Outcome<()> {
    if buckets < OUTSTANDING_MAX {
        return Ok(());
    }
    let bytes = config.settings.collectives.bucket_bytes;
    let expected = format!("so large that there are fewer than {OUTSTANDING_MAX} buckets");
    let found = format!("{bytes} ({buckets} buckets)");
    Err(models::Error::invalid("collectives.bucket_bytes", found, expected).into())
}

/// Pages of the program's file and of system libraries, which the ranks of a machine share: of
/// `smoke` they were 7.6 to 7.9 MiB.
const PROGRAM_BYTES: usize = 8 << 20;

/// Heap and stacks of one process: what a run of `smoke` held beyond all else that is planned was
/// 1.9 to 2.1 MiB, with 1 to 8 threads.
const PROCESS_BYTES: usize = 2 << 20;

/// The buffer of shards on their way to the disk.
const CHECKPOINT_WRITER_BYTES: usize = 4 << 20;

/// What communication, data, checkpoints and the process itself hold. The gradients, and working
/// weights of a sharded optimizer, lie in memory that the ranks of a node share; they are counted
/// with the flat buffers, by the rank that made them.
fn around_the_engine(
    config: &Config,
    shape: Shape,
    plan: &BucketPlan,
    profile_bytes: usize,
) -> impl Iterator<Item = (String, u64)> {
    let workload = &config.workload;
    let batch = &workload.batch;
    let tokens = batch.micro_sequences * batch.sequence_tokens;
    let footprint = Footprint::new(
        (shape.world, shape.local),
        shape.shares_memory,
        size_of::<f32>() * plan.buckets.iter().map(|b| b.range.len()).max().unwrap_or(0),
    );
    // One after the other, between steps.
    let is_probed = config.settings.telemetry.matmul_probe_s > 0.0;
    let compute = workload.precision.compute;
    let probe_bytes = if is_probed { probe::matmul_bytes(compute, shape.threads) } else { 0 };
    let saved_bytes = 3 * size_of::<f32>() * plan.len / shape.world;
    let writer_bytes = CHECKPOINT_WRITER_BYTES.min(saved_bytes);
    let import_bytes = config.settings.run.init_from.as_ref().map_or(0, |_| PART_BYTES);
    let between_steps = writer_bytes.max(import_bytes).max(probe_bytes).max(profile_bytes);
    let items = [
        ("parts received for sums", footprint.received),
        ("MPI library", footprint.library),
        ("prefetched tokens", PREFETCH_DEPTH * 2 * size_of::<u32>() * tokens),
        ("checkpoint writer, probes", between_steps),
        ("program and libraries", PROGRAM_BYTES / shape.local),
        ("heap and stacks", PROCESS_BYTES),
    ];
    let planned = items.into_iter().filter(|&(_, bytes)| bytes > 0);
    planned.map(|(name, bytes)| (name.to_owned(), bytes as u64))
}

/// Compute threads of the first of `local` ranks of this machine.
pub(crate) fn compute_threads(config: &Config, local: usize) -> usize {
    let threads = Some(config.settings.run.threads).filter(|&threads| threads > 0);
    ThreadPlan::of_first(local, threads).threads
}

#[cfg(test)]
mod tests {
    use models::workload::Compute;

    use super::*;
    use crate::profile;

    #[test]
    fn the_program_counts_once_for_the_ranks_of_a_machine() {
        let config = Config::load("smoke", &[]).unwrap();
        let bytes = |local, name| {
            let shape = Shape { world: 4, local, threads: 1, shares_memory: true };
            let sizing = Sizing::new(&config, shape, 0).unwrap();
            let items = &sizing.plan.items;
            items.iter().find(|item| item.name == name).unwrap().bytes * local as u64
        };
        assert_eq!(bytes(4, "program and libraries"), bytes(1, "program and libraries"));
        assert_eq!(bytes(4, "heap and stacks"), 4 * bytes(1, "heap and stacks"));
    }

    #[test]
    fn a_profile_is_planned_in_place_of_the_smaller_probe() {
        let total = |probe_s, profiled, local| {
            let config = format!("telemetry.matmul_probe_s={probe_s}");
            let config = Config::load("smoke", &[config]).unwrap();
            let shape = Shape { world: 2, local: 2, threads: 1, shares_memory: true };
            let profile_bytes = profile::bytes(profiled, Compute::F32, local, 1);
            Sizing::new(&config, shape, profile_bytes).unwrap().total_bytes
        };
        let probe = probe::matmul_bytes(Compute::F32, 1) as u64;
        assert!(probe > 12 << 20, "three matrices, and room to multiply them");
        assert_eq!(total("1.0", Some(2), 2) - total("1.0", None, 2), (96 << 20) - probe);
        assert_eq!(total("0.0", Some(2), 32), total("1.0", None, 32), "it multiplies as well");
    }
}
