//! Choice of `run.recompute` where it is not set.

use device::cuda;
use models::fused::Recompute;

use super::{JobShape, RankPlan};
use crate::config::Config;
use crate::failure::Outcome;

/// Part of a device's memory that is left to the driver's context: 1.25 of 80 GiB.
const CONTEXT_SHARE: u64 = 64;

/// Returns the setting, or else, on a CUDA device with so many bytes for each rank, the least
/// recomputation with which a rank fits; all of it if it fits with none.
///
/// It depends on the size of the memory, and not on what is free at the moment: the same machine
/// runs the same kernels every night.
///
/// # Errors
/// Those of the plan.
pub fn choose_recompute(
    config: &Config,
    shape: JobShape,
    device_bytes: Option<u64>,
) -> Outcome<Recompute> {
    let is_chosen = config.settings.run.recompute.is_some();
    let Some(bytes) = device_bytes.filter(|_| config.is_on_cuda() && !is_chosen) else {
        return Ok(config.recompute());
    };
    for level in [Recompute::None, Recompute::Selective] {
        let plan = RankPlan::new(&with_recompute(config, level), shape, None)?;
        let needed = plan.device.map_or(0, |device| device.total_bytes);
        if needed <= bytes - bytes / CONTEXT_SHARE {
            return Ok(level);
        }
    }
    Ok(Recompute::Full)
}

/// Returns the memory of a device of this machine that each of its ranks can use, if there is a
/// device: the smallest counts.
pub fn device_bytes_of_rank(local_ranks: usize) -> Option<u64> {
    let devices = cuda::devices().ok()?;
    let least = devices.iter().map(|device| device.memory_bytes).min()?;
    Some(least / local_ranks.div_ceil(devices.len()) as u64)
}

/// Returns the configuration with this setting.
pub fn with_recompute(config: &Config, level: Recompute) -> Config {
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
            choose_recompute(&config, shape, gib.map(|gib| gib << 30)).unwrap()
        };
        let on_cuda = ["run.device=cuda", "batch.micro_sequences=32"];
        assert_eq!(chosen(&on_cuda, Some(80)), Recompute::None);
        assert_eq!(chosen(&on_cuda, Some(12)), Recompute::Selective);
        assert_eq!(chosen(&on_cuda, Some(8)), Recompute::Full);
        assert_eq!(chosen(&on_cuda, Some(1)), Recompute::Full, "fits with none");
        assert_eq!(chosen(&on_cuda, None), Recompute::None, "memory unknown");
        let set = [&on_cuda[..], &["run.recompute=none"]].concat();
        assert_eq!(chosen(&set, Some(8)), Recompute::None);
        assert_eq!(chosen(&[], Some(1)), Recompute::Selective, "the processor");
    }
}
