//! Choice of `run.recompute` where it is not set.

use device::cuda;
use models::fused::Recompute;

use super::{JobShape, RankPlan};
use crate::config::Config;
use crate::failure::Outcome;

/// Reserve for the driver's context, of each rank; not measured yet.
const CONTEXT_BYTES: u64 = 1 << 30;

/// Returns what a rank can allocate of a device's memory.
pub(super) fn available_bytes(memory_bytes: u64) -> u64 {
    memory_bytes.saturating_sub(CONTEXT_BYTES)
}

/// Returns the configuration with what a run chooses where `run.recompute` is not set: on a CUDA
/// device with so many bytes for each rank the least with which a rank fits, and the most if it
/// fits with no level.
///
/// It depends on the size of the memory, and not on what is free at the moment: the same machine
/// runs the same kernels every night.
///
/// # Errors
/// Those of the plan.
pub fn with_chosen_recompute(
    config: &Config,
    shape: JobShape,
    device_bytes: Option<u64>,
) -> Outcome<Config> {
    let is_set = config.settings.run.recompute.is_some();
    let level = match device_bytes.filter(|_| config.is_on_cuda() && !is_set) {
        Some(bytes) => least_that_fits(config, shape, bytes)?,
        None => config.recompute(),
    };
    Ok(Config { chosen_recompute: Some(level), ..config.clone() })
}

fn least_that_fits(config: &Config, shape: JobShape, device_bytes: u64) -> Outcome<Recompute> {
    for level in [Recompute::None, Recompute::Selective] {
        let plan = RankPlan::new(&with_recompute(config, level), shape, None)?;
        let needed = plan.device.map_or(0, |device| device.total_bytes);
        if needed <= available_bytes(device_bytes) {
            return Ok(level);
        }
    }
    let has_one_block = config.workload.model.layers == 1;
    Ok(if has_one_block { Recompute::Selective } else { Recompute::Full })
}

/// Returns the memory of a device of this machine that each of its ranks can use, if there is a
/// device: the smallest counts.
pub fn device_bytes_of_rank(local_ranks: usize) -> Option<u64> {
    let devices = cuda::devices().ok()?;
    let least = devices.iter().map(|device| device.memory_bytes).min()?;
    Some(least / local_ranks.div_ceil(devices.len()) as u64)
}

/// Returns the configuration with this setting.
pub(super) fn with_recompute(config: &Config, level: Recompute) -> Config {
    let mut config = config.clone();
    config.settings.run.recompute = Some(level);
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_that_fits_is_chosen_unless_it_is_set() {
        let shape = JobShape { world: 8, local: 8, threads: 1, shares_memory: true };
        let chosen = |settings: &[&str], gib: Option<u64>| {
            let settings = ["precision.compute=bf16"].iter().chain(settings);
            let settings: Vec<_> = settings.map(ToString::to_string).collect();
            let config = Config::load("gpt2-124m", &settings).unwrap();
            with_chosen_recompute(&config, shape, gib.map(|gib| gib << 30)).unwrap().recompute()
        };
        let on_cuda = ["run.device=cuda", "batch.micro_sequences=32"];
        assert_eq!(chosen(&on_cuda, Some(80)), Recompute::None);
        assert_eq!(chosen(&on_cuda, Some(12)), Recompute::Selective);
        assert_eq!(chosen(&on_cuda, Some(8)), Recompute::Full);
        assert_eq!(chosen(&on_cuda, Some(1)), Recompute::Full, "fits with no level");
        let one_block = [&on_cuda[..], &["model.layers=1"]].concat();
        assert_eq!(chosen(&one_block, Some(1)), Recompute::Selective, "all blocks are one");
        assert_eq!(chosen(&on_cuda, None), Recompute::None, "memory unknown");
        let set = [&on_cuda[..], &["run.recompute=none"]].concat();
        assert_eq!(chosen(&set, Some(8)), Recompute::None);
        assert_eq!(chosen(&[], Some(1)), Recompute::Selective, "the processor");
    }
}
