//! The host of the ranks of a node: processors, memory, network, disks and the pressure on them.
//!
//! Sources: proc(5) for `/proc/stat`, `/proc/meminfo`, `/proc/diskstats` and `/proc/net/dev`; the
//! kernel's `Documentation/accounting/psi.rst` for `/proc/pressure`, `admin-guide/cgroup-v2.rst`
//! and `scheduler/sched-bwc.rst` for control groups, and `power/powercap/powercap.rst`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use record::files::system::{names, number, number_of, text};

use super::quantity::{MetricDesc, Quantity};
use super::summary::growth;

/// Readings of a host at two moments: times are shares of the time in between, and counters start
/// with the first. Everything is read once for each moment.
#[derive(Debug)]
pub(crate) struct Host {
    root: PathBuf,
    group: Option<PathBuf>,
    now: Spent,
    before: Option<Spent>,
    memory_available_bytes: Option<f64>,
    group_memory_bytes: Option<f64>,
    oom_kills: Option<f64>,
    network: Growth<NETWORK_COLUMNS>,
    disks: Growth<DISK_COLUMNS>,
    energy: Packages,
    clock_hertz: Option<f64>,
    refreshes: u32,
}

/// Columns of `/proc/net/dev`: bytes, errors and drops, received and sent.
const NETWORK_COLUMNS: usize = 6;
const NETWORK: [usize; NETWORK_COLUMNS] = [0, 2, 3, 8, 10, 11];

/// Columns of `/proc/diskstats`: sectors of 512 bytes, read and written.
const DISK_COLUMNS: usize = 2;
const DISKS: [usize; DISK_COLUMNS] = [5, 9];
const SECTOR_BYTES: f64 = 512.0;

/// Number of refreshes per reading of clocks: some kernels interrupt every processor for it.
const REFRESHES_PER_CLOCK: u32 = 10;

/// Shortest time over which shares are meaningful: the kernel accounts time in ticks of up to 10
/// ms.
const LEAST_SECONDS: f64 = 0.02;

const CPU: MetricDesc = MetricDesc::gauge("cpu_ratio", "Share of all processors' time.");
const PRESSURE: MetricDesc = MetricDesc::gauge(
    "pressure_ratio",
    "Share of the time in which at least one task waited for the resource (PSI, some).",
);
const NETWORK_BYTES: MetricDesc = MetricDesc::counter(
    "network_bytes",
    "Bytes through network interfaces since the attempt started.",
);
const NETWORK_ERRORS: MetricDesc = MetricDesc::counter(
    "network_errors",
    "Packets with errors, or dropped, of network interfaces since the attempt started.",
);
const DISK_BYTES: MetricDesc =
    MetricDesc::counter("disk_bytes", "Bytes to and from disks since the attempt started.");

/// Quantities that are read from a host.
pub(crate) const QUANTITIES: [Quantity<Host>; 21] = [
    CPU.of("mode", "user").charted().read(|host| host.share_of_cpus(|cpu| cpu.user)),
    CPU.of("mode", "system").read(|host| host.share_of_cpus(|cpu| cpu.system)),
    CPU.of("mode", "iowait").read(|host| host.share_of_cpus(|cpu| cpu.iowait)),
    CPU.of("mode", "steal").charted().read(|host| host.share_of_cpus(|cpu| cpu.steal)),
    PRESSURE.of("resource", "cpu").charted().read(|host| host.pressure(|it| it.cpu_pressure)),
    PRESSURE.of("resource", "memory").read(|host| host.pressure(|it| it.memory_pressure)),
    PRESSURE.of("resource", "io").charted().read(|host| host.pressure(|it| it.io_pressure)),
    MetricDesc::gauge("cpu_clock_hertz", "Mean clock of the processors.")
        .charted()
        .read(|host| host.clock_hertz),
    MetricDesc::gauge(
        "cgroup_throttled_ratio",
        "Time in which the control group had to wait for its share of the processors, of all its \
         processors together, as a share of the time.",
    )
    .read(|host| host.share_of_time(|it| it.throttled)),
    MetricDesc::gauge("memory_available_bytes", "Memory that can be allocated without swapping.")
        .read(|host| host.memory_available_bytes),
    MetricDesc::gauge("cgroup_memory_bytes", "Memory of the control group, caches included.")
        .read(|host| host.group_memory_bytes),
    MetricDesc::counter("cgroup_oom_kills", "Processes of the control group killed for memory.")
        .read(|host| host.oom_kills),
    NETWORK_BYTES.of("direction", "receive").charted().read(|host| host.network.sum(0)),
    NETWORK_BYTES.of("direction", "transmit").charted().read(|host| host.network.sum(3)),
    NETWORK_ERRORS.of("kind", "receive_errors").read(|host| host.network.sum(1)),
    NETWORK_ERRORS.of("kind", "receive_drops").read(|host| host.network.sum(2)),
    NETWORK_ERRORS.of("kind", "transmit_errors").read(|host| host.network.sum(4)),
    NETWORK_ERRORS.of("kind", "transmit_drops").read(|host| host.network.sum(5)),
    DISK_BYTES
        .of("direction", "read")
        .charted()
        .read(|host| Some(host.disks.sum(0)? * SECTOR_BYTES)),
    DISK_BYTES
        .of("direction", "write")
        .charted()
        .read(|host| Some(host.disks.sum(1)? * SECTOR_BYTES)),
    MetricDesc::counter(
        "cpu_energy_joules",
        "Energy of all processor packages (RAPL) since the attempt started.",
    )
    .read(|host| host.energy.joules()),
];

/// Times spent since the host started.
#[derive(Debug, Clone, Copy)]
struct Spent {
    at: Instant,
    /// Processor times, in ticks.
    cpu: Option<CpuTimes>,
    /// Pressure in seconds, like all fields below.
    cpu_pressure: Option<f64>,
    memory_pressure: Option<f64>,
    io_pressure: Option<f64>,
    throttled: Option<f64>,
}

/// Ticks of all processors.
#[derive(Debug, Clone, Copy, PartialEq)]
struct CpuTimes {
    user: f64,
    system: f64,
    iowait: f64,
    steal: f64,
    total: f64,
}

impl Host {
    /// Opens the host whose `/proc` and `/sys` are below `root`.
    pub(crate) fn new(root: &Path) -> Self {
        let group = own_group();
        let mut host = Self {
            root: root.to_owned(),
            now: Spent::read(root, group.as_deref()),
            before: None,
            group,
            memory_available_bytes: None,
            group_memory_bytes: None,
            oom_kills: None,
            network: Growth::default(),
            disks: Growth::default(),
            energy: Packages::find(root),
            clock_hertz: None,
            refreshes: 0,
        };
        host.read_rest();
        host
    }

    /// Reads the second moment, which becomes the first of the next refresh.
    pub(crate) fn refresh(&mut self) {
        let now = Spent::read(&self.root, self.group.as_deref());
        self.before = Some(std::mem::replace(&mut self.now, now));
        self.energy.refresh();
        self.read_rest();
    }

    /// Returns why the energy is unknown although the host counts it.
    pub(crate) fn energy_missing(&self) -> Option<&str> {
        self.energy.missing.as_deref()
    }

    fn read_rest(&mut self) {
        let root = &self.root;
        let available = number_of(&text(&root.join("proc/meminfo")), "MemAvailable:");
        self.memory_available_bytes = available.map(|kibibytes| kibibytes * 1024.0);
        if let Some(group) = &self.group {
            self.group_memory_bytes = number(&group.join("memory.current"));
            self.oom_kills = number_of(&text(&group.join("memory.events")), "oom_kill");
        }
        self.network.take(interfaces(root));
        self.disks.take(disks(root));
        if self.refreshes.is_multiple_of(REFRESHES_PER_CLOCK) {
            self.clock_hertz = clock_hertz(&text(&root.join("proc/cpuinfo")));
        }
        self.refreshes += 1;
    }

    fn share_of_cpus(&self, of: fn(&CpuTimes) -> f64) -> Option<f64> {
        self.seconds_between()?;
        let (now, before) = (self.now.cpu?, self.before?.cpu?);
        let total = now.total - before.total;
        (total > 0.0).then(|| ((of(&now) - of(&before)) / total).clamp(0.0, 1.0))
    }

    fn share_of_time(&self, of: fn(&Spent) -> Option<f64>) -> Option<f64> {
        let seconds = self.seconds_between()?;
        Some(((of(&self.now)? - of(&self.before?)?) / seconds).max(0.0))
    }

    fn pressure(&self, of: fn(&Spent) -> Option<f64>) -> Option<f64> {
        Some(self.share_of_time(of)?.min(1.0))
    }

    fn seconds_between(&self) -> Option<f64> {
        let seconds = self.now.at.duration_since(self.before?.at).as_secs_f64();
        (seconds >= LEAST_SECONDS).then_some(seconds)
    }
}

/// Growth of the counters of things that appear and vanish, such as interfaces, while they exist.
#[derive(Debug)]
struct Growth<const N: usize> {
    last: BTreeMap<String, [f64; N]>,
    sums: [f64; N],
}

impl<const N: usize> Default for Growth<N> {
    fn default() -> Self {
        Self { last: BTreeMap::new(), sums: [0.0; N] }
    }
}

impl<const N: usize> Growth<N> {
    fn take(&mut self, now: BTreeMap<String, [f64; N]>) {
        for (name, counters) in &now {
            let Some(last) = self.last.get(name) else { continue };
            for (sum, (last, counter)) in self.sums.iter_mut().zip(last.iter().zip(counters)) {
                *sum += growth(*last, *counter);
            }
        }
        self.last = now;
    }

    /// Sum of a column; `None` if there is nothing to count.
    fn sum(&self, column: usize) -> Option<f64> {
        (!self.last.is_empty()).then(|| self.sums[column])
    }
}

/// Reads the counters of each interface: only of those with a device if there are any, because
/// bonds and bridges count the same bytes again; in a pod, of all.
fn interfaces(root: &Path) -> BTreeMap<String, [f64; NETWORK_COLUMNS]> {
    // `net` belongs to the process that reads, so another host's is read through its first process.
    let of_host = root.join("proc/1/net/dev");
    let is_own = root == Path::new("/") || !of_host.exists();
    let table = text(&if is_own { root.join("proc/net/dev") } else { of_host });
    let lines = table.lines().filter_map(|line| line.split_once(':'));
    let mut all: BTreeMap<String, _> = lines
        .filter(|(name, _)| name.trim() != "lo")
        .filter_map(|(name, numbers)| Some((name.trim().to_owned(), columns(numbers, NETWORK)?)))
        .collect();
    let class = root.join("sys/class/net");
    let has_device = |name: &String| class.join(name).join("device").exists();
    if all.keys().any(has_device) {
        all.retain(|name, _| has_device(name));
    }
    all
}

/// Reads the counters of each whole disk. Loop and mapped devices are on disks that count already.
fn disks(root: &Path) -> BTreeMap<String, [f64; DISK_COLUMNS]> {
    let table = text(&root.join("proc/diskstats"));
    let blocks = root.join("sys/block");
    let disk = |line: &str| {
        let name = line.split_whitespace().nth(2)?;
        let is_disk = blocks.join(name).join("device").exists();
        is_disk.then(|| Some((name.to_owned(), columns(line, DISKS)?)))?
    };
    table.lines().filter_map(disk).collect()
}

/// Parses the `wanted` columns of a line.
fn columns<const N: usize>(line: &str, wanted: [usize; N]) -> Option<[f64; N]> {
    let words: Vec<_> = line.split_whitespace().collect();
    let numbers: Option<Vec<f64>> =
        wanted.iter().map(|column| words.get(*column)?.parse().ok()).collect();
    numbers?.try_into().ok()
}

/// Mean clock over all processors.
fn clock_hertz(cpuinfo: &str) -> Option<f64> {
    let lines = cpuinfo.lines().filter(|line| line.starts_with("cpu MHz"));
    let clocks: Vec<f64> =
        lines.filter_map(|line| line.split_once(':')?.1.trim().parse().ok()).collect();
    (!clocks.is_empty()).then(|| clocks.iter().sum::<f64>() * 1e6 / clocks.len() as f64)
}

impl Spent {
    fn read(root: &Path, group: Option<&Path>) -> Self {
        let microseconds = |text: &str, key: &str| {
            let word = text.lines().next()?.split_whitespace().find_map(|it| it.strip_prefix(key));
            Some(word?.parse::<f64>().ok()? / 1e6)
        };
        let pressure = |resource: &str| {
            microseconds(&text(&root.join("proc/pressure").join(resource)), "total=")
        };
        Self {
            at: Instant::now(),
            cpu: CpuTimes::parse(&text(&root.join("proc/stat"))),
            cpu_pressure: pressure("cpu"),
            memory_pressure: pressure("memory"),
            io_pressure: pressure("io"),
            throttled: group.and_then(throttled_seconds),
        }
    }
}

impl CpuTimes {
    /// Parses the first line: user, nice, system, idle, iowait, irq, softirq, steal; user includes
    /// guests.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Option<Vec<f64>> =
            line.split_whitespace().take(8).map(|word| word.parse().ok()).collect();
        let ticks = ticks.filter(|ticks| ticks.len() == 8)?;
        Some(Self {
            user: ticks[0] + ticks[1],
            system: ticks[2] + ticks[5] + ticks[6],
            iowait: ticks[4],
            steal: ticks[7],
            total: ticks.iter().sum(),
        })
    }
}

/// Folder of this process's control group (version 2); inside a container the mount is its own.
fn own_group() -> Option<PathBuf> {
    let groups = text(Path::new("/proc/self/cgroup"));
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mount = Path::new("/sys/fs/cgroup");
    [mount.join(path), mount.to_owned()].into_iter().find(|it| it.join("cpu.stat").is_file())
}

fn throttled_seconds(group: &Path) -> Option<f64> {
    Some(number_of(&text(&group.join("cpu.stat")), "throttled_usec")? / 1e6)
}

/// Energy counters of processor packages, which wrap to 0 after some minutes.
#[derive(Debug, Default)]
struct Packages {
    counters: Vec<PackageCounter>,
    /// Energy since the first reading.
    joules: f64,
    /// Reason why a counter cannot be read: the sum would then be partial.
    missing: Option<String>,
}

#[derive(Debug)]
struct PackageCounter {
    file: PathBuf,
    range: f64,
    last: f64,
}

impl Packages {
    /// Finds the packages of a host, which may have none. Parts of a package have a second colon in
    /// their names, and `psys` covers more than the packages.
    fn find(root: &Path) -> Self {
        let folder = root.join("sys/class/powercap");
        let is_package = |name: &String| {
            name.matches(':').count() == 1
                && text(&folder.join(name).join("name")).starts_with("package")
        };
        let mut packages = Self::default();
        for name in names(&folder).into_iter().filter(is_package) {
            let file = folder.join(&name).join("energy_uj");
            let range = number(&folder.join(&name).join("max_energy_range_uj"));
            match range.zip(number(&file)) {
                Some((range, last)) => packages.counters.push(PackageCounter { file, range, last }),
                None => packages.missing = Some(format!("{} cannot be read", file.display())),
            }
        }
        packages
    }

    fn joules(&self) -> Option<f64> {
        (!self.counters.is_empty() && self.missing.is_none()).then_some(self.joules)
    }

    fn refresh(&mut self) {
        for counter in &mut self.counters {
            let Some(now) = number(&counter.file) else { continue };
            let grown = now - counter.last;
            let grown = if grown < 0.0 { grown + counter.range } else { grown };
            self.joules += grown / 1e6;
            counter.last = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Planted(tempfile::TempDir);

    impl Planted {
        fn write(&self, file: &str, text: &str) {
            let path = self.0.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    fn known(host: &Host) -> BTreeMap<String, f64> {
        let known = |it: &Quantity<Host>| Some((it.desc.key(), (it.read)(host)?));
        QUANTITIES.iter().filter_map(known).collect()
    }

    #[test]
    fn times_are_shares_of_the_time_between_two_readings() {
        let planted = Planted(tempfile::tempdir().unwrap());
        planted.write("proc/stat", "cpu  100 0 50 800 10 0 0 40 0 0\ncpu0 1 2 3\n");
        planted.write("proc/pressure/cpu", "some avg10=0.00 total=1000000\nfull total=5\n");
        let mut host = Host::new(planted.0.path());
        assert!(!known(&host).contains_key("cpu_ratio.steal"), "there is only one reading");
        planted.write("proc/stat", "cpu  150 10 60 805 10 0 0 65 0 0\n");
        let elapsed = 0.05;
        std::thread::sleep(std::time::Duration::from_secs_f64(elapsed));
        planted.write("proc/pressure/cpu", "some avg10=0.00 total=1010000\nfull total=5\n");
        host.refresh();
        let known = known(&host);
        assert_eq!((known["cpu_ratio.user"], known["cpu_ratio.steal"]), (0.6, 0.25));
        assert_eq!((known["cpu_ratio.system"], known["cpu_ratio.iowait"]), (0.1, 0.0));
        let pressure = known["pressure_ratio.cpu"];
        assert!(pressure > 0.0 && pressure <= 0.01 / elapsed, "{pressure}");
    }

    const EMPTY: &str = "0 0 0 0 0 0 0 0 0 0 0 0";

    #[test]
    fn only_disks_and_interfaces_with_a_device_are_counted() {
        let planted = Planted(tempfile::tempdir().unwrap());
        let network = |eth: u64, bond: u64| {
            format!(
                "Inter-|\n face |\n lo: 9 {EMPTY}\n eth0: {eth} 0 {eth} 0 0 0 0 0 7 0 0 0\n\
                 bond0: {bond} 0 0 0 0 0 0 0 0 0 0 0\n"
            )
        };
        let disks =
            |read: u64| format!(" 8 0 sda 1 0 {read} 0 1 0 20 0\n 7 0 loop0 1 0 {read} 0 1\n");
        let write = |count: u64| {
            planted.write("proc/net/dev", &network(count, 10 * count));
            planted.write("proc/diskstats", &disks(count));
        };
        write(1);
        let mut host = Host::new(planted.0.path());
        write(3);
        host.refresh();
        assert_eq!(known(&host)["network_bytes.receive"], 22.0, "of a pod all count");
        planted.write("sys/class/net/eth0/device/vendor", "");
        planted.write("sys/block/sda/device/model", "");
        let mut host = Host::new(planted.0.path());
        write(8);
        host.refresh();
        let known = known(&host);
        assert_eq!((known["network_bytes.receive"], known["network_bytes.transmit"]), (5.0, 0.0));
        assert_eq!(known["network_errors.receive_errors"], 5.0);
        assert_eq!((known["disk_bytes.read"], known["disk_bytes.write"]), (5.0 * 512.0, 0.0));
    }

    /// Earlier counts of the other interfaces are no growth.
    #[test]
    fn an_interface_that_vanishes_changes_nothing() {
        let mut growth = Growth::<1>::default();
        let mut take = |counters: &[(&str, f64)]| {
            growth.take(counters.iter().map(|(name, n)| ((*name).to_owned(), [*n])).collect());
            growth.sum(0)
        };
        assert_eq!(take(&[]), None);
        assert_eq!(take(&[("a", 1e12), ("b", 5.0)]), Some(0.0));
        assert_eq!(take(&[("a", 1e12 + 1.0)]), Some(1.0));
        assert_eq!(take(&[("a", 1e12 + 2.0), ("b", 7.0)]), Some(2.0));
        assert_eq!(take(&[("a", 3.0), ("b", 8.0)]), Some(6.0), "a has started again");
    }

    fn plant_package(planted: &Planted, name: &str, kind: &str, energy: &str) {
        let folder = format!("sys/class/powercap/{name}");
        planted.write(&format!("{folder}/name"), kind);
        planted.write(&format!("{folder}/max_energy_range_uj"), "10000000");
        planted.write(&format!("{folder}/energy_uj"), energy);
    }

    #[test]
    fn energy_goes_on_where_its_counter_starts_again() {
        let planted = Planted(tempfile::tempdir().unwrap());
        plant_package(&planted, "intel-rapl:0", "package-0\n", "9000000");
        plant_package(&planted, "intel-rapl:0:0", "core\n", "1");
        plant_package(&planted, "intel-rapl:1", "psys\n", "1");
        let mut host = Host::new(planted.0.path());
        assert_eq!(known(&host)["cpu_energy_joules"], 0.0);
        plant_package(&planted, "intel-rapl:0", "package-0\n", "2000000");
        plant_package(&planted, "intel-rapl:1", "psys\n", "9000000");
        host.refresh();
        assert_eq!(known(&host)["cpu_energy_joules"], 3.0);
        assert_eq!(host.energy_missing(), None);
    }

    #[test]
    fn energy_of_a_part_of_the_packages_is_unknown() {
        let planted = Planted(tempfile::tempdir().unwrap());
        plant_package(&planted, "intel-rapl:0", "package-0\n", "9000000");
        plant_package(&planted, "intel-rapl:1", "package-1\n", "");
        let host = Host::new(planted.0.path());
        assert!(!known(&host).contains_key("cpu_energy_joules"));
        assert!(host.energy_missing().unwrap().ends_with("rapl:1/energy_uj cannot be read"));
    }

    #[test]
    fn this_host_says_what_its_processors_and_memory_do() {
        let mut host = Host::new(Path::new("/"));
        std::thread::sleep(std::time::Duration::from_millis(50));
        host.refresh();
        let known = known(&host);
        let user = known["cpu_ratio.user"];
        assert!((0.0..=1.0).contains(&user), "{user}");
        assert!(known["memory_available_bytes"] > 1e6);
    }
}
