//! Pages larger than 4 KiB: the kernel's `Documentation/admin-guide/mm/hugetlbpage.rst` and
//! `transhuge.rst`.

use super::adapters::Adapter;
use super::check::{Check, CheckDesc, Context, Group, Scope};
use super::finding::Finding;
use super::limits::mebibytes;
use record::files::system::{number_of, text};

/// Check of transparent and reserved huge pages.
pub(super) struct Hugepages;

/// Maximum share of reserved, unused memory: everything else lacks that memory.
const RESERVED_SHARE_MAX: f64 = 0.1;

impl Check for Hugepages {
    fn desc(&self) -> &'static CheckDesc {
        &CheckDesc {
            name: "hugepages",
            group: Group::Limits,
            scope: Scope::Node,
            inspects: "transparent_hugepage/enabled, and HugePages_* of /proc/meminfo",
            thresholds: "warns where transparent huge pages are `never` (buffers of gigabytes \
                         then miss the TLB), where more than 10 % of memory is reserved and \
                         unused, and where an EFA adapter has none reserved (libfabric uses them)",
            remedy: "`echo madvise >/sys/kernel/mm/transparent_hugepage/enabled` on the node; \
                     reserve with vm.nr_hugepages what `hugepages-2Mi` of the pod asks for",
            fault: "launch/src/doctor/hugepages.rs: huge_pages_are_on_and_used",
        }
    }

    fn run(&self, context: &Context) -> Finding {
        let system = context.host_root.join("sys");
        let mode = text(&system.join("kernel/mm/transparent_hugepage/enabled"));
        let meminfo = Reserved::parse(&text(&context.host_root.join("proc/meminfo")));
        let has_efa = Adapter::all(context).iter().any(|it| it.is_efa && it.is_here);
        match meminfo {
            _ if mode.contains("[never]") => {
                Finding::warn("transparent huge pages: never", "always or madvise")
            }
            Some(reserved) if reserved.unused_share() > RESERVED_SHARE_MAX => {
                let unused = mebibytes(reserved.unused_bytes());
                Finding::warn(
                    format!("{unused} reserved as huge pages and unused"),
                    "at most 10 % of memory",
                )
            }
            Some(Reserved { pages: 0.0, .. }) if has_efa => {
                Finding::warn("no huge pages reserved for EFA", "as many as the pod asks for")
            }
            None if mode.is_empty() => Finding::skip("the kernel does not tell"),
            _ => Finding::pass(format!("transparent: {}", chosen(&mode))),
        }
    }
}

/// Returns the word in brackets, as in `always [madvise] never`.
fn chosen(mode: &str) -> &str {
    let word = mode.split(['[', ']']).nth(1);
    word.unwrap_or("not in this kernel")
}

/// Reserved pages by `/proc/meminfo`.
struct Reserved {
    pages: f64,
    free_pages: f64,
    page_kilobytes: f64,
    memory_kilobytes: f64,
}

impl Reserved {
    fn parse(meminfo: &str) -> Option<Self> {
        let of = |key| number_of(meminfo, key);
        Some(Self {
            pages: of("HugePages_Total:")?,
            free_pages: of("HugePages_Free:")?,
            page_kilobytes: of("Hugepagesize:")?,
            memory_kilobytes: of("MemTotal:")?,
        })
    }

    fn unused_bytes(&self) -> u64 {
        (self.free_pages * self.page_kilobytes * 1024.0) as u64
    }

    fn unused_share(&self) -> f64 {
        self.free_pages * self.page_kilobytes / self.memory_kilobytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status::{Pass, Skip, Warn};
    use super::super::testing::Host;
    use super::*;

    fn meminfo(total: u32, free: u32) -> String {
        format!(
            "MemTotal: 1048576 kB\nHugePages_Total: {total}\nHugePages_Free: {free}\n\
             Hugepagesize: 2048 kB\n"
        )
    }

    #[test]
    fn huge_pages_are_on_and_used() {
        const MODE: &str = "sys/kernel/mm/transparent_hugepage/enabled";
        let host = Host::new(&[(MODE, "always [madvise] never\n")]);
        host.expect(&Hugepages, Pass, "transparent: madvise");
        host.write("proc/meminfo", &meminfo(100, 10));
        host.expect(&Hugepages, Pass, "");
        host.write("proc/meminfo", &meminfo(100, 100));
        host.expect(&Hugepages, Warn, "200 MiB reserved as huge pages and unused");
        host.write("proc/meminfo", &meminfo(0, 0));
        host.expect(&Hugepages, Pass, "");
        host.write("sys/class/infiniband/rdmap16s27/device/vendor", "0x1d0f\n");
        host.expect(&Hugepages, Pass, "");
        host.plant_adapter("rdmap16s27");
        host.expect(&Hugepages, Warn, "no huge pages reserved for EFA");
        host.write(MODE, "always madvise [never]\n");
        host.expect(&Hugepages, Warn, "never");
        Host::new(&[]).expect(&Hugepages, Skip, "does not tell");
    }
}
