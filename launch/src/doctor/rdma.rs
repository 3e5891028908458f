//! Adapters for RDMA: `Documentation/ABI/stable/sysfs-class-infiniband` of the kernel.

use std::path::Path;

use super::check::{About, Check, Context, Group, Scope};
use super::finding::Finding;
use super::limits::has_rdma;
use crate::machine::files::{names, text};

/// Ports of the adapters of a node.
pub(super) struct RdmaPorts;

/// What lets an adapter reach a GPU's memory.
pub(super) struct GdrDriver;

const NO_ADAPTER: &str = "no RDMA adapter";

impl Check for RdmaPorts {
    fn about(&self) -> &'static About {
        &About {
            name: "rdma_ports",
            group: Group::Network,
            scope: Scope::Node,
            looks_at: "state, rate and GIDs of every port in /sys/class/infiniband",
            thresholds: "fails where no port is ACTIVE, or an active RoCE port has no GID with an \
                         address (nothing can be sent); warns of ports that are down, or slower \
                         than the fastest of the node (a cable or lane that failed)",
            remedy: "check cables and `ibstat`; for RoCE, that the interface has an address",
            fault: "launch/src/doctor/rdma.rs: every_port_is_up_and_as_fast_as_the_others",
        }
    }

    fn run(&self, context: &Context) -> Finding {
        let ports = Port::all(&context.host_root);
        if ports.is_empty() {
            return Finding::skip(NO_ADAPTER);
        }
        let fastest = ports.iter().filter_map(|port| port.gigabits).fold(0.0, f64::max);
        let lists = |is_odd: &dyn Fn(&Port) -> bool| -> Vec<String> {
            ports.iter().filter(|port| is_odd(port)).map(Port::text).collect()
        };
        let down = lists(&|port| !port.is_active);
        let without_gid = lists(&|port| port.is_active && port.is_roce && !port.has_gid);
        let slow = lists(&|port| {
            port.is_active && port.gigabits.is_some_and(|gigabits| gigabits < fastest)
        });
        if down.len() == ports.len() {
            Finding::fail(format!("no port is up: {}", down.join(", ")), "every port ACTIVE")
        } else if !without_gid.is_empty() {
            Finding::fail(format!("no GID: {}", without_gid.join(", ")), "a GID with an address")
        } else if !down.is_empty() {
            Finding::warn(format!("down: {}", down.join(", ")), "every port ACTIVE")
        } else if !slow.is_empty() {
            Finding::warn(format!("slow: {}", slow.join(", ")), format!("{fastest} Gb/s"))
        } else {
            Finding::pass(lists(&|_| true).join(", "))
        }
    }
}

/// A port of an adapter.
struct Port {
    /// As in `mlx5_0/1`.
    name: String,
    is_active: bool,
    gigabits: Option<f64>,
    is_roce: bool,
    has_gid: bool,
    state: String,
}

impl Port {
    fn all(root: &Path) -> Vec<Self> {
        let adapters = root.join("sys/class/infiniband");
        let ports = |adapter: String| {
            let folder = adapters.join(&adapter).join("ports");
            names(&folder)
                .into_iter()
                .map(move |number| Self::read(format!("{adapter}/{number}"), &folder.join(number)))
        };
        names(&adapters).into_iter().flat_map(ports).collect()
    }

    fn read(name: String, folder: &Path) -> Self {
        let line = |file: &str| text(&folder.join(file)).trim().to_owned();
        let state = line("state");
        let state = state.split_once(": ").map_or(state.clone(), |(_, word)| word.to_owned());
        let gids = folder.join("gids");
        let has_gid = names(&gids).iter().any(|number| is_address(text(&gids.join(number)).trim()));
        Self {
            name,
            is_active: state == "ACTIVE",
            gigabits: line("rate").split_whitespace().next().and_then(|rate| rate.parse().ok()),
            is_roce: line("link_layer") == "Ethernet",
            has_gid,
            state,
        }
    }

    fn text(&self) -> String {
        let Self { name, state, gigabits, .. } = self;
        let rate = gigabits.map_or(String::new(), |gigabits| format!(" {gigabits} Gb/s"));
        format!("{name} {state}{rate}")
    }
}

/// Whether others can reach a GID: not one of zeros, nor that of the link alone (fe80).
fn is_address(gid: &str) -> bool {
    gid.bytes().any(|byte| !matches!(byte, b'0' | b':')) && !gid.starts_with("fe80:")
}

impl Check for GdrDriver {
    fn about(&self) -> &'static About {
        &About {
            name: "gdr_driver",
            group: Group::Network,
            scope: Scope::Node,
            looks_at: "nvidia_peermem (memory_peers or its module), or what dma-buf needs: \
                       NVIDIA's open kernel module and Linux 5.12",
            thresholds: "fails where a node with GPUs and RDMA adapters has neither: data then \
                         goes through the host's memory. Whether it is used, `gdr` tells",
            remedy: "load nvidia_peermem, or install the open kernel module of the driver",
            fault: "launch/src/doctor/rdma.rs: gpus_and_adapters_need_peermem_or_dma_buf",
        }
    }

    fn run(&self, context: &Context) -> Finding {
        let root = &context.host_root;
        let driver = text(&root.join("proc/driver/nvidia/version"));
        if driver.is_empty() && !context.on_cuda {
            return Finding::skip("no NVIDIA driver");
        }
        if !has_rdma(root) {
            return Finding::skip(NO_ADAPTER);
        }
        let release = text(&root.join("proc/sys/kernel/osrelease"));
        if PEERMEM.iter().any(|file| root.join(file).exists()) {
            return Finding::pass("nvidia_peermem");
        }
        match driver.contains("Open Kernel Module") && is_at_least(&release, [5, 12]) {
            true => Finding::pass("dma-buf: open kernel module"),
            false => Finding::fail(
                format!("no nvidia_peermem, and no dma-buf with this driver on {}", release.trim()),
                "one of both",
            ),
        }
    }
}

/// Any of these is there where it is loaded: `src/transport/net_ib/gdr.cc` of NCCL.
const PEERMEM: [&str; 3] = [
    "sys/kernel/mm/memory_peers/nv_mem/version",
    "sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "sys/module/nvidia_peermem/version",
];

/// Whether a release such as `6.1.0-18-amd64` is of this version or newer.
fn is_at_least(release: &str, version: [u32; 2]) -> bool {
    let mut parts = release.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    [parts.next().unwrap_or(0), parts.next().unwrap_or(0)] >= version
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::Status::{Fail, Pass, Skip, Warn};
    use super::super::testing::{Host, expect};
    use super::*;

    fn port(adapter: u32) -> PathBuf {
        format!("sys/class/infiniband/mlx5_{adapter}/ports/1").into()
    }

    fn plant(host: &Host, adapter: u32, state: &str, rate: &str, link: &str) {
        let write = |file: &str, text: &str| {
            host.write(&port(adapter).join(file).to_string_lossy(), text);
        };
        write("state", state);
        write("rate", rate);
        write("link_layer", link);
        write("gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n");
    }

    #[test]
    fn every_port_is_up_and_as_fast_as_the_others() {
        let host = Host::new(&[]);
        host.expect(&RdmaPorts, Skip, "no RDMA adapter");
        plant(&host, 0, "1: DOWN\n", "40 Gb/sec (4X QDR)\n", "InfiniBand\n");
        host.expect(&RdmaPorts, Fail, "no port is up: mlx5_0/1 DOWN");
        plant(&host, 1, "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n", "InfiniBand\n");
        host.expect(&RdmaPorts, Warn, "down: mlx5_0/1 DOWN 40 Gb/s");
        plant(&host, 0, "4: ACTIVE\n", "200 Gb/sec (2X NDR)\n", "InfiniBand\n");
        host.expect(&RdmaPorts, Warn, "slow: mlx5_0/1 ACTIVE 200 Gb/s");
        plant(&host, 0, "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n", "InfiniBand\n");
        host.expect(&RdmaPorts, Pass, "mlx5_0/1 ACTIVE 400 Gb/s, mlx5_1/1 ACTIVE 400 Gb/s");
        plant(&host, 1, "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n", "Ethernet\n");
        host.expect(&RdmaPorts, Fail, "no GID: mlx5_1/1");
        let gid = port(1).join("gids/3");
        host.write(&gid.to_string_lossy(), "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
        host.expect(&RdmaPorts, Pass, "");
    }

    #[test]
    fn gpus_and_adapters_need_peermem_or_dma_buf() {
        const DRIVER: &str = "proc/driver/nvidia/version";
        const RELEASE: &str = "proc/sys/kernel/osrelease";
        let host = Host::new(&[]);
        host.expect(&GdrDriver, Skip, "no NVIDIA driver");
        host.write(DRIVER, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.1\n");
        host.expect(&GdrDriver, Skip, "no RDMA adapter");
        host.write("sys/class/infiniband/mlx5_0/fw_ver", "1");
        host.write(RELEASE, "6.1.0-18-amd64\n");
        host.expect(&GdrDriver, Fail, "no nvidia_peermem");
        host.write(DRIVER, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.1\n");
        host.expect(&GdrDriver, Pass, "dma-buf");
        host.write(RELEASE, "5.4.0\n");
        host.expect(&GdrDriver, Fail, "on 5.4.0");
        host.write(PEERMEM[2], "550.1\n");
        host.expect(&GdrDriver, Pass, "nvidia_peermem");
        let on_cuda = Context { on_cuda: true, ..Host::new(&[]).context() };
        expect(GdrDriver.run(&on_cuda), Skip, "no RDMA adapter");
    }
}
