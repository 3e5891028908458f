//! The host under the ranks of a node: processors, memory, network, disks and what waits for them.
//!
//! Sources: proc(5) for `/proc/stat`, `/proc/meminfo`, `/proc/diskstats` and `/proc/net/dev`; the
//! kernel's `Documentation/accounting/psi.rst` for `/proc/pressure`, `admin-guide/cgroup-v2.rst`
//! and `scheduler/sched-bwc.rst` for control groups, and `power/powercap/powercap.rst`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use launch::files::{names, number, number_of, text};

use super::quantity::{About, Quantity};

/// What a host said at two moments: times are shares of the time in between.
#[derive(Debug)]
pub(super) struct Host {
    root: PathBuf,
    group: Option<PathBuf>,
    now: Spent,
    before: Option<Spent>,
    energy: Option<Packages>,
}

const CPU: About = About::gauge("cpu_ratio", "Share of all processors' time.");
const PRESSURE: About = About::gauge(
    "pressure_ratio",
    "Share of the time in which at least one task waited for the resource (PSI, some).",
);
const NETWORK: About = About::counter("network_bytes", "Bytes through network interfaces.");
const NETWORK_ERRORS: About =
    About::counter("network_errors", "Packets with errors, or dropped, of network interfaces.");
const DISK: About = About::counter("disk_bytes", "Bytes to and from disks.");

/// What is read of a host.
pub(super) const QUANTITIES: [Quantity<Host>; 21] = [
    CPU.of("mode", "user").charted().read(|host| host.share_of_cpus(|cpu| cpu.user)),
    CPU.of("mode", "system").read(|host| host.share_of_cpus(|cpu| cpu.system)),
    CPU.of("mode", "iowait").read(|host| host.share_of_cpus(|cpu| cpu.iowait)),
    CPU.of("mode", "steal").charted().read(|host| host.share_of_cpus(|cpu| cpu.steal)),
    PRESSURE.of("resource", "cpu").charted().read(|host| host.share_of_time(|it| it.cpu_pressure)),
    PRESSURE.of("resource", "memory").read(|host| host.share_of_time(|it| it.memory_pressure)),
    PRESSURE.of("resource", "io").charted().read(|host| host.share_of_time(|it| it.io_pressure)),
    About::gauge("cpu_clock_hertz", "Mean clock of the processors.").charted().read(Host::clock),
    About::gauge(
        "cgroup_throttled_ratio",
        "Time in which the control group had to wait for its share of the processors, of all its \
         processors together, as a share of the time.",
    )
    .read(|host| host.share_of_time(|it| it.throttled)),
    About::gauge("memory_available_bytes", "Memory that can be allocated without swapping.")
        .read(|host| host.memory("MemAvailable:")),
    About::gauge("cgroup_memory_bytes", "Memory of the control group, caches included.")
        .read(Host::group_memory),
    About::counter("cgroup_oom_kills", "Processes of the control group killed for memory.")
        .read(Host::oom_kills),
    NETWORK.of("direction", "receive").charted().read(|host| host.network(0)),
    NETWORK.of("direction", "transmit").charted().read(|host| host.network(8)),
    NETWORK_ERRORS.of("kind", "receive_errors").read(|host| host.network(2)),
    NETWORK_ERRORS.of("kind", "receive_drops").read(|host| host.network(3)),
    NETWORK_ERRORS.of("kind", "transmit_errors").read(|host| host.network(10)),
    NETWORK_ERRORS.of("kind", "transmit_drops").read(|host| host.network(11)),
    DISK.of("direction", "read").charted().read(|host| host.disks(5)),
    DISK.of("direction", "write").charted().read(|host| host.disks(9)),
    About::counter("cpu_energy_joules", "Energy of all processor packages (RAPL).")
        .read(|host| Some(host.energy.as_ref()?.joules)),
];

/// Times that have been spent since the host started.
#[derive(Debug, Clone, Copy)]
struct Spent {
    at: Instant,
    /// In ticks.
    cpu: Option<CpuTimes>,
    /// In seconds, as all below.
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
    /// The host whose `/proc` and `/sys` are below `root`. Shares are of the time since this
    /// moment, at first.
    pub(super) fn new(root: &Path) -> Self {
        let group = own_group(root);
        let now = Spent::read(root, group.as_deref());
        let energy = Packages::find(root);
        Self { root: root.to_owned(), group, now, before: None, energy }
    }

    /// Reads what is needed of both moments.
    pub(super) fn refresh(&mut self) {
        let now = Spent::read(&self.root, self.group.as_deref());
        self.before = Some(std::mem::replace(&mut self.now, now));
        if let Some(energy) = &mut self.energy {
            energy.refresh();
        }
    }

    fn share_of_cpus(&self, of: fn(&CpuTimes) -> f64) -> Option<f64> {
        let (now, before) = (self.now.cpu?, self.before?.cpu?);
        let total = now.total - before.total;
        (total > 0.0).then(|| ((of(&now) - of(&before)) / total).max(0.0))
    }

    fn share_of_time(&self, of: fn(&Spent) -> Option<f64>) -> Option<f64> {
        let before = self.before?;
        let seconds = self.now.at.duration_since(before.at).as_secs_f64();
        (seconds > 0.0).then_some(((of(&self.now)? - of(&before)?) / seconds).max(0.0))
    }

    fn clock(&self) -> Option<f64> {
        let cpuinfo = text(&self.root.join("proc/cpuinfo"));
        let lines = cpuinfo.lines().filter(|line| line.starts_with("cpu MHz"));
        let clocks: Vec<f64> =
            lines.filter_map(|line| line.split_once(':')?.1.trim().parse().ok()).collect();
        (!clocks.is_empty()).then(|| clocks.iter().sum::<f64>() * 1e6 / clocks.len() as f64)
    }

    fn memory(&self, key: &str) -> Option<f64> {
        let kibibytes = number_of(&text(&self.root.join("proc/meminfo")), key)?;
        Some(kibibytes * 1024.0)
    }

    fn group_memory(&self) -> Option<f64> {
        number(&self.group.as_ref()?.join("memory.current"))
    }

    fn oom_kills(&self) -> Option<f64> {
        number_of(&text(&self.group.as_ref()?.join("memory.events")), "oom_kill")
    }

    /// The sum over interfaces of a column of `/proc/net/dev`: over those with a device where there
    /// are any, because bonds and bridges count the same bytes again; in a pod over all.
    fn network(&self, column: usize) -> Option<f64> {
        let table = text(&self.root.join("proc/net/dev"));
        let interfaces = table.lines().filter_map(|line| line.split_once(':'));
        let value = |columns: &str| columns.split_whitespace().nth(column)?.parse::<f64>().ok();
        let all = interfaces.filter_map(|(name, columns)| Some((name.trim(), value(columns)?)));
        let all: Vec<_> = all.filter(|(name, _)| *name != "lo").collect();
        let class = self.root.join("sys/class/net");
        let has_device = |name: &str| class.join(name).join("device").exists();
        let physical = all.iter().filter(|(name, _)| has_device(name)).map(|it| it.1);
        let physical: Vec<f64> = physical.collect();
        let counted =
            if physical.is_empty() { all.iter().map(|it| it.1).collect() } else { physical };
        (!counted.is_empty()).then(|| counted.iter().sum())
    }

    /// The sum over whole disks of a column of `/proc/diskstats`, in sectors of 512 bytes.
    fn disks(&self, column: usize) -> Option<f64> {
        let table = text(&self.root.join("proc/diskstats"));
        let blocks = self.root.join("sys/block");
        let bytes = |line: &str| -> Option<f64> {
            let words: Vec<_> = line.split_whitespace().collect();
            let name = words.get(2)?;
            // Loop devices and mapped ones are on disks that count, too.
            let is_disk = blocks.join(name).join("device").exists();
            is_disk.then(|| Some(words.get(column)?.parse::<f64>().ok()? * 512.0))?
        };
        let disks: Vec<_> = table.lines().filter_map(bytes).collect();
        (!disks.is_empty()).then(|| disks.iter().sum())
    }
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
    /// The first line: user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
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

/// The folder of this process's control group (version 2); inside a container the mount is its own.
fn own_group(root: &Path) -> Option<PathBuf> {
    let groups = text(Path::new("/proc/self/cgroup"));
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mount = root.join("sys/fs/cgroup");
    [mount.join(path), mount].into_iter().find(|group| group.join("cpu.stat").is_file())
}

fn throttled_seconds(group: &Path) -> Option<f64> {
    Some(number_of(&text(&group.join("cpu.stat")), "throttled_usec")? / 1e6)
}

/// Counters of energy of processor packages, which start again at 0 every few minutes.
#[derive(Debug)]
struct Packages {
    counters: Vec<PackageCounter>,
    /// Since the first reading.
    joules: f64,
}

#[derive(Debug)]
struct PackageCounter {
    file: PathBuf,
    range: f64,
    last: f64,
}

impl Packages {
    /// `None` where the host has none, or keeps them from this user.
    fn find(root: &Path) -> Option<Self> {
        let folder = root.join("sys/class/powercap");
        // Parts of a package have a second colon.
        let is_package = |name: &String| name.contains("-rapl:") && name.matches(':').count() == 1;
        let counter = |name: String| {
            let file = folder.join(&name).join("energy_uj");
            let range = number(&folder.join(&name).join("max_energy_range_uj"))?;
            let last = number(&file)?;
            Some(PackageCounter { file, range, last })
        };
        let packages = names(&folder).into_iter().filter(is_package);
        let counters: Vec<_> = packages.filter_map(counter).collect();
        (!counters.is_empty()).then_some(Self { counters, joules: 0.0 })
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
    use std::collections::BTreeMap;
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
        let known = |it: &Quantity<Host>| Some((it.about.key(), (it.read)(host)?));
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

    #[test]
    fn only_disks_and_interfaces_with_a_device_are_counted() {
        let planted = Planted(tempfile::tempdir().unwrap());
        planted.write(
            "proc/net/dev",
            "Inter-|\n face |\n lo: 9 0 0 0 0 0 0 0 9\n eth0: 1 0 5 0 \
                       0 0 0 0 2 0 0 0\nbond0: 1 0 5 0 0 0 0 0 2 0 0 0\n",
        );
        planted.write("proc/diskstats", " 8 0 sda 1 0 10 0 1 0 20 0\n 7 0 loop0 1 0 9 0 1 0 9 0\n");
        let host = Host::new(planted.0.path());
        assert_eq!(known(&host)["network_bytes.receive"], 2.0, "of a pod all count");
        planted.write("sys/class/net/eth0/device/vendor", "");
        planted.write("sys/block/sda/device/model", "");
        let known = known(&host);
        assert_eq!((known["network_bytes.receive"], known["network_bytes.transmit"]), (1.0, 2.0));
        assert_eq!(known["network_errors.receive_errors"], 5.0);
        assert_eq!(known["disk_bytes.read"], 10.0 * 512.0);
        assert_eq!(known["disk_bytes.write"], 20.0 * 512.0);
    }

    #[test]
    fn energy_goes_on_where_its_counter_starts_again() {
        let planted = Planted(tempfile::tempdir().unwrap());
        let package = "sys/class/powercap/intel-rapl:0";
        planted.write(&format!("{package}/max_energy_range_uj"), "10000000");
        planted.write(&format!("{package}/energy_uj"), "9000000");
        planted.write("sys/class/powercap/intel-rapl:0:0/energy_uj", "1");
        planted.write("sys/class/powercap/intel-rapl:0:0/max_energy_range_uj", "1");
        let mut host = Host::new(planted.0.path());
        assert_eq!(known(&host)["cpu_energy_joules"], 0.0);
        planted.write(&format!("{package}/energy_uj"), "2000000");
        host.refresh();
        assert_eq!(known(&host)["cpu_energy_joules"], 3.0);
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
