//! The NIC through which a rank reaches ranks of other nodes, if the system leaves no doubt.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::adapters::Port;
use super::check::Context;
use record::files::system::text;

/// Variables that name the interfaces of Open MPI and libfabric.
const INTERFACES: [&str; 2] = ["OMPI_MCA_btl_tcp_if_include", "FI_TCP_IFACE"];

/// Finds the RDMA port that is nearest to a GPU by PCIe, as in `mlx5_0:1`, NCCL's notation, or the
/// only active port. `None` if two are equally near, or if there are several and none shares a root
/// complex with the GPU.
pub fn nearest_port(context: &Context, pci_bus_id: &str) -> Option<String> {
    let mut ports = Port::used(context);
    ports.retain(|port| port.is_active);
    if let [port] = &ports[..] {
        return Some(nccl_name(port));
    }
    let sys = context.host_root.join("sys");
    let gpu = pci_path(&sys, &sys.join("bus/pci/devices").join(pci_bus_id))?;
    let near = ports.iter().filter_map(|port| {
        let adapter = sys.join("class/infiniband").join(port.adapter());
        let path = pci_path(&sys, &adapter.join("device"))?;
        let shared = gpu.iter().zip(&path).take_while(|(gpu, nic)| gpu == nic).count();
        (shared > 0).then_some((shared, port))
    });
    let near: Vec<_> = near.collect();
    let most = near.iter().map(|(shared, _)| *shared).max()?;
    match near.iter().filter(|(shared, _)| *shared == most).collect::<Vec<_>>()[..] {
        [(_, port)] => Some(nccl_name(port)),
        _ => None,
    }
}

/// Path of PCI devices from the root complex to the device.
fn pci_path(sys: &Path, device: &Path) -> Option<Vec<PathBuf>> {
    let devices = sys.join("devices").canonicalize().ok()?;
    let path = device.canonicalize().ok()?;
    Some(path.strip_prefix(devices).ok()?.iter().map(PathBuf::from).collect())
}

fn nccl_name(port: &Port) -> String {
    port.name.replace('/', ":")
}

/// Finds the network interface that carries MPI between CPUs: the one that MPI is configured to
/// use, or else the only one with an address. `None` beside RDMA, and if several have an address,
/// as MPI then chooses.
pub fn mpi_interface(context: &Context) -> Option<String> {
    let configured = INTERFACES.iter().find_map(|name| std::env::var(name).ok());
    interface(context, &configured.unwrap_or_default())
}

fn interface(context: &Context, configured: &str) -> Option<String> {
    if super::has_rdma(context) {
        return None;
    }
    let all = with_addresses(&context.root);
    let named: Vec<_> = configured.split(',').filter(|name| all.contains(*name)).collect();
    let mut all = all.iter();
    match (&named[..], all.next(), all.next()) {
        ([name], _, _) => Some((*name).to_owned()),
        ([], Some(only), None) => Some(only.clone()),
        _ => None,
    }
}

/// Lists interfaces that are not down and have an address that other hosts reach, without loopback.
fn with_addresses(root: &Path) -> BTreeSet<String> {
    const GLOBAL: &str = "00"; // scope of an address, in if_inet6
    let network = root.join("proc/self/net");
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let routes = text(&network.join("route"));
    let mut all: BTreeSet<_> = routes.lines().skip(1).filter_map(first).collect();
    for line in text(&network.join("if_inet6")).lines() {
        if let [_, _, _, GLOBAL, _, name] = line.split_whitespace().collect::<Vec<_>>()[..] {
            all.insert(name.to_owned());
        }
    }
    let state = |name: &str| text(&root.join("sys/class/net").join(name).join("operstate"));
    all.retain(|name| name != "lo" && state(name).trim() != "down");
    all
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::testing::Host;
    use super::*;

    const GPU: &str = "pci0000:00/0000:00:01.0/0000:17:00.0";

    /// Plants an adapter with an active port at a position on the bus.
    fn plant_port(host: &Host, name: &str, path: &str) {
        host.plant_adapter(name);
        for (file, text) in [("state", "4: ACTIVE"), ("link_layer", "InfiniBand")] {
            host.write(&format!("sys/class/infiniband/{name}/ports/1/{file}"), text);
        }
        plant_device(host, path, &format!("class/infiniband/{name}/device"));
    }

    fn plant_device(host: &Host, path: &str, link: &str) {
        host.write(&format!("sys/devices/{path}/vendor"), "0x15b3");
        let sys = host.context().host_root.join("sys");
        let link = sys.join(link);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(sys.join("devices").join(path), link).unwrap();
    }

    fn host_with_gpu() -> Host {
        let host = Host::new(&[]);
        plant_device(&host, GPU, "bus/pci/devices/0000:17:00.0");
        host
    }

    fn nearest(host: &Host) -> Option<String> {
        nearest_port(&host.context(), "0000:17:00.0")
    }

    #[test]
    fn the_port_below_the_same_switch_is_that_of_the_gpu() {
        let host = host_with_gpu();
        assert_eq!(nearest(&host), None);
        plant_port(&host, "mlx5_0", "pci0000:80/0000:80:01.0/0000:99:00.0");
        assert_eq!(nearest(&host).as_deref(), Some("mlx5_0:1"), "the only one");
        plant_port(&host, "mlx5_1", "pci0000:80/0000:80:02.0/0000:9a:00.0");
        assert_eq!(nearest(&host), None, "none shares a root complex with the GPU");
        plant_port(&host, "mlx5_2", "pci0000:00/0000:00:02.0/0000:18:00.0");
        assert_eq!(nearest(&host).as_deref(), Some("mlx5_2:1"));
        plant_port(&host, "mlx5_3", "pci0000:00/0000:00:01.0/0000:19:00.0");
        assert_eq!(nearest(&host).as_deref(), Some("mlx5_3:1"));
        plant_port(&host, "mlx5_4", "pci0000:00/0000:00:01.0/0000:1a:00.0");
        assert_eq!(nearest(&host), None, "two are equally near");
        host.write("sys/class/infiniband/mlx5_3/ports/1/state", "1: DOWN");
        assert_eq!(nearest(&host).as_deref(), Some("mlx5_4:1"));
    }

    #[test]
    fn the_interface_of_mpi_is_the_one_it_is_told_or_the_only_one() {
        let routes = "Iface Destination\neth0 00000000\neth0 0000000A\n";
        let host = Host::new(&[("proc/self/net/route", routes)]);
        let of = |configured: &str| interface(&host.context(), configured);
        assert_eq!(of("").as_deref(), Some("eth0"));
        let address = "fe80000000000000 02 40 20 80 eth1\n20010db800000000 03 40 00 80 eth2\n";
        host.write("proc/self/net/if_inet6", address);
        assert_eq!(of(""), None, "MPI uses both");
        assert_eq!(of("eth2").as_deref(), Some("eth2"));
        assert_eq!(of("eth0,eth2"), None);
        assert_eq!(of("10.0.0.0/8"), None);
        host.write("sys/class/net/eth2/operstate", "down\n");
        assert_eq!(of("").as_deref(), Some("eth0"));
        plant_port(&host, "mlx5_0", "pci0000:00/0000:00:02.0/0000:18:00.0");
        assert_eq!(of(""), None, "MPI may use RDMA");
    }
}
