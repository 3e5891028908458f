//! PCIe links of adapters, compared with the rates of their ports:
//! `Documentation/ABI/testing/sysfs-bus-pci` of the kernel.

use std::collections::BTreeMap;
use std::path::Path;

use super::adapters::Port;
use super::check::{Check, CheckDesc, Context, Group, Scope};
use super::finding::Finding;
use record::files::system::{number, text};

/// Check of the PCIe links of the adapters of a node.
pub(super) struct RdmaPcie;

impl Check for RdmaPcie {
    fn desc(&self) -> &'static CheckDesc {
        &CheckDesc {
            name: "rdma_pcie",
            group: Group::Network,
            scope: Scope::Node,
            inspects: "the PCIe link of each adapter that `rdma_ports` looks at (current_link_* \
                       and max_link_* of its device), beside the rate of its fastest port",
            thresholds: "warns if the link carries less than the adapter's fastest active port: a \
                         card in a slot that is too narrow or too old, or a link that runs below \
                         its width or speed",
            remedy: "see LnkSta of `lspci -vv`; move the adapter to a slot of its width and \
                     generation, reseat it, and compare with the other nodes",
            fault: "launch/src/doctor/pcie.rs: a_link_carries_its_port",
        }
    }

    fn run(&self, context: &Context) -> Finding {
        let ports = Port::used(context);
        if ports.is_empty() {
            return Finding::skip("no RDMA port");
        }
        let class = context.host_root.join("sys/class/infiniband");
        let link = |(adapter, port): (&str, f64)| {
            let link = Link::read(&class.join(adapter).join("device"))?;
            Some(AdapterLink { adapter: adapter.to_owned(), link, port_gigabits: port })
        };
        judge(&fastest(&ports).into_iter().filter_map(link).collect::<Vec<_>>())
    }
}

/// Rate of the fastest active port of each adapter, or else 0.
fn fastest(ports: &[Port]) -> BTreeMap<&str, f64> {
    let mut rates = BTreeMap::new();
    for port in ports {
        let rate = port.gigabits.filter(|_| port.is_active).unwrap_or(0.0);
        let fastest: &mut f64 = rates.entry(port.adapter()).or_default();
        *fastest = fastest.max(rate);
    }
    rates
}

/// Negotiated PCIe link.
#[derive(Debug, Clone, Copy)]
struct Link {
    gigatransfers: f64,
    lanes: f64,
    lanes_max: f64,
}

impl Link {
    /// Reads a link; `None` if the device does not report it, as virtual functions do not.
    fn read(device: &Path) -> Option<Self> {
        let speed = text(&device.join("current_link_speed"));
        let lanes = |file: &str| number(&device.join(file)).filter(|lanes| *lanes > 0.0);
        Some(Self {
            gigatransfers: speed.split_whitespace().next()?.parse().ok()?,
            lanes: lanes("current_link_width")?,
            lanes_max: lanes("max_link_width")?,
        })
    }

    /// Bandwidth: up to generation 2 a byte takes ten bits, from generation 3 on 128 bits take 130.
    fn gigabits(self) -> f64 {
        let share = if self.gigatransfers <= 5.0 { 8.0 / 10.0 } else { 128.0 / 130.0 };
        self.gigatransfers * share * self.lanes
    }
}

struct AdapterLink {
    adapter: String,
    link: Link,
    port_gigabits: f64,
}

impl AdapterLink {
    fn is_too_slow(&self) -> bool {
        self.link.gigabits() < self.port_gigabits
    }

    /// Formats the link, as in `mlx5_0 x8 of x16 at 16 GT/s: 126 Gb/s for a port of 200`.
    fn text(&self) -> String {
        let Self { adapter, link: Link { gigatransfers, lanes, lanes_max }, port_gigabits } = self;
        let carries = self.link.gigabits();
        format!(
            "{adapter} x{lanes} of x{lanes_max} at {gigatransfers} GT/s: {carries:.0} Gb/s for a \
             port of {port_gigabits}"
        )
    }
}

fn judge(links: &[AdapterLink]) -> Finding {
    let texts = |is_wanted: fn(&AdapterLink) -> bool| {
        let wanted = links.iter().filter(|link| is_wanted(link));
        wanted.map(AdapterLink::text).collect::<Vec<_>>().join(", ")
    };
    let slow = texts(AdapterLink::is_too_slow);
    if links.is_empty() {
        Finding::skip("the adapters do not tell")
    } else if slow.is_empty() {
        Finding::pass(texts(|_| true))
    } else {
        Finding::warn(slow, "the rate of the port")
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status::{Pass, Skip, Warn};
    use super::super::testing::Host;
    use super::*;

    fn plant(host: &Host, adapter: &str, link: [&str; 3], rate: &str) {
        host.plant_adapter(adapter);
        let write = |file: &str, text: &str| {
            host.write(&format!("sys/class/infiniband/{adapter}/{file}"), text);
        };
        let [speed, width, max_width] = link;
        write("device/current_link_speed", speed);
        write("device/current_link_width", width);
        write("device/max_link_width", max_width);
        write("ports/1/state", "4: ACTIVE\n");
        write("ports/1/rate", rate);
        write("ports/1/link_layer", "InfiniBand\n");
    }

    #[test]
    fn a_link_carries_its_port() {
        const NDR: &str = "400 Gb/sec (4X NDR)\n";
        const HDR: &str = "200 Gb/sec (4X HDR)\n";
        let host = Host::new(&[]);
        host.expect(&RdmaPcie, Skip, "no RDMA port");
        plant(&host, "mlx5_0", ["Unknown\n", "0\n", "0\n"], NDR);
        host.expect(&RdmaPcie, Skip, "do not tell");
        plant(&host, "mlx5_0", ["32.0 GT/s PCIe\n", "16\n", "16\n"], NDR);
        let text = "mlx5_0 x16 of x16 at 32 GT/s: 504 Gb/s for a port of 400";
        host.expect(&RdmaPcie, Pass, text);
        // The slot is older, but fast enough for a slower port.
        plant(&host, "mlx5_1", ["16.0 GT/s PCIe\n", "16\n", "16\n"], HDR);
        host.expect(&RdmaPcie, Pass, "mlx5_1 x16 of x16 at 16 GT/s: 252 Gb/s for a port of 200");
        plant(&host, "mlx5_1", ["16.0 GT/s PCIe\n", "16\n", "16\n"], NDR);
        let slow = host.expect(&RdmaPcie, Warn, "mlx5_1 x16 of x16 at 16 GT/s: 252 Gb/s");
        assert!(!slow.found.contains("mlx5_0"), "{slow:?}");
        plant(&host, "mlx5_1", ["16.0 GT/s PCIe\n", "8\n", "16\n"], HDR);
        host.expect(&RdmaPcie, Warn, "mlx5_1 x8 of x16 at 16 GT/s: 126 Gb/s for a port of 200");
        // Many cards are built for slots of either width.
        plant(&host, "mlx5_1", ["32.0 GT/s PCIe\n", "8\n", "16\n"], HDR);
        host.expect(&RdmaPcie, Pass, "mlx5_1 x8 of x16 at 32 GT/s: 252 Gb/s for a port of 200");
    }
}
