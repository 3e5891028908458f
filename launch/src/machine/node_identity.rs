//! Identity of a node: firmware, kernel, drivers and settings that should be equal on all nodes but
//! may differ, and that an update may change unnoticed.

use std::fs;
use std::path::Path;

use record::files::system::{names, text};
use record::machine::NodeIdentity;

use super::os_release_name;

/// Files with one value: path below the root, and name of the property.
const FILES: [(&str, &str); 14] = [
    ("proc/sys/kernel/osrelease", "kernel.release"),
    ("proc/sys/kernel/version", "kernel.build"),
    ("proc/sys/kernel/numa_balancing", "kernel.numa_balancing"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "kernel.transparent_hugepages"),
    ("sys/class/dmi/id/bios_vendor", "bios.vendor"),
    ("sys/class/dmi/id/bios_version", "bios.version"),
    ("sys/class/dmi/id/bios_date", "bios.date"),
    ("sys/class/dmi/id/product_name", "machine.product"),
    ("sys/devices/system/cpu/smt/control", "cpu.smt"),
    ("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "cpu.frequency_driver"),
    ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "cpu.governor"),
    ("sys/module/mlx5_core/version", "driver.mlx5_core"),
    ("sys/module/nvidia/version", "driver.nvidia"),
    ("sys/module/nvidia_peermem/version", "driver.nvidia_peermem"),
];

/// Environment variables of a job file, for properties that a container cannot read itself.
const VARIABLES: [(&str, &str); 2] =
    [("YARDSTICK_IMAGE_DIGEST", "container.image_digest"), ("YARDSTICK_CNI", "network.cni")];

/// Words of the kernel's command line that differ between nodes, or name its boot source.
const OWN_WORDS: [&str; 7] = ["BOOT_IMAGE", "root", "ip", "initrd", "hostname", "resume", "uuid"];

/// Reads the properties of this node.
pub fn node_identity() -> NodeIdentity {
    let mut identity = read_below(Path::new("/"));
    for (variable, name) in VARIABLES {
        identity.set(name, std::env::var(variable).ok());
    }
    identity
}

/// Reads the properties below a folder with the files of a node.
fn read_below(root: &Path) -> NodeIdentity {
    let mut identity = NodeIdentity::default();
    for (file, name) in FILES {
        identity.set(name, value(&root.join(file)));
    }
    let release = text(&root.join("etc/os-release"));
    identity.set("operating_system", os_release_name(&release));
    identity.set("kernel.command_line", value(&root.join("proc/cmdline")).map(common_words));
    processor(&mut identity, &text(&root.join("proc/cpuinfo")));
    adapters(&mut identity, &root.join("sys/class/infiniband"));
    interfaces(&mut identity, &root.join("sys/class/net"));
    gpus(&mut identity, &root.join("proc/driver/nvidia/gpus"));
    identity.set("network.cni", cni(&root.join("etc/cni/net.d")));
    identity
}

fn processor(identity: &mut NodeIdentity, cpuinfo: &str) {
    let of = |key: &str| {
        let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let mut found = lines.filter(|line| line.0.trim() == key);
        found.next().map(|line| line.1.trim().to_owned())
    };
    identity.set("cpu.model", of("model name"));
    identity.set("cpu.microcode", of("microcode"));
}

/// Adds RDMA adapters, with the state of each port.
fn adapters(identity: &mut NodeIdentity, folder: &Path) {
    for name in names(folder) {
        let adapter = folder.join(&name);
        let prefix = format!("nic.{name}");
        identity.set(&format!("{prefix}.firmware"), value(&adapter.join("fw_ver")));
        identity.set(&format!("{prefix}.board"), value(&adapter.join("board_id")));
        for port in names(&adapter.join("ports")) {
            let folder = adapter.join("ports").join(&port);
            for (file, what) in [("state", "state"), ("rate", "rate"), ("link_layer", "link")] {
                let name = format!("{prefix}.port{port}.{what}");
                identity.set(&name, value(&folder.join(file)));
            }
        }
    }
}

/// Adds network interfaces that have a device; virtual ones have names that differ between pods.
fn interfaces(identity: &mut NodeIdentity, folder: &Path) {
    for name in names(folder) {
        let driver = fs::read_link(folder.join(&name).join("device/driver")).ok();
        let Some(driver) = driver.as_deref().and_then(Path::file_name) else { continue };
        let prefix = format!("interface.{name}");
        identity.set(&format!("{prefix}.driver"), Some(driver.to_string_lossy().into_owned()));
        for what in ["speed", "mtu"] {
            identity.set(&format!("{prefix}.{what}"), value(&folder.join(&name).join(what)));
        }
    }
}

/// Adds the driver's properties of GPUs, in the order of their addresses.
fn gpus(identity: &mut NodeIdentity, folder: &Path) {
    for (number, address) in names(folder).iter().enumerate() {
        let text = text(&folder.join(address).join("information"));
        for (key, what) in
            [("Model", "model"), ("Video BIOS", "vbios"), ("GPU Firmware", "firmware")]
        {
            let lines = text.lines().filter_map(|line| line.split_once(':'));
            let mut found = lines.filter(|line| line.0.trim() == key);
            let value = found.next().map(|line| line.1.trim().to_owned());
            identity.set(&format!("gpu.{number}.{what}"), value);
        }
    }
}

/// Reads a file of one line.
fn value(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// Removes the words of a command line that only identify a node.
fn common_words(command_line: String) -> String {
    let is_common = |word: &&str| {
        let key = word.split('=').next().unwrap_or(word);
        !OWN_WORDS.iter().any(|own| key.eq_ignore_ascii_case(own))
    };
    command_line.split_whitespace().filter(is_common).collect::<Vec<_>>().join(" ")
}

/// Reads the first configuration of the container network, if it is visible.
fn cni(folder: &Path) -> Option<String> {
    let is_configuration = |name: &String| name.ends_with(".conflist") || name.ends_with(".conf");
    names(folder).into_iter().find(is_configuration)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn firmware_drivers_and_settings_are_read() {
        let node = tempfile::tempdir().unwrap();
        let root = node.path();
        write(root, "proc/cmdline", "BOOT_IMAGE=/vmlinuz root=UUID=1 iommu=pt quiet\n");
        write(root, "proc/cpuinfo", "processor : 0\nmodel name : A B\nmicrocode : 0xa1\n");
        write(root, "sys/class/dmi/id/bios_version", "2.3.4\n");
        write(root, "sys/class/infiniband/mlx5_0/fw_ver", "28.39.1002\n");
        write(root, "sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
        let gpu = "proc/driver/nvidia/gpus/0000:17:00.0/information";
        write(root, gpu, "Model: \t\t NVIDIA H100\nVideo BIOS: \t 96.00.74\n");
        write(root, "sys/class/net/eth0/mtu", "9000\n");
        fs::create_dir_all(root.join("sys/class/net/eth0/device")).unwrap();
        let driver = root.join("sys/class/net/eth0/device/driver");
        std::os::unix::fs::symlink("../../../bus/pci/drivers/mlx5_core", driver).unwrap();
        write(root, "sys/class/net/veth12/mtu", "1500\n");
        let found = read_below(root).0;
        let expected = [
            ("bios.version", "2.3.4"),
            ("cpu.microcode", "0xa1"),
            ("cpu.model", "A B"),
            ("gpu.0.model", "NVIDIA H100"),
            ("gpu.0.vbios", "96.00.74"),
            ("interface.eth0.driver", "mlx5_core"),
            ("interface.eth0.mtu", "9000"),
            ("kernel.command_line", "iommu=pt quiet"),
            ("nic.mlx5_0.firmware", "28.39.1002"),
            ("nic.mlx5_0.port1.rate", "400 Gb/sec (4X NDR)"),
        ];
        let found: Vec<_> = found.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn this_node_has_a_kernel() {
        assert!(node_identity().0.contains_key("kernel.release"));
    }
}
