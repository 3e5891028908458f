//! The GPUs that a rank sees: that they are there, and what NVML and the kernel say of them.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use device::cuda::{self, DeviceProperties, Libraries, Required};
use launch::doctor::{About, Check, Context, Finding, Group, Scope, Status};

use crate::hardware::GpuHealth;

/// That there are GPUs, and libraries for them.
pub(super) struct Gpus;

/// Errors of their memory.
pub(super) struct Ecc;

/// Errors that their driver reports.
pub(super) struct Xid;

/// What holds their clocks down.
pub(super) struct GpuClocks;

const NO_GPU: &str = "no GPU";

pub(super) const GPUS: About = About {
    name: "gpus",
    group: Group::Gpu,
    scope: Scope::Rank,
    looks_at: "the CUDA devices of the rank, and the libraries that training needs",
    thresholds: "with --device cuda: fails without a device or a library, warns where ranks of a \
                 node share a device or devices are of several models",
    remedy: "see `yardstick devices`; ask for as many GPUs as ranks (nvidia.com/gpu)",
    fault: "tests/doctor.rs: a_gpu_that_is_missing_fails",
};

pub(super) const ECC: About = About {
    name: "ecc",
    group: Group::Gpu,
    scope: Scope::Rank,
    looks_at: "NVML: uncorrected ECC errors since the driver started, and rows that were remapped",
    thresholds: "fails from the first uncorrected error on (a result may be wrong), and where a \
                 row could not be remapped; warns where remapping waits for a reset",
    remedy: "reset the GPU (`nvidia-smi -r`) or restart the node; replace it if that comes back",
    fault: "tests/cuda_doctor.rs: what_a_gpu_tells_fails",
};

pub(super) const XID: About = About {
    name: "xid",
    group: Group::Gpu,
    scope: Scope::Rank,
    looks_at: "NVML's XID events while it looks, and XID errors in the kernel's log",
    thresholds: "fails for an event; warns for one in the log, which may be old; skips where \
                 that log cannot be read, as NVML tells nothing of what was before",
    remedy: "look the number up in NVIDIA's XID catalog; drain the node for 48, 63, 64, 74, 79, 94 \
             and 95",
    fault: "tests/cuda_doctor.rs: what_a_gpu_tells_fails",
};

pub(super) const CLOCKS: About = About {
    name: "gpu_clocks",
    group: Group::Gpu,
    scope: Scope::Rank,
    looks_at: "NVML: reasons for which clocks are held down",
    thresholds: "warns for slowdowns by hardware, by heat, and by the power brake; a power cap is \
                 met in a healthy machine",
    remedy: "check cooling and power supply of the node",
    fault: "tests/cuda_doctor.rs: what_a_gpu_tells_fails",
};

impl Check for Gpus {
    fn about(&self) -> &'static About {
        &GPUS
    }

    fn run(&self, context: &Context) -> Finding {
        let devices = match cuda::devices() {
            Ok(devices) => devices,
            Err(error) if context.on_cuda => {
                return Finding::fail(error.to_string(), "a device for each rank");
            }
            Err(_) => return Finding::skip(NO_GPU),
        };
        let found = names(&devices);
        let needed = Required { nccl: context.world > 1, ..Required::TRAINING };
        if let Err(error) = Libraries::open(&needed)
            && context.on_cuda
        {
            return Finding::fail(error.to_string(), "the libraries of `yardstick devices`");
        }
        let ranks = context.local_world;
        if devices.iter().any(|device| device.name != devices[0].name) {
            Finding::warn(found, "devices of one model")
        } else if context.on_cuda && devices.len() > 1 && devices.len() < ranks {
            Finding::warn(found, format!("a device for each of {ranks} ranks"))
        } else {
            Finding::pass(found)
        }
    }
}

/// As in `8 x NVIDIA H100`.
fn names(devices: &[DeviceProperties]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    devices.iter().for_each(|device| *counts.entry(&device.name).or_default() += 1);
    let texts: Vec<_> = counts.iter().map(|(name, count)| format!("{count} x {name}")).collect();
    texts.join(", ")
}

/// Asks every GPU, and keeps what `odd` says of those that are the least as they should be.
fn of_each(odd: impl Fn(&GpuHealth) -> Option<Finding>) -> Finding {
    let Ok(devices) = cuda::devices() else { return Finding::skip(NO_GPU) };
    let look = |device: &DeviceProperties| {
        let name = &device.pci_bus_id;
        let finding = match GpuHealth::of(name) {
            Ok(health) => odd(&health)?,
            Err(why) => Finding::skip(why),
        };
        Some(Finding { found: format!("GPU {name}: {}", finding.found), ..finding })
    };
    let all: Vec<_> = devices.iter().filter_map(look).collect();
    let Some(worst) = all.iter().max_by_key(|finding| finding.status) else {
        return Finding::pass("none");
    };
    let alike = all.iter().filter(|finding| finding.status == worst.status);
    let texts: Vec<_> = alike.map(|finding| finding.found.clone()).collect();
    Finding { found: texts.join("; "), ..worst.clone() }
}

impl Check for Ecc {
    fn about(&self) -> &'static About {
        &ECC
    }

    fn run(&self, _: &Context) -> Finding {
        of_each(|gpu| match gpu.uncorrected_errors {
            Some(0) | None if gpu.remapping_failed => {
                Some(Finding::fail("a row could not be remapped", "none"))
            }
            Some(0) if gpu.remapping_waits => {
                Some(Finding::warn("a row waits to be remapped", "none"))
            }
            Some(0) => None,
            None => Some(Finding::skip("it has no ECC, or does not tell")),
            Some(errors) => Some(Finding::fail(format!("{errors} uncorrected ECC errors"), "none")),
        })
    }
}

impl Check for GpuClocks {
    fn about(&self) -> &'static About {
        &CLOCKS
    }

    fn run(&self, _: &Context) -> Finding {
        of_each(|gpu| match &gpu.throttled {
            Some(reasons) if reasons.is_empty() => None,
            Some(reasons) => Some(Finding::warn(reasons.join(", "), "no reason of these")),
            None => Some(Finding::skip("it does not tell")),
        })
    }
}

impl Check for Xid {
    fn about(&self) -> &'static About {
        &XID
    }

    fn run(&self, context: &Context) -> Finding {
        let told = of_each(|gpu| gpu.xid.as_ref().map(|xid| Finding::fail(xid.clone(), "none")));
        if told.status >= Status::Warn {
            return told;
        }
        let logged = logged_xids(&context.host_root.join("dev/kmsg"));
        match logged.as_ref().map(|logged| logged.last().map(|last| (logged.len(), last))) {
            Some(Some((count, last))) => {
                Finding::warn(format!("{count} in the kernel's log, the last: {last}"), "none")
            }
            // NVML tells only what happens from now on.
            None if told.status == Status::Pass => {
                Finding::skip("none since now; the kernel's log cannot be read")
            }
            None | Some(None) => told,
        }
    }
}

/// XID errors in the kernel's log; `None` where it cannot be read.
fn logged_xids(log: &Path) -> Option<Vec<String>> {
    // Each read gives one record, and would wait for the next after the last.
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    let open = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(log);
    let mut file = open.ok()?;
    let mut text = Vec::new();
    let mut record = [0; 8192];
    while let Ok(read @ 1..) = file.read(&mut record) {
        text.extend_from_slice(&record[..read]);
    }
    let text = String::from_utf8_lossy(&text);
    let xids = text.lines().filter_map(|line| Some(line.split_once("NVRM: Xid")?.1.trim()));
    Some(xids.map(|xid| format!("Xid {}", xid.trim_start_matches(": "))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xids_of_the_kernel_s_log_warn() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("dev")).unwrap();
        let log = "6,1,1,-;eth0: link up\n\
                   3,2,2,-;NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.\n";
        std::fs::write(root.path().join("dev/kmsg"), log).unwrap();
        let context = Context {
            root: root.path().to_owned(),
            host_root: root.path().to_owned(),
            world: 1,
            local_world: 1,
            threads: 1,
            on_cuda: false,
            nccl_ib_hca: None,
            memory_bytes: None,
        };
        let finding = Xid.run(&context);
        assert_eq!(finding.status, Status::Warn, "{finding:?}");
        let expected = "1 in the kernel's log, the last: Xid (PCI:0000:17:00): 79, pid=1";
        assert!(finding.found.starts_with(expected), "{finding:?}");
    }
}
