//! The machine that a rank runs on, as a record describes it.

mod cgroup;
mod memory;
mod node_identity;

use std::collections::BTreeSet;
use std::fs;

use record::machine::{Machine, host_name};

use memory::meminfo_bytes;

pub use cgroup::CgroupLimits;
pub use memory::available_memory_bytes;
pub use node_identity::node_identity;

/// Instruction-set extensions by which this project or its libraries choose kernels.
const INSTRUCTION_SETS: [&str; 18] = [
    "amx_bf16",
    "amx_int8",
    "amx_tile",
    "asimd",
    "avx",
    "avx2",
    "avx512_bf16",
    "avx512_fp16",
    "avx512_vnni",
    "avx512bw",
    "avx512cd",
    "avx512dq",
    "avx512f",
    "avx512vl",
    "bf16",
    "f16c",
    "fma",
    "sve",
];

/// Describes the machine of this process.
pub fn machine() -> Machine {
    let system = rustix::system::uname();
    let cpuinfo = Cpuinfo::parse(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    Machine {
        host: host_name(),
        operating_system: os_release_name(&release),
        kernel: system.release().to_string_lossy().into_owned(),
        architecture: system.machine().to_string_lossy().into_owned(),
        cpu_model: cpuinfo.model,
        cpu_threads: (cpuinfo.threads > 0).then_some(cpuinfo.threads),
        cpu_cores: (cpuinfo.cores > 0).then_some(cpuinfo.cores),
        memory_bytes: meminfo_bytes(&meminfo, "MemTotal"),
        instruction_sets: cpuinfo.instruction_sets,
    }
}

/// Returns the name of the node that runs this pod: `NODE_NAME`, which a job file sets to
/// `spec.nodeName` by the downward API. `None` elsewhere.
pub fn node_name() -> Option<String> {
    std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty())
}

#[derive(Debug, Default)]
struct Cpuinfo {
    model: Option<String>,
    threads: usize,
    cores: usize,
    instruction_sets: Vec<String>,
}

impl Cpuinfo {
    fn parse(text: &str) -> Self {
        let mut info = Self::default();
        let mut cores = BTreeSet::new();
        let mut package = "0";
        for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            match key.trim() {
                "processor" => info.threads += 1,
                "model name" => info.model = Some(value.to_owned()),
                "physical id" => package = value, // precedes "core id"
                "core id" => drop(cores.insert((package, value))),
                "flags" | "Features" if info.instruction_sets.is_empty() => {
                    let flags: BTreeSet<_> = value.split_whitespace().collect();
                    let present = INSTRUCTION_SETS.iter().filter(|name| flags.contains(*name));
                    info.instruction_sets = present.map(|name| (*name).to_owned()).collect();
                }
                _ => {}
            }
        }
        info.cores = cores.len();
        info
    }
}

fn os_release_name(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpuinfo_counts_threads_and_cores() {
        let mut text = String::new();
        for (processor, package, core) in [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 0, 0)] {
            text += &format!("processor\t: {processor}\nmodel name\t: Fast: 9000\n");
            text += &format!("physical id\t: {package}\ncore id\t\t: {core}\n");
            text += "flags\t\t: fpu sse2 avx512f fma avx2\n\n";
        }
        let info = Cpuinfo::parse(&text);
        assert_eq!(info.model.as_deref(), Some("Fast: 9000"));
        assert_eq!((info.threads, info.cores), (4, 3));
        assert_eq!(info.instruction_sets, ["avx2", "avx512f", "fma"]);
    }

    #[test]
    fn the_list_of_instruction_sets_is_sorted() {
        assert!(INSTRUCTION_SETS.is_sorted());
    }

    #[test]
    fn the_distribution_has_a_name() {
        let text = "ID=debian\nPRETTY_NAME=\"Debian 12\"\n";
        assert_eq!(os_release_name(text).as_deref(), Some("Debian 12"));
        assert_eq!(os_release_name("ID=x\n"), None);
    }

    #[test]
    fn this_machine_can_be_described() {
        let machine = machine();
        assert!(!machine.host.is_empty() && !machine.kernel.is_empty());
        assert!(machine.cpu_threads.is_some_and(|threads| threads >= 1));
        assert!(machine.memory_bytes.is_some_and(|bytes| bytes > 1 << 20));
    }
}
