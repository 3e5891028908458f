//! Network of pods: a network namespace for each, at the ports of a bridge that is in one too. They
//! are removed when dropped, also after a panic.

use std::process::{Command, Stdio};

use crate::command::run;

/// A network on which pods are connected one by one.
#[derive(Debug)]
pub(crate) struct Network {
    /// Unique on this machine.
    prefix: String,
    /// Namespaces, one for each pod, in the order in which they were connected.
    namespaces: Vec<String>,
}

/// A pod's place on the network.
#[derive(Debug, Clone)]
pub(crate) struct Port {
    /// The network namespace.
    pub(crate) namespace: String,
    pub(crate) address: String,
}

impl Network {
    /// Without pods.
    pub(crate) fn new(prefix: String) -> Self {
        let network = Self { prefix, namespaces: Vec::new() };
        let switch = network.switch();
        ip(&["netns", "add", &switch]);
        ip(&["-n", &switch, "link", "add", "bridge", "type", "bridge"]);
        ip(&["-n", &switch, "link", "set", "bridge", "up"]);
        network
    }

    /// Connects a pod, which gets an address that none had before.
    pub(crate) fn connect(&mut self) -> Port {
        let number = self.namespaces.len() + 1;
        let (switch, plug) = (self.switch(), format!("port{number}"));
        let namespace = format!("{}-{number}", self.prefix);
        let address = format!("10.78.0.{number}");
        self.namespaces.push(namespace.clone());
        ip(&["netns", "add", &namespace]);
        ip(&["-n", &namespace, "link", "set", "lo", "up"]);
        let peer = ["peer", "name", &plug, "netns", &switch];
        ip(&[&["-n", &namespace, "link", "add", "eth0", "type", "veth"], &peer[..]].concat());
        ip(&["-n", &switch, "link", "set", &plug, "master", "bridge", "up"]);
        ip(&["-n", &namespace, "address", "add", &format!("{address}/24"), "dev", "eth0"]);
        ip(&["-n", &namespace, "link", "set", "eth0", "up"]);
        Port { namespace, address }
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.prefix)
    }
}

impl Port {
    /// Drops all packets to and from the pod, without a notification of any peer.
    pub(crate) fn cut(&self) {
        ip(&["-n", &self.namespace, "link", "set", "eth0", "down"]);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in self.namespaces.iter().chain([&self.switch()]) {
            // It may not exist yet.
            let delete = ["netns", "delete", namespace];
            let _ = Command::new("ip").args(delete).stderr(Stdio::null()).status();
        }
    }
}

fn ip(arguments: &[&str]) {
    run("ip", arguments);
}
