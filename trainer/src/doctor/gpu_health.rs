//! Health of each GPU that a rank sees, by NVML: memory and its errors, clocks, and the PCIe link.

use device::cuda::{self, DeviceProperties};
use launch::doctor::{Check, CheckDesc, Context, Finding, Group, Scope};

use telemetry::hardware::{GpuHealth, GpuMemoryUse};

/// Check of memory errors of the GPUs.
pub(super) struct Ecc;

/// Check of what limits the clocks of the GPUs.
pub(super) struct GpuClocks;

/// Check of who uses the memory of the GPUs.
pub(super) struct GpuMemory {
    /// Memory that the workload's plan needs on the device of a rank, where it is known.
    pub(super) needed_bytes: Option<u64>,
}

/// Check of the PCIe lanes of the GPUs.
pub(super) struct GpuPcie;

pub(super) const NO_GPU: &str = "no GPU";

/// Least memory in use that shows another process: the driver's own is less, a CUDA context more.
const OTHERS_BYTES: u64 = 128 << 20;

pub(super) const ECC: CheckDesc = CheckDesc {
    name: "ecc",
    group: Group::Gpu,
    scope: Scope::Rank,
    inspects: "NVML: uncorrected ECC errors since the driver started, and rows that were remapped",
    thresholds: "fails from the first uncorrected error on (a result may be wrong), and where a \
                 row could not be remapped; warns where remapping waits for a reset",
    remedy: "reset the GPU (`nvidia-smi -r`) or restart the node; replace the GPU if it fails \
             again",
    fault: "tests/cuda/doctor.rs: what_a_gpu_tells_fails",
};

pub(super) const CLOCKS: CheckDesc = CheckDesc {
    name: "gpu_clocks",
    group: Group::Gpu,
    scope: Scope::Rank,
    inspects: "NVML: the reasons why clocks are reduced",
    thresholds: "warns for slowdowns by hardware, by heat, and by the power brake; not for a power \
                 cap, which healthy machines reach, too",
    remedy: "check cooling and power supply of the node",
    fault: "tests/cuda/doctor.rs: what_a_gpu_tells_fails",
};

pub(super) const MEMORY: CheckDesc = CheckDesc {
    name: "gpu_memory",
    group: Group::Gpu,
    scope: Scope::Rank,
    inspects: "NVML: memory in use before the doctor itself uses any, and the processes that hold \
               it; on GPUs the memory plan of --workload",
    thresholds: "warns from 128 MiB on: a process of another or an earlier job holds them; fails \
                 if the plan does not fit into the rest",
    remedy: "end the processes that are named (by their ids on the host); `fuser -v /dev/nvidia*` \
             on the node finds those that NVML does not name in a container",
    fault: "tests/cuda/doctor.rs: memory_that_others_use_warns_and_fails",
};

pub(super) const PCIE: CheckDesc = CheckDesc {
    name: "gpu_pcie",
    group: Group::Gpu,
    scope: Scope::Rank,
    inspects: "NVML: lanes of the PCIe link in use, and those that GPU and slot have; not its \
               generation, which falls while the GPU is idle",
    thresholds: "warns about fewer lanes: the link then has less bandwidth to host memory and \
                 adapters",
    remedy: "see `nvidia-smi -q -d PCIE`; reseat the GPU or its riser, and compare with the other \
             nodes",
    fault: "tests/cuda/doctor.rs: what_a_gpu_tells_fails",
};

/// Examines every GPU with `odd`, and keeps the worst findings; `good` if there are none.
fn of_each(good: &str, odd: impl Fn(&GpuHealth) -> Option<Finding>) -> Finding {
    let Ok(devices) = cuda::devices() else { return Finding::skip(NO_GPU) };
    let look = |device: &DeviceProperties| {
        let name = &device.pci_bus_id;
        let finding = match GpuHealth::of(name) {
            Ok(health) => odd(&health)?,
            Err(why) => Finding::skip(why),
        };
        Some(named(name, finding))
    };
    worst(&devices.iter().filter_map(look).collect::<Vec<_>>(), good)
}

/// Returns a finding that names its GPU.
pub(super) fn named(pci_bus_id: &str, finding: Finding) -> Finding {
    Finding { found: format!("GPU {pci_bus_id}: {}", finding.found), ..finding }
}

/// Joins the findings of the worst status; `good` if there are none.
pub(super) fn worst(all: &[Finding], good: &str) -> Finding {
    let Some(worst) = all.iter().max_by_key(|finding| finding.status) else {
        return Finding::pass(good);
    };
    let alike = all.iter().filter(|finding| finding.status == worst.status);
    let texts: Vec<_> = alike.map(|finding| finding.found.clone()).collect();
    Finding { found: texts.join("; "), ..worst.clone() }
}

impl Check for Ecc {
    fn desc(&self) -> &'static CheckDesc {
        &ECC
    }

    fn run(&self, _: &Context) -> Finding {
        of_each("none", errors)
    }
}

fn errors(gpu: &GpuHealth) -> Option<Finding> {
    match gpu.uncorrected_errors {
        Some(0) | None if gpu.remapping_failed => {
            Some(Finding::fail("a row could not be remapped", "none"))
        }
        Some(0) if gpu.remapping_waits => Some(Finding::warn("a row waits to be remapped", "none")),
        Some(0) => None,
        None => Some(Finding::skip("it has no ECC, or does not report it")),
        Some(errors) => Some(Finding::fail(format!("{errors} uncorrected ECC errors"), "none")),
    }
}

impl Check for GpuClocks {
    fn desc(&self) -> &'static CheckDesc {
        &CLOCKS
    }

    fn run(&self, _: &Context) -> Finding {
        of_each("none", |gpu| match &gpu.throttled {
            Some(reasons) if reasons.is_empty() => None,
            Some(reasons) => Some(Finding::warn(reasons.join(", "), "no reason of these")),
            None => Some(Finding::skip("the driver does not report it")),
        })
    }
}

impl Check for GpuMemory {
    fn desc(&self) -> &'static CheckDesc {
        &MEMORY
    }

    fn run(&self, context: &Context) -> Finding {
        let devices = cuda::devices().map_or(1, |devices| devices.len());
        // A rank may see only its own device.
        let sharing = if devices == 1 { 1 } else { context.local_world.div_ceil(devices) };
        let needed_bytes = self.needed_bytes.map(|bytes| bytes * sharing as u64);
        of_each("not in use", |gpu| match &gpu.memory {
            Some(memory) => judge(memory, needed_bytes),
            None => Some(Finding::skip("it is partitioned, or does not report it")),
        })
    }
}

fn judge(memory: &GpuMemoryUse, needed_bytes: Option<u64>) -> Option<Finding> {
    let GpuMemoryUse { used_bytes, free_bytes, processes } = memory;
    let holders: Vec<_> = processes.iter().map(u32::to_string).collect();
    let by = match holders.as_slice() {
        [] => "; NVML names no process".to_owned(),
        [holder] => format!(" by process {holder}"),
        _ => format!(" by processes {}", holders.join(", ")),
    };
    let found = format!("{} MiB in use{by}", used_bytes >> 20);
    if let Some(needed) = needed_bytes.filter(|needed| needed > free_bytes) {
        let free = format!("{found}, {} MiB free", free_bytes >> 20);
        return Some(Finding::fail(free, format!("{} MiB for the workload", needed >> 20)));
    }
    (*used_bytes >= OTHERS_BYTES)
        .then(|| Finding::warn(found, "no memory in use by other processes"))
}

impl Check for GpuPcie {
    fn desc(&self) -> &'static CheckDesc {
        &PCIE
    }

    fn run(&self, _: &Context) -> Finding {
        of_each("every lane is in use", |gpu| match &gpu.lanes {
            Some(lanes) if lanes.current < lanes.max => {
                let found = format!("{} PCIe lanes", lanes.current);
                Some(Finding::warn(found, format!("{} lanes", lanes.max)))
            }
            Some(_) => None,
            None => Some(Finding::skip("the driver does not report it")),
        })
    }
}

#[cfg(test)]
mod tests {
    use launch::doctor::Status;

    use super::*;

    #[test]
    fn a_row_that_is_not_remapped_counts_too() {
        let healthy = GpuHealth {
            uncorrected_errors: Some(0),
            remapping_failed: false,
            remapping_waits: false,
            throttled: None,
            memory: None,
            lanes: None,
        };
        let status = |gpu: GpuHealth| errors(&gpu).map(|finding| finding.status);
        assert_eq!(status(healthy.clone()), None);
        let waits = GpuHealth { remapping_waits: true, ..healthy.clone() };
        assert_eq!(status(waits.clone()), Some(Status::Warn));
        let failed = GpuHealth { remapping_failed: true, ..waits };
        assert_eq!(status(failed.clone()), Some(Status::Fail));
        let without_ecc = GpuHealth { uncorrected_errors: None, ..failed };
        assert_eq!(status(without_ecc), Some(Status::Fail));
        let unknown = GpuHealth { uncorrected_errors: None, ..healthy };
        assert_eq!(status(unknown), Some(Status::Skip));
    }
}
