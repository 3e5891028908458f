//! RDMA adapters that a container can open, and their ports that a job uses.
//!
//! `/sys/class/infiniband` shows every adapter of the node, even to a pod that was given none: an
//! adapter counts only if its verbs device `/dev/infiniband/uverbsN` exists.

use std::path::Path;

use super::check::Context;
use record::files::system::{names, text};

/// PCI vendor id of Amazon: its adapters are called `efa_0`, or `rdmap16s27` by udev.
const AMAZON: &str = "0x1d0f";

/// An adapter of the node.
#[derive(Debug)]
pub(super) struct Adapter {
    /// Name, such as `mlx5_0`.
    pub(super) name: String,
    /// True if this container has its device.
    pub(super) is_here: bool,
    /// True for an Elastic Fabric Adapter.
    pub(super) is_efa: bool,
}

impl Adapter {
    /// Lists the adapters of the node, sorted by name.
    pub(super) fn all(context: &Context) -> Vec<Self> {
        let class = context.host_root.join("sys/class");
        let here = opened(context);
        let adapter = |name: String| {
            let vendor = text(&class.join("infiniband").join(&name).join("device/vendor"));
            Self {
                is_here: here.contains(&name),
                is_efa: vendor.trim() == AMAZON || name.starts_with("efa"),
                name,
            }
        };
        names(&class.join("infiniband")).into_iter().map(adapter).collect()
    }
}

/// Names of the adapters whose devices are in this container.
fn opened(context: &Context) -> Vec<String> {
    let verbs = context.host_root.join("sys/class/infiniband_verbs");
    let devices = names(&context.root.join("dev/infiniband")).into_iter();
    let adapters = devices.map(|device| text(&verbs.join(device).join("ibdev")));
    adapters.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

/// A port of an adapter.
#[derive(Debug)]
pub(super) struct Port {
    /// Name, such as `mlx5_0/1`.
    pub(super) name: String,
    pub(super) is_active: bool,
    pub(super) gigabits: Option<f64>,
    /// Link layer, such as `InfiniBand`.
    pub(super) link_layer: String,
    pub(super) has_gid: bool,
    state: String,
}

impl Port {
    /// Lists the ports of available adapters that the job uses: those that it names, or else the
    /// InfiniBand ports, or else all. Ethernet beside InfiniBand is there for storage.
    pub(super) fn used(context: &Context) -> Vec<Self> {
        let mut ports = Self::here(context);
        if context.hca_filter().is_none() && ports.iter().any(Self::is_infiniband) {
            ports.retain(Self::is_infiniband);
        }
        ports
    }

    fn here(context: &Context) -> Vec<Self> {
        let filter = HcaFilter::parse(context.hca_filter().unwrap_or_default());
        let folders = context.host_root.join("sys/class/infiniband");
        let here = Adapter::all(context).into_iter().filter(|adapter| adapter.is_here);
        let ports = here.flat_map(|Adapter { name, is_efa, .. }| {
            let folder = folders.join(&name).join("ports");
            let mut numbers = names(&folder);
            // NCCL's variable does not apply to libfabric, through which NCCL uses EFA.
            numbers.retain(|number| is_efa || filter.takes(&name, number));
            numbers.into_iter().map(move |it| Self::read(format!("{name}/{it}"), &folder.join(it)))
        });
        ports.collect()
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
            link_layer: line("link_layer"),
            has_gid,
            state,
        }
    }

    /// Name of its adapter.
    pub(super) fn adapter(&self) -> &str {
        self.name.split_once('/').map_or(&self.name, |(adapter, _)| adapter)
    }

    pub(super) fn is_infiniband(&self) -> bool {
        self.link_layer == "InfiniBand"
    }

    pub(super) fn is_roce(&self) -> bool {
        self.link_layer == "Ethernet"
    }

    /// Formats the port, as in `mlx5_0/1 ACTIVE 400 Gb/s`.
    pub(super) fn text(&self) -> String {
        let Self { name, state, gigabits, .. } = self;
        let rate = gigabits.map_or(String::new(), |gigabits| format!(" {gigabits} Gb/s"));
        format!("{name} {state}{rate}")
    }
}

/// Returns whether other hosts can reach a GID: not zeros, nor a link-local address (fe80).
fn is_address(gid: &str) -> bool {
    gid.bytes().any(|byte| !matches!(byte, b'0' | b':')) && !gid.starts_with("fe80:")
}

/// Filter of NCCL's ports by its variable `NCCL_IB_HCA`: prefixes of names, with `=` whole names,
/// with `^` all but these; each with a port or for all ports, as in `^=mlx5_0:1,mlx5_3`.
/// <https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca>
#[derive(Debug)]
struct HcaFilter<'a> {
    excludes: bool,
    is_exact: bool,
    entries: Vec<&'a str>,
}

impl<'a> HcaFilter<'a> {
    fn parse(text: &'a str) -> Self {
        let rest = text.strip_prefix('^').unwrap_or(text);
        let list = rest.strip_prefix('=').unwrap_or(rest);
        Self {
            excludes: text.starts_with('^'),
            is_exact: rest.starts_with('='),
            entries: list.split(',').filter(|entry| !entry.is_empty()).collect(),
        }
    }

    fn takes(&self, adapter: &str, port: &str) -> bool {
        let names = |entry: &&str| {
            let (name, number) = entry.split_once(':').unwrap_or((*entry, port));
            let is_named = if self.is_exact { adapter == name } else { adapter.starts_with(name) };
            is_named && number == port
        };
        self.entries.is_empty() || self.entries.iter().any(names) != self.excludes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_ib_hca_selects_by_prefix_by_name_and_by_port() {
        for (text, taken) in [
            ("", &["mlx5_1/1", "mlx5_10/1", "mlx5_10/2", "ibp0/1"][..]),
            ("mlx5_1", &["mlx5_1/1", "mlx5_10/1", "mlx5_10/2"]),
            ("=mlx5_1", &["mlx5_1/1"]),
            ("^=mlx5_1", &["mlx5_10/1", "mlx5_10/2", "ibp0/1"]),
            ("^mlx5", &["ibp0/1"]),
            ("=mlx5_10:2,ibp", &["mlx5_10/2"]),
            ("ibp,mlx5_10:1", &["mlx5_10/1", "ibp0/1"]),
        ] {
            let filter = HcaFilter::parse(text);
            let all = [("mlx5_1", "1"), ("mlx5_10", "1"), ("mlx5_10", "2"), ("ibp0", "1")];
            let found = all.into_iter().filter(|(adapter, port)| filter.takes(adapter, port));
            let found: Vec<_> = found.map(|(adapter, port)| format!("{adapter}/{port}")).collect();
            assert_eq!(found, taken, "{text}");
        }
    }
}
