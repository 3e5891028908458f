//! Emulated nodes: network namespaces with host names of their own, at the ports of one switch,
//! which is a bridge in a namespace too. They are removed when dropped, also after a panic.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use support::launcher;

/// Nodes on a network where each may send so fast to each other.
#[derive(Debug)]
pub(crate) struct Nodes {
    count: usize,
    bits_per_second: u64,
    folder: tempfile::TempDir,
}

/// Send rate of a node, unless a link is throttled: low enough that it is the bottleneck, and not
/// the two cores, which other programs use too.
const RATE_BITS: u64 = 48_000_000;

/// A throttled link: a quarter.
pub(crate) const SLOW_RATE_BITS: u64 = 12_000_000;

impl Nodes {
    /// Connects so many nodes, with alike links.
    pub(crate) fn new(count: usize) -> Self {
        Self::with_rate(count, RATE_BITS)
    }

    /// Connects nodes that send so many bits per second.
    pub(crate) fn with_rate(count: usize, bits_per_second: u64) -> Self {
        let nodes = Self { count, bits_per_second, folder: tempfile::tempdir().unwrap() };
        nodes.write_agent();
        let switch = nodes.switch();
        ip(&["netns", "add", &switch]);
        ip(&["-n", &switch, "link", "add", "bridge", "type", "bridge"]);
        ip(&["-n", &switch, "link", "set", "bridge", "up"]);
        (0..count).for_each(|node| nodes.connect(node));
        nodes
    }

    /// Connects a node to the switch.
    fn connect(&self, node: usize) {
        let (switch, port) = (self.switch(), port(node));
        let name = self.namespace(node);
        ip(&["netns", "add", &name]);
        ip(&["-n", &name, "link", "set", "lo", "up"]);
        let peer = ["peer", "name", &port, "netns", &switch];
        ip(&[&["-n", &name, "link", "add", "link0", "type", "veth"], &peer[..]].concat());
        ip(&["-n", &switch, "link", "set", &port, "master", "bridge", "up"]);
        ip(&["-n", &name, "address", "add", &format!("{}/24", address(node)), "dev", "link0"]);
        ip(&["-n", &name, "link", "set", "link0", "up"]);
        let root = ["qdisc", "add", "dev", "link0", "root", "handle", "1:"];
        self.tc(node, &[&root[..], &["htb", "default", "99"]].concat());
        self.add_class(node, "1:99", self.bits_per_second);
    }

    /// Slows down traffic from one node to another; not that of the other direction.
    pub(crate) fn throttle(&self, from: usize, to: usize) {
        let (class_id, address) = (format!("1:{}", to + 1), address(to));
        self.add_class(from, &class_id, SLOW_RATE_BITS);
        let filter = ["filter", "add", "dev", "link0", "parent", "1:", "protocol", "ip", "u32"];
        let is_to = ["match", "ip", "dst", &address, "flowid", &class_id];
        self.tc(from, &[&filter[..], &is_to].concat());
    }

    /// Drops all traffic between two nodes: frames are sent to an adapter that does not exist.
    pub(crate) fn cut(&self, one: usize, other: usize) {
        for (from, to) in [(one, other), (other, one)] {
            let neighbour = ["neigh", "replace", &address(to), "lladdr", "02:00:00:00:00:99"];
            let namespace = ["-n", &self.namespace(from)];
            ip(&[&namespace[..], &neighbour, &["dev", "link0", "nud", "permanent"]].concat());
        }
    }

    /// Slows down all traffic of a node.
    pub(crate) fn throttle_node(&self, node: usize) {
        for other in (0..self.count).filter(|other| *other != node) {
            self.throttle(node, other);
            self.throttle(other, node);
        }
    }

    /// The binary under test, with one rank on each node, over Open MPI's TCP transport.
    pub(crate) fn mpirun(&self, arguments: &[&str]) -> Command {
        let hosts: Vec<String> = (0..self.count).map(address).collect();
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.namespace(0), "unshare", "--uts"])
            .args(["sh", "-c", "hostname node-0; exec \"$@\"", "sh"])
            .args([&launcher::program(), "-np", &self.count.to_string()])
            .args(["--host", &hosts.join(",")])
            .args(["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "link0"])
            .args(["--mca", "oob_tcp_if_include", "link0", "--mca", "plm_rsh_agent"])
            .arg(self.agent())
            .args(["--mca", "hwloc_base_binding_policy", "none"])
            .arg(env!("CARGO_BIN_EXE_yardstick"))
            .args(arguments);
        launcher::set_environment(&mut command);
        command
    }

    /// Writes the program that mpirun starts instead of ssh: `HOST COMMAND...`. The last part of an
    /// address is the number of the node and one.
    fn write_agent(&self) {
        let script = format!(
            "#!/bin/sh\nnode=$((${{1##*.}} - 1)); shift\n\
             exec ip netns exec {}-$node unshare --uts sh -c \"hostname node-$node; $*\"\n",
            self.prefix()
        );
        std::fs::write(self.agent(), script).unwrap();
        run("chmod", &["+x", &self.agent().to_string_lossy()]);
    }

    fn agent(&self) -> PathBuf {
        self.folder.path().join("agent")
    }

    /// Adds a share of the adapter of a node, which sends at most so fast.
    fn add_class(&self, node: usize, id: &str, bits_per_second: u64) {
        let rate = bits_per_second.to_string();
        let share = ["class", "add", "dev", "link0", "parent", "1:", "classid", id];
        let limit = ["htb", "rate", &rate, "burst", "32k", "quantum", "3000"];
        self.tc(node, &[&share[..], &limit].concat());
    }

    fn tc(&self, node: usize, arguments: &[&str]) {
        let enter = ["netns", "exec", &self.namespace(node), "tc"];
        ip(&[&enter[..], arguments].concat());
    }

    /// Unique on this machine: tests of one process run at the same time.
    fn prefix(&self) -> String {
        let folder = self.folder.path().file_name().unwrap().to_string_lossy();
        format!("yardstick{}", folder.replace('.', "-"))
    }

    fn namespace(&self, node: usize) -> String {
        format!("{}-{node}", self.prefix())
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.prefix())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let nodes = (0..self.count).map(|node| self.namespace(node));
        for namespace in nodes.chain([self.switch()]) {
            // A daemon of mpirun stays on a node that was cut off.
            let left = Command::new("ip").args(["netns", "pids", &namespace]).output().unwrap();
            let processes = String::from_utf8_lossy(&left.stdout).into_owned();
            let kill = [&["-KILL"][..], &processes.split_whitespace().collect::<Vec<_>>()].concat();
            let _ = Command::new("kill").args(kill).stderr(Stdio::null()).status();
            // It may not exist yet.
            let delete = ["netns", "delete", &namespace];
            let _ = Command::new("ip").args(delete).stderr(Stdio::null()).status();
        }
    }
}

fn address(node: usize) -> String {
    format!("10.77.0.{}", node + 1)
}

fn port(node: usize) -> String {
    format!("port{node}")
}

fn ip(arguments: &[&str]) {
    run("ip", arguments);
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}
