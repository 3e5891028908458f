//! Check of GPU errors that the driver reports: errors while the doctor runs, and those in the
//! kernel's log.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use device::cuda;
use launch::doctor::{CheckDesc, Finding, Group, Scope, Status};

use super::gpu_health::{NO_GPU, named, worst};
use telemetry::hardware::XidWatch;

pub(super) const XID: CheckDesc = CheckDesc {
    name: "xid",
    group: Group::Gpu,
    scope: Scope::Rank,
    inspects: "NVML's XID events while the doctor runs, the all-reduce of `transports` included, \
               and XID errors in the kernel's log",
    thresholds: "fails for an event; warns for an error in the log, which may be old; skips if the \
                 log cannot be read, because NVML does not report earlier errors",
    remedy: "look the number up in NVIDIA's XID catalog; drain the node for 48, 63, 64, 74, 79, 94 \
             and 95",
    fault: "tests/cuda/doctor.rs: what_a_gpu_tells_fails",
};

/// Watches for errors of every GPU of the rank, for as long as it lives.
pub(super) struct Xids(Option<Vec<Watched>>);

struct Watched {
    pci_bus_id: String,
    watch: Result<XidWatch, String>,
}

impl Xids {
    /// Starts to watch.
    pub(super) fn watch() -> Self {
        let watched = |device: cuda::DeviceProperties| Watched {
            watch: XidWatch::new(&device.pci_bus_id),
            pci_bus_id: device.pci_bus_id,
        };
        Self(cuda::devices().ok().map(|devices| devices.into_iter().map(watched).collect()))
    }

    /// Returns errors up to now, and those in the log of the host below this root.
    pub(super) fn finding(self, host_root: &Path) -> Finding {
        let reported = self.reported();
        if reported.status >= Status::Warn {
            return reported;
        }
        let logged = logged_xids(&host_root.join("dev/kmsg"));
        match logged.as_ref().map(|logged| logged.last().map(|last| (logged.len(), last))) {
            Some(Some((count, last))) => {
                Finding::warn(format!("{count} in the kernel's log, the last: {last}"), "none")
            }
            None if reported.status == Status::Pass => {
                Finding::skip("none while this ran; the kernel's log cannot be read")
            }
            None | Some(None) => reported,
        }
    }

    fn reported(self) -> Finding {
        let Some(gpus) = self.0 else { return Finding::skip(NO_GPU) };
        let look = |Watched { pci_bus_id, watch }: Watched| {
            let finding = match watch {
                Ok(mut watch) => Finding::fail(watch.error()?, "none"),
                Err(why) => Finding::skip(why),
            };
            Some(named(&pci_bus_id, finding))
        };
        worst(&gpus.into_iter().filter_map(look).collect::<Vec<_>>(), "none")
    }
}

/// Returns the XID errors in the kernel's log; `None` where it cannot be read.
fn logged_xids(log: &Path) -> Option<Vec<String>> {
    // Each read returns one record, and would block after the last.
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
        let finding = Xids::watch().finding(root.path());
        assert_eq!(finding.status, Status::Warn, "{finding:?}");
        let expected = "1 in the kernel's log, the last: Xid (PCI:0000:17:00): 79, pid=1";
        assert!(finding.found.starts_with(expected), "{finding:?}");
    }
}
