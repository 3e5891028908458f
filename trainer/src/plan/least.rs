//! The least number of devices that a workload can train on.

use models::fused::Recompute;
use models::workload::Compute;
use serde::Serialize;

use super::recompute::{available_bytes, with_chosen_recompute};
use super::{JobShape, RankPlan};
use crate::config::{Config, Device, Sharded};
use crate::failure::Outcome;

/// Devices of a node, unless it is said.
pub const DEVICES_OF_NODE: usize = 8;

/// Largest number of devices that is tried.
const DEVICES_MAX: usize = 1 << 14;

/// Devices of one size that suffice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LeastDevices {
    /// Memory of one device.
    pub device_memory_bytes: u64,
    /// Number of devices, a power of two.
    pub devices: usize,
    /// The least that has to be sharded.
    pub sharded: Sharded,
    /// Activations that have to be computed again.
    pub recompute: Recompute,
    /// Memory that a rank needs on its device.
    pub needed_bytes: u64,
}

/// Returns the least power of two of CUDA devices of this size that train the workload in bf16, all
/// in one shard group, and how; `None` if none of them do.
///
/// # Errors
/// Those of the plan.
pub fn least_devices(config: &Config, device_memory_bytes: u64) -> Outcome<Option<LeastDevices>> {
    let mut config = config.clone();
    config.settings.run.device = Device::Cuda;
    config.workload.precision.compute = Compute::Bf16;
    let mut devices = 1;
    while devices <= DEVICES_MAX && config.workload.batch.accumulation(devices).is_ok() {
        if let Some(found) = with_devices(&config, devices, device_memory_bytes)? {
            return Ok(Some(found));
        }
        devices *= 2;
    }
    Ok(None)
}

/// Returns the least that has to be sharded on so many devices.
fn with_devices(
    config: &Config,
    devices: usize,
    device_memory_bytes: u64,
) -> Outcome<Option<LeastDevices>> {
    let local = devices.min(DEVICES_OF_NODE);
    let shape = JobShape { world: devices, local, threads: 1, shares_memory: true };
    let fitting = |sharded: Sharded| -> Outcome<Option<LeastDevices>> {
        let mut config = config.clone();
        config.settings.parallel.sharded = sharded;
        let config = with_chosen_recompute(&config, shape, Some(device_memory_bytes))?;
        let plan = RankPlan::new(&config, shape, None)?;
        let needed_bytes = plan.device.map_or(0, |device| device.total_bytes);
        let fits = needed_bytes <= available_bytes(device_memory_bytes);
        let recompute = config.recompute();
        let found = LeastDevices { device_memory_bytes, devices, sharded, recompute, needed_bytes };
        Ok(fits.then_some(found))
    };
    if devices == 1 {
        return fitting(Sharded::None);
    }
    // Most worlds are too small for any kind, and a model that needs many has many buckets.
    let most = fitting(Sharded::Weights)?;
    if most.is_none() {
        return Ok(None);
    }
    for sharded in Sharded::ALL {
        if let Some(found) = fitting(sharded)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn least(workload: &str, gib: u64) -> Option<LeastDevices> {
        least_devices(&Config::load(workload, &[]).unwrap(), gib * GIB).unwrap()
    }

    #[test]
    fn a_model_of_70b_needs_few_devices_if_weights_are_sharded() {
        let on_80 = least("llama3-70b", 80).unwrap();
        assert_eq!((on_80.sharded, on_80.devices), (Sharded::Weights, 32));
        let on_192 = least("llama3-70b", 192).unwrap();
        assert!(on_192.devices < on_80.devices);
        assert_eq!(least("gpt2-124m", 80).unwrap().devices, 1);
        assert_eq!(least("gpt3-175b", 1), None);
    }

    /// State and windows of a rank, without activations.
    #[test]
    fn a_rank_of_64_has_35_gib_of_a_model_of_70b() {
        let settings = [
            "precision.compute=bf16",
            "parallel.sharded=weights",
            "run.device=cuda",
            "run.recompute=full",
        ];
        let config = Config::load("llama3-70b", &settings.map(str::to_owned)).unwrap();
        let shape = JobShape { world: 64, local: 8, threads: 1, shares_memory: true };
        let device = RankPlan::new(&config, shape, None).unwrap().device.unwrap();
        let state = device.plan.bytes_of(&models::memory::FLAT_BUFFERS);
        assert!(state < 35 * GIB && device.total_bytes < 60 * GIB, "{device:?}");
    }

    #[test]
    fn fewer_devices_do_not_suffice() {
        let found = least("llama3-8b", 80).unwrap();
        let mut config = Config::load("llama3-8b", &["precision.compute=bf16".into()]).unwrap();
        config.settings.run.device = Device::Cuda;
        assert_eq!(with_devices(&config, found.devices / 2, 80 * GIB).unwrap(), None);
        assert_eq!(with_devices(&config, found.devices, 80 * GIB).unwrap(), Some(found));
    }
}
