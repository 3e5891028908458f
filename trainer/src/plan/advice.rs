//! Remedies for a run that does not fit: changes of its settings. Each is planned, so that it does
//! help.

use models::fused::Recompute;

use super::{JobShape, RankPlan, with_recompute};
use crate::config::{Config, Engine, ParallelConfig, Sharded};
use record::text::number_format::{binary, count, thousands};

/// Inputs of a plan, from which changed plans are made.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    pub(super) config: Config,
    pub(super) shape: JobShape,
    pub(super) profile_step: Option<u64>,
}

/// Memory that does not suffice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    /// True for the memory of the device, which each rank has by itself; false for that of the
    /// machine, which its ranks share.
    pub(super) is_of_device: bool,
    /// Bytes that all ranks of the machine, or the rank on its device, can use.
    pub(super) bytes: u64,
}

/// Largest number of machines that are suggested in addition to those of the run.
const MORE_MACHINES_MAX: usize = 1 << 10;

/// Plan with some changed settings.
#[derive(Debug, Clone)]
struct Candidate {
    origin: Origin,
    /// Changes, as in `run.recompute = full`.
    changes: Vec<String>,
    needed: u64,
    fits: bool,
}

/// Change of settings; `None` where it does not apply.
type Change = fn(&Candidate, Limit) -> Option<Candidate>;

/// Changes in the order of application: all of them together are the least that a rank can need.
/// The number of further ranks that suffices depends on all other changes.
const CHANGES: [Change; 6] =
    [shard, fewer_copies, recompute, smaller_micro_batch, fewer_local_ranks, more_ranks];

/// Mask of the [`CHANGES`], a bit each, that change the workload.
const OF_WORKLOAD: u32 = 0b001000;

/// Mask of the changes that take more machines.
const OF_MACHINES: u32 = 0b110000;

/// Names the changes that would make a run fit, planned together: settings where these suffice;
/// else a smaller micro-batch, and more machines, which keep the workload; else both.
pub(super) fn hint(origin: &Origin, limit: Limit) -> String {
    let start = Candidate { origin: origin.clone(), changes: Vec::new(), needed: 0, fits: false };
    let without = |unwanted: u32| start.fewest_that_fit(limit, unwanted);
    let mut sufficient = without(OF_WORKLOAD | OF_MACHINES);
    if sufficient.is_empty() {
        sufficient = [without(OF_MACHINES), without(OF_WORKLOAD)].concat();
    }
    if sufficient.is_empty() {
        sufficient = without(0);
    }
    if !sufficient.is_empty() {
        return format!("it fits with {}", sufficient.join("; or with "));
    }
    let least = CHANGES.iter().fold(start, |all, change| change(&all, limit).unwrap_or(all));
    let tried = if least.changes.is_empty() {
        "no other setting needs less".to_owned()
    } else {
        format!("it does not fit even with {}", least.text())
    };
    let place = if limit.is_of_device { "devices" } else { "machines" };
    format!("{tried}: use a smaller model, or {place} with more memory")
}

impl Candidate {
    /// Applies one more change, if its plan can be made.
    fn with(&self, change: String, limit: Limit, edit: impl FnOnce(&mut Origin)) -> Option<Self> {
        let mut origin = self.origin.clone();
        edit(&mut origin);
        origin.config.workload.batch.accumulation(origin.shape.world).ok()?;
        let plan = RankPlan::new(&origin.config, origin.shape, origin.profile_step).ok()?;
        let needed = match &plan.device {
            Some(device) if limit.is_of_device => device.total_bytes,
            _ => plan.total_bytes,
        };
        let sharing = if limit.is_of_device { 1 } else { origin.shape.local as u64 };
        let fits = needed <= limit.bytes / sharing;
        let changes = self.changes.iter().cloned().chain([change]).collect();
        Some(Self { origin, changes, needed, fits })
    }

    /// Returns the smallest sets of changes that make it fit, without unwanted ones.
    fn fewest_that_fit(&self, limit: Limit, unwanted: u32) -> Vec<String> {
        let sets = (1_u32..1 << CHANGES.len()).filter(|set| set & unwanted == 0);
        let of_count = |count: u32| {
            let sets = sets.clone().filter(|set| set.count_ones() == count);
            let changed = sets.filter_map(|set| self.with_set(set, limit));
            changed.filter(|it| it.fits).map(|it| it.text()).collect::<Vec<_>>()
        };
        let found = (1..=CHANGES.len() as u32).map(of_count).find(|found| !found.is_empty());
        found.unwrap_or_default()
    }

    /// Applies each change whose bit is set; `None` unless all of them apply and are needed.
    fn with_set(&self, set: u32, limit: Limit) -> Option<Self> {
        let chosen = CHANGES.iter().enumerate().filter(|(bit, _)| set >> bit & 1 == 1);
        chosen
            .map(|(_, change)| change)
            .try_fold(self.clone(), |all, change| if all.fits { None } else { change(&all, limit) })
    }

    fn text(&self) -> String {
        format!("{} ({} a rank)", self.changes.join(" and "), binary(self.needed))
    }
}

/// Returns the least that has to be sharded so that it fits, or else what needs least.
fn shard(before: &Candidate, limit: Limit) -> Option<Candidate> {
    let Origin { config, shape, .. } = &before.origin;
    let has_windows = config.settings.run.engine == Engine::Fused;
    let is_possible = |sharded: &Sharded| {
        shape.world > 1
            && *sharded > config.settings.parallel.sharded
            && (has_windows || *sharded < Sharded::Weights)
    };
    let kinds = Sharded::ALL.into_iter().filter(is_possible);
    let mut candidates: Vec<_> = kinds
        .filter_map(|sharded| {
            before.with(format!("parallel.sharded = {sharded}"), limit, |origin| {
                origin.config.settings.parallel.sharded = sharded;
            })
        })
        .collect();
    // With few buckets windows take more than what they save.
    let least = (0..candidates.len()).min_by_key(|&index| candidates[index].needed)?;
    let chosen = candidates.iter().position(|it| it.fits).unwrap_or(least);
    Some(candidates.swap_remove(chosen))
}

/// Returns the least change of how sharded state is divided and gathered: what is gathered is kept
/// for a shorter time, or all ranks share one copy, or both.
fn fewer_copies(before: &Candidate, limit: Limit) -> Option<Candidate> {
    let now = before.origin.config.settings.parallel;
    let windows = ParallelConfig { reshard: true, gather_ahead: now.gather_ahead.min(1), ..now };
    let one_copy = ParallelConfig { data: 1, shard: 0, ..now };
    let both = ParallelConfig { data: 1, shard: 0, ..windows };
    let shares = |parallel: &ParallelConfig| {
        *parallel != now
            && match now.sharded {
                Sharded::Weights => true,
                Sharded::Gradients => *parallel == one_copy,
                Sharded::None | Sharded::Optimizer => false,
            }
    };
    let candidates = [windows, one_copy, both].into_iter().filter(shares).filter_map(|parallel| {
        let changes = [
            (parallel.data != now.data).then(|| "parallel.data = 1".to_owned()),
            (parallel.shard != now.shard).then(|| "parallel.shard = 0".to_owned()),
            (parallel.reshard != now.reshard).then(|| "parallel.reshard = true".to_owned()),
            (parallel.gather_ahead != now.gather_ahead)
                .then(|| format!("parallel.gather_ahead = {}", parallel.gather_ahead)),
        ];
        let changes: Vec<_> = changes.into_iter().flatten().collect();
        before.with(changes.join(" and "), limit, |origin| {
            origin.config.settings.parallel = parallel;
        })
    });
    first_that_fits(candidates)
}

fn recompute(before: &Candidate, limit: Limit) -> Option<Candidate> {
    let config = &before.origin.config;
    let has_one_block = config.workload.model.layers == 1;
    let helps = |level: &Recompute| match level {
        _ if config.settings.run.engine == Engine::Candle => false,
        Recompute::Full if has_one_block => false,
        level => *level > config.recompute(),
    };
    let more = [Recompute::Selective, Recompute::Full].into_iter().filter(helps);
    first_that_fits(more.filter_map(|level| {
        before.with(format!("run.recompute = {level}"), limit, |origin| {
            origin.config = with_recompute(&origin.config, level);
        })
    }))
}

/// Returns the largest micro-batch that fits, or else one sequence.
fn smaller_micro_batch(before: &Candidate, limit: Limit) -> Option<Candidate> {
    let now = before.origin.config.workload.batch.micro_sequences;
    let smaller = (1..now).rev().filter(|fewer| now.is_multiple_of(*fewer));
    let candidates = smaller.filter_map(|fewer| {
        let change = format!("batch.micro_sequences = {fewer} (another workload)");
        before.with(change, limit, |origin| {
            origin.config.workload.batch.micro_sequences = fewer;
        })
    });
    first_that_fits(candidates)
}

/// Returns the largest number of ranks that fit: they divide the memory of a machine.
fn fewer_local_ranks(before: &Candidate, limit: Limit) -> Option<Candidate> {
    if limit.is_of_device {
        return None;
    }
    let local = before.origin.shape.local;
    let fewer = (1..local).rev().filter(|fewer| local.is_multiple_of(*fewer));
    let candidates = fewer.filter_map(|fewer| {
        before.with(format!("{} on each machine", count(fewer, "rank")), limit, |origin| {
            origin.shape.local = fewer;
        })
    });
    first_that_fits(candidates)
}

/// Returns the smallest number of ranks that fit, on more machines. Each rank has a smaller part of
/// the optimizer's state, which must be sharded already; that of one rank cannot be.
fn more_ranks(before: &Candidate, limit: Limit) -> Option<Candidate> {
    let world = before.origin.shape.world;
    let now = before.origin.config.settings.parallel.sharded;
    if now == Sharded::None && world > 1 {
        return None;
    }
    if now != Sharded::None {
        return more_ranks_of(now, before, limit);
    }
    let has_windows = before.origin.config.settings.run.engine == Engine::Fused;
    let kinds = [Sharded::Optimizer, Sharded::Gradients, Sharded::Weights].into_iter();
    let kinds = kinds.filter(|sharded| has_windows || *sharded < Sharded::Weights);
    first_that_fits(kinds.filter_map(|sharded| more_ranks_of(sharded, before, limit)))
}

/// Returns the smallest number of ranks that fit with so much sharded.
fn more_ranks_of(sharded: Sharded, before: &Candidate, limit: Limit) -> Option<Candidate> {
    let JobShape { world, local, .. } = before.origin.shape;
    let is_new = before.origin.config.settings.parallel.sharded != sharded;
    let shards = if is_new { format!(" and parallel.sharded = {sharded}") } else { String::new() };
    let with = |ranks: usize| {
        let change = format!("{} ranks in all{shards}", thousands(ranks as f64));
        before.with(change, limit, |origin| {
            origin.config.settings.parallel.sharded = sharded;
            origin.shape.world = ranks;
        })
    };
    let fits = |ranks: &usize| with(*ranks).is_some_and(|it| it.fits);
    let batch = &before.origin.config.workload.batch;
    let worlds = (1..=MORE_MACHINES_MAX).map(|machines| world + machines * local);
    let worlds: Vec<_> = worlds.filter(|ranks| batch.accumulation(*ranks).is_ok()).collect();
    let most = *worlds.last()?;
    // Doubles until they suffice, then bisects: planning every number takes seconds.
    let doubled = (0..).map(|power| 1 << power).take_while(|count| *count < worlds.len());
    let sufficient = doubled.chain([worlds.len()]).find(|count| fits(&worlds[count - 1]));
    let Some(count) = sufficient else { return with(most) };
    with(worlds[worlds[..count].partition_point(|ranks| !fits(ranks))])
}

/// Returns the first candidate that fits, or else the last one.
fn first_that_fits(candidates: impl Iterator<Item = Candidate>) -> Option<Candidate> {
    let mut last = None;
    for candidate in candidates {
        if candidate.fits {
            return Some(candidate);
        }
        last = Some(candidate);
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Returns the hint for a workload on `world` ranks, 8 a node, each with a device.
    fn hinted(workload: &str, settings: &[&str], world: usize, gib: u64) -> String {
        let settings = ["run.device=cuda", "precision.compute=bf16"].iter().chain(settings);
        let settings: Vec<_> = settings.map(|&setting| setting.to_owned()).collect();
        let config = Config::load(workload, &settings).unwrap();
        let shape = JobShape { world, local: world.min(8), threads: 1, shares_memory: true };
        let limit = Limit { is_of_device: true, bytes: gib * GIB };
        hint(&Origin { config, shape, profile_step: None }, limit)
    }

    #[test]
    fn hints_name_what_is_planned_to_fit() {
        let found = hinted("llama3-8b", &[], 8, 80);
        assert_eq!(found, "it fits with parallel.sharded = gradients (68.72 GiB a rank)");
        let found = hinted("llama3-8b", &["run.recompute=full"], 8, 30);
        assert!(found.starts_with("it fits with parallel.sharded = weights ("), "{found}");
        let found = hinted("llama3-8b", &["parallel.sharded=weights"], 8, 22);
        assert!(found.starts_with("it fits with run.recompute = full and "), "{found}");
        let found = hinted("llama3-70b", &["parallel.sharded=weights"], 8, 80);
        let more = "it fits with run.recompute = full and 32 ranks in all (";
        assert!(found.starts_with(more), "as few as suffice: {found}");
        let found = hinted("llama3-70b", &[], 1, 80);
        assert!(found.contains(" ranks in all and parallel.sharded = weights ("), "{found}");
        let weights = ["run.recompute=full", "parallel.sharded=weights"];
        let hybrid = [&weights[..], &["parallel.data=8", "parallel.shard=8"]].concat();
        let found = hinted("llama3-70b", &hybrid, 64, 50);
        let one_copy = "it fits with parallel.data = 1 and parallel.shard = 0 (";
        assert!(found.starts_with(one_copy), "{found}");
        let kept = [&weights[..], &["parallel.reshard=false"]].concat();
        let found = hinted("llama3-70b", &kept, 64, 80);
        assert!(found.starts_with("it fits with parallel.reshard = true ("), "{found}");
        let ahead = [&weights[..], &["parallel.gather_ahead=20"]].concat();
        let found = hinted("llama3-70b", &ahead, 64, 60);
        assert!(found.starts_with("it fits with parallel.gather_ahead = 1 ("), "{found}");
        let fixed = [&weights[..], &["parallel.data=2", "parallel.shard=8"]].concat();
        let found = hinted("llama3-70b", &fixed, 16, 80);
        assert!(found.contains("parallel.shard = 0 and 32 ranks in all ("), "{found}");
        let found = hinted("gpt3-175b", &[], 8, 2);
        assert!(
            found.starts_with("it does not fit even with parallel.sharded = weights"),
            "{found}"
        );
    }
}
