//! Check that the GPUs of a rank are present, with libraries for them.

use std::collections::{BTreeMap, BTreeSet};

use device::cuda::{self, DeviceProperties, Libraries, Required};
use launch::doctor::{Check, CheckDesc, Context, Finding, Group, Scope};

use super::gpu_health::NO_GPU;
use telemetry::hardware::lost_gpus;

/// Check of the GPUs and their libraries.
pub(super) struct Gpus;

pub(super) const GPUS: CheckDesc = CheckDesc {
    name: "gpus",
    group: Group::Gpu,
    scope: Scope::Rank,
    inspects: "the CUDA devices of the rank, those that NVML has lost, and the libraries that \
               training needs",
    thresholds: "fails where the driver has lost a GPU (it has fallen off the bus: XID 79); with \
                 --device cuda: fails without a device or a library, warns where ranks of a node \
                 share a device or devices are of several models",
    remedy: "see `yardstick devices`; ask for as many GPUs as ranks (nvidia.com/gpu); for a lost \
             GPU drain and restart the node, and replace the GPU if it is lost again",
    fault: "tests/commands/doctor.rs: a_gpu_that_is_missing_fails",
};

impl Check for Gpus {
    fn desc(&self) -> &'static CheckDesc {
        &GPUS
    }

    fn run(&self, context: &Context) -> Finding {
        let devices = cuda::devices();
        let lost = lost(devices.as_deref().unwrap_or_default(), context);
        if !lost.is_empty() {
            return Finding::fail(format!("lost: {}", lost.join(", ")), "no GPU is lost");
        }
        let devices = match devices {
            Ok(devices) => devices,
            Err(error) if context.on_cuda => {
                return Finding::fail(error.to_string(), "a device for each rank");
            }
            Err(_) => return Finding::skip(NO_GPU),
        };
        let needed = Required { nccl: context.world > 1, ..Required::TRAINING };
        if let Err(error) = Libraries::open(&needed)
            && context.on_cuda
        {
            return Finding::fail(error.to_string(), "the libraries of `yardstick devices`");
        }
        let models: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
        judge(&models, context)
    }
}

/// Judges the devices, by their models.
fn judge(models: &[&str], context: &Context) -> Finding {
    let found = counted(models);
    let ranks = context.local_world;
    if models.iter().any(|model| *model != models[0]) {
        Finding::warn(found, "devices of one model")
    } else if context.on_cuda && models.len() > 1 && models.len() < ranks {
        Finding::warn(found, format!("a device for each of {ranks} ranks"))
    } else {
        Finding::pass(found)
    }
}

/// Counts models, as in `8 x NVIDIA H100`.
fn counted(models: &[&str]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    models.iter().for_each(|model| *counts.entry(model).or_default() += 1);
    let texts: Vec<_> = counts.iter().map(|(name, count)| format!("{count} x {name}")).collect();
    texts.join(", ")
}

/// Returns GPUs that the driver has lost, among CUDA's devices and those that CUDA no longer shows.
fn lost(devices: &[DeviceProperties], context: &Context) -> Vec<String> {
    let of_cuda = devices.iter().map(|device| device.pci_bus_id.clone());
    let folder = context.host_root.join("proc/driver/nvidia/gpus");
    let of_driver = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let of_driver = of_driver.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let addresses: BTreeSet<_> = of_cuda.chain(of_driver).map(|it| it.to_lowercase()).collect();
    lost_gpus(&addresses.into_iter().collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use launch::doctor::Status;

    use super::*;

    #[test]
    fn ranks_that_share_devices_and_devices_that_differ_warn() {
        let context = Context {
            root: "/".into(),
            host_root: "/".into(),
            world: 3,
            local_world: 3,
            threads: 1,
            on_cuda: true,
            nccl_ib_hca: None,
            memory_bytes: None,
        };
        let three = judge(&["H100", "H100", "H100"], &context);
        assert_eq!(three, Finding::pass("3 x H100"));
        let two = judge(&["H100", "H100"], &context);
        assert_eq!(two, Finding::warn("2 x H100", "a device for each of 3 ranks"));
        // A rank may see only its own device.
        assert_eq!(judge(&["H100"], &context).status, Status::Pass);
        let mixed = judge(&["H100", "A100", "H100"], &context);
        assert_eq!(mixed, Finding::warn("1 x A100, 2 x H100", "devices of one model"));
    }
}
