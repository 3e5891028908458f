//! NUMA nodes: the memory and cores of a machine that are close to a device.

use std::fs;
use std::path::Path;

/// Folder in which Linux describes PCI devices.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// A NUMA node of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaNode {
    /// Number of the node.
    pub number: usize,
    /// Logical processors of the node.
    pub cores: Vec<usize>,
}

impl NumaNode {
    /// Finds the node of a PCI device, by an id such as `0000:3b:00.0`. `None` if the system does
    /// not report it: machines of one node, and most virtual machines.
    pub fn of_pci_device(id: &str) -> Option<Self> {
        Self::read(&Path::new(PCI_DEVICES).join(id))
    }

    fn read(folder: &Path) -> Option<Self> {
        let text = |file| fs::read_to_string(folder.join(file)).ok();
        // The number is -1 if it is not known.
        let number = text("numa_node")?.trim().parse().ok()?;
        let cores = parse_core_list(&text("local_cpulist")?);
        (!cores.is_empty()).then_some(Self { number, cores })
    }

    /// Returns the given cores that belong to this node; all of them if none does.
    pub(crate) fn narrow(&self, cores: Vec<usize>) -> Vec<usize> {
        let local: Vec<_> =
            cores.iter().copied().filter(|core| self.cores.contains(core)).collect();
        if local.is_empty() { cores } else { local }
    }

    /// Returns whether all given cores belong to this node.
    pub(crate) fn has(&self, cores: &[usize]) -> bool {
        cores.iter().all(|core| self.cores.contains(core))
    }
}

/// Parses a Linux list of logical processors: `2-3,8`. Invalid parts are skipped.
pub(super) fn parse_core_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse::<usize>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(numa_node: &str, local_cpulist: &str) -> Option<NumaNode> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("numa_node"), numa_node).unwrap();
        fs::write(folder.path().join("local_cpulist"), local_cpulist).unwrap();
        NumaNode::read(folder.path())
    }

    #[test]
    fn the_node_of_a_device_is_read_where_the_system_says_it() {
        let expected = NumaNode { number: 1, cores: vec![2, 3, 8] };
        assert_eq!(node("1\n", "2-3,8\n"), Some(expected));
        assert_eq!(node("-1\n", "0-3\n"), None, "not known");
        assert_eq!(node("0\n", "\n"), None, "a node without processors");
        assert_eq!(NumaNode::of_pci_device("ffff:ff:1f.7"), None, "no such device");
    }

    #[test]
    fn cores_are_narrowed_to_a_node_only_if_some_belong_to_it() {
        let node = NumaNode { number: 0, cores: vec![0, 1, 4, 5] };
        assert_eq!(node.narrow(vec![1, 5, 2, 6]), [1, 5]);
        assert_eq!(node.narrow(vec![2, 6]), [2, 6], "the launcher has bound it elsewhere");
        assert!(node.has(&[1, 5]) && !node.has(&[1, 2]));
    }
}
