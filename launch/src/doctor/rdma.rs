//! RDMA ports, and the drivers that let them reach GPUs:
//! `Documentation/ABI/stable/sysfs-class-infiniband` of the kernel.

use super::adapters::{Adapter, Port};
use super::check::{Check, CheckDesc, Context, Group, Scope};
use super::finding::Finding;
use record::files::system::text;

/// Check of the ports of a node's adapters.
pub(super) struct RdmaPorts;

/// Check of the driver that lets an adapter reach a GPU's memory.
pub(super) struct GdrDriver;

const NO_ADAPTER: &str = "no RDMA adapter";

/// Message for a container without any of the node's adapters.
const NONE_HERE: &str = "the node has RDMA adapters, but none in /dev/infiniband";

impl Check for RdmaPorts {
    fn desc(&self) -> &'static CheckDesc {
        &CheckDesc {
            name: "rdma_ports",
            group: Group::Network,
            scope: Scope::Node,
            inspects: "state, rate and GIDs of every port in /sys/class/infiniband whose adapter \
                       is in /dev/infiniband, and that NCCL_IB_HCA does not leave out",
            thresholds: "a port is usable if it is ACTIVE and, for RoCE, has a GID with an \
                         address. Fails if ranks on GPUs, or on CPUs with InfiniBand, are on \
                         several nodes and no port is usable. Fails if NCCL_IB_HCA names ports \
                         that do not exist and ranks are on GPUs. Warns about each unusable port, \
                         and about ports slower than the fastest of the node (a cable or lane \
                         failed). Warns if ranks on GPUs of several nodes have no adapter although \
                         the nodes have some. Ethernet beside InfiniBand counts only if \
                         NCCL_IB_HCA names it",
            remedy: "check cables and `ibstat`; for RoCE, that the interface has an address; in a \
                     pod, that it asks for the resource of the adapters; name the ports of the job \
                     in NCCL_IB_HCA",
            fault: "launch/src/doctor/rdma.rs: every_port_is_up_and_as_fast_as_the_others",
        }
    }

    fn run(&self, context: &Context) -> Finding {
        let adapters = Adapter::all(context);
        let ports = Port::used(context);
        let matters = context.on_cuda && context.has_several_nodes();
        if adapters.is_empty() {
            Finding::skip(NO_ADAPTER)
        } else if adapters.iter().all(|adapter| !adapter.is_here) {
            const EXPECTED: &str = "the devices of adapters in the container";
            match context.hca_filter() {
                _ if !matters => Finding::skip(NONE_HERE),
                Some(filter) if !filter.starts_with('^') => Finding::fail(NONE_HERE, EXPECTED),
                _ => Finding::warn(NONE_HERE, EXPECTED),
            }
        } else if ports.is_empty() {
            match context.hca_filter() {
                Some(filter) => Finding::fail(format!("NCCL_IB_HCA={filter}: no such port"), "one"),
                None => Finding::skip("adapters without ports"),
            }
        } else {
            judge(&ports, context)
        }
    }
}

fn judge(ports: &[Port], context: &Context) -> Finding {
    let lists = |deviates: &dyn Fn(&Port) -> bool| -> Vec<String> {
        ports.iter().filter(|port| deviates(port)).map(Port::text).collect()
    };
    let down = lists(&|port| !port.is_active);
    let without_gid = lists(&|port| port.is_active && port.is_roce() && !port.has_gid);
    let fastest = ports.iter().filter_map(|port| port.gigabits).fold(0.0, f64::max);
    let is_slow = |port: &Port| port.gigabits.is_some_and(|rate| rate < fastest);
    let slow = lists(&|port| port.is_active && is_slow(port));
    // Ethernet carries only sockets between ranks on CPUs.
    let matters = |port: &Port| context.on_cuda || port.is_infiniband();
    let is_needed = context.has_several_nodes() && ports.iter().any(matters);
    let usable = ports.len() - down.len() - without_gid.len();
    if usable == 0 && is_needed {
        let unusable = lists(&|_| true).join(", ");
        Finding::fail(format!("no port is usable: {unusable}"), "a port ACTIVE, with a GID")
    } else if !without_gid.is_empty() {
        Finding::warn(format!("no GID: {}", without_gid.join(", ")), "a GID with an address")
    } else if !down.is_empty() {
        Finding::warn(format!("down: {}", down.join(", ")), "every port ACTIVE")
    } else if !slow.is_empty() {
        Finding::warn(format!("slow: {}", slow.join(", ")), format!("{fastest} Gb/s"))
    } else {
        Finding::pass(lists(&|_| true).join(", "))
    }
}

impl Check for GdrDriver {
    fn desc(&self) -> &'static CheckDesc {
        &CheckDesc {
            name: "gdr_driver",
            group: Group::Network,
            scope: Scope::Node,
            inspects: "nvidia_peermem (memory_peers or its module; for EFA efa_nv_peermem), or \
                       what dma-buf needs: NVIDIA's open kernel module and Linux 5.12",
            thresholds: "fails if a container with GPUs and RDMA adapters has neither: data then \
                         goes through the host's memory. Only warns for EFA, whose driver may have \
                         its own way. `gdr` shows whether GPUDirect RDMA is really used",
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
        let adapters = Adapter::all(context);
        let here: Vec<_> = adapters.iter().filter(|adapter| adapter.is_here).collect();
        if here.is_empty() {
            return Finding::skip(if adapters.is_empty() { NO_ADAPTER } else { NONE_HERE });
        }
        let is_efa = here.iter().all(|adapter| adapter.is_efa);
        let peermem = if is_efa { &EFA_PEERMEM[..] } else { &PEERMEM };
        if peermem.iter().any(|file| root.join(file).exists()) {
            return Finding::pass("peermem");
        }
        let release = text(&root.join("proc/sys/kernel/osrelease"));
        if driver.contains("Open Kernel Module") && is_at_least(&release, [5, 12]) {
            return Finding::pass("dma-buf: open kernel module");
        }
        let found = format!("no peermem, and no dma-buf with this driver on {}", release.trim());
        match is_efa {
            true => Finding::warn(found, "one of both"),
            false => Finding::fail(found, "one of both"),
        }
    }
}

/// Paths of which any exists if the module is loaded: `src/transport/net_ib/gdr.cc` of NCCL.
const PEERMEM: [&str; 3] = [
    "sys/kernel/mm/memory_peers/nv_mem/version",
    "sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "sys/module/nvidia_peermem/version",
];

/// Path of the module that the installer of EFA's driver builds.
const EFA_PEERMEM: [&str; 1] = ["sys/module/efa_nv_peermem"];

/// Returns whether a release such as `6.1.0-18-amd64` is of this version or newer.
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
        host.plant_adapter(&format!("mlx5_{adapter}"));
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
        host.expect(&RdmaPorts, Warn, "down: mlx5_0/1 DOWN");
        let job = Context { world: 4, ..host.context() };
        expect(RdmaPorts.run(&job), Fail, "no port is usable: mlx5_0/1 DOWN");
        plant(&host, 1, "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n", "InfiniBand\n");
        host.expect(&RdmaPorts, Warn, "down: mlx5_0/1 DOWN 40 Gb/s");
        plant(&host, 0, "4: ACTIVE\n", "200 Gb/sec (2X NDR)\n", "InfiniBand\n");
        host.expect(&RdmaPorts, Warn, "slow: mlx5_0/1 ACTIVE 200 Gb/s");
        plant(&host, 0, "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n", "InfiniBand\n");
        host.expect(&RdmaPorts, Pass, "mlx5_0/1 ACTIVE 400 Gb/s, mlx5_1/1 ACTIVE 400 Gb/s");
        // An Ethernet port, for example of the storage.
        plant(&host, 1, "4: ACTIVE\n", "25 Gb/sec (1X EDR)\n", "Ethernet\n");
        host.expect(&RdmaPorts, Pass, "mlx5_0/1 ACTIVE 400 Gb/s");
        plant(&host, 0, "4: ACTIVE\n", "25 Gb/sec (1X EDR)\n", "Ethernet\n");
        host.expect(&RdmaPorts, Warn, "no GID: mlx5_0/1 ACTIVE 25 Gb/s, mlx5_1/1");
        let on_gpus = Context { on_cuda: true, ..job.clone() };
        expect(RdmaPorts.run(&on_gpus), Fail, "no port is usable: mlx5_0/1 ACTIVE 25 Gb/s");
        expect(RdmaPorts.run(&job), Warn, "no GID");
        for adapter in [0, 1] {
            let gid = port(adapter).join("gids/3");
            host.write(&gid.to_string_lossy(), "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
        }
        host.expect(&RdmaPorts, Pass, "mlx5_0/1 ACTIVE 25 Gb/s, mlx5_1/1 ACTIVE 25 Gb/s");
    }

    #[test]
    fn only_ports_of_the_job_count() {
        let host = Host::new(&[]);
        plant(&host, 0, "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n", "InfiniBand\n");
        plant(&host, 1, "1: DOWN\n", "40 Gb/sec (4X QDR)\n", "InfiniBand\n");
        host.expect(&RdmaPorts, Warn, "down: mlx5_1/1");
        let with = |filter: &str| {
            let nccl_ib_hca = Some(filter.to_owned());
            Context { nccl_ib_hca, on_cuda: true, ..host.context() }
        };
        expect(RdmaPorts.run(&with("=mlx5_0")), Pass, "mlx5_0/1 ACTIVE 400 Gb/s");
        expect(RdmaPorts.run(&with("ibp")), Fail, "NCCL_IB_HCA=ibp: no such port");
        // The variable has no effect without NCCL.
        let on_cpus = Context { on_cuda: false, ..with("ibp") };
        expect(RdmaPorts.run(&on_cpus), Warn, "down: mlx5_1/1");
    }

    #[test]
    fn adapters_that_a_pod_was_not_given_are_not_judged() {
        let host = Host::new(&[("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n")]);
        host.expect(&RdmaPorts, Skip, "none in /dev/infiniband");
        let on_gpus = Context { on_cuda: true, world: 4, ..host.context() };
        expect(RdmaPorts.run(&on_gpus), Warn, "none in /dev/infiniband");
        let with = |filter: &str| {
            let nccl_ib_hca = Some(filter.to_owned());
            Context { nccl_ib_hca, ..on_gpus.clone() }
        };
        expect(RdmaPorts.run(&with("mlx5")), Fail, "none in /dev/infiniband");
        expect(RdmaPorts.run(&with("^mlx5_bond_0")), Warn, "none in /dev/infiniband");
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
        host.expect(&GdrDriver, Skip, "none in /dev/infiniband");
        host.plant_adapter("mlx5_0");
        host.write(RELEASE, "6.1.0-18-amd64\n");
        host.expect(&GdrDriver, Fail, "no peermem");
        host.write(DRIVER, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.1\n");
        host.expect(&GdrDriver, Pass, "dma-buf");
        host.write(RELEASE, "5.4.0\n");
        host.expect(&GdrDriver, Fail, "on 5.4.0");
        host.write(PEERMEM[2], "550.1\n");
        host.expect(&GdrDriver, Pass, "peermem");
        let efa = Host::new(&[(DRIVER, "x"), (RELEASE, "5.4.0\n"), (PEERMEM[2], "550.1\n")]);
        efa.write("sys/class/infiniband/rdmap16s27/device/vendor", "0x1d0f\n");
        efa.plant_adapter("rdmap16s27");
        efa.expect(&GdrDriver, Warn, "no peermem");
        efa.write("sys/module/efa_nv_peermem/version", "1.0\n");
        efa.expect(&GdrDriver, Pass, "peermem");
        let on_cuda = Context { on_cuda: true, ..Host::new(&[]).context() };
        expect(GdrDriver.run(&on_cuda), Skip, "no RDMA adapter");
    }
}
