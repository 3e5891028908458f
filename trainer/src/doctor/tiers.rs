//! Check of tiers of checkpoints: write access, speed, and free space.

use std::path::Path;
use std::time::Duration;

use checkpoint::tier::Scope as TierScope;
use launch::doctor::{Check, CheckDesc, Context, Finding, Group, Scope, Status};

use super::object_store::{OBJECT_STORE, check_store};
use crate::checkpoints::bench::{Load, TierRates, bench};
use crate::checkpoints::tiers::{Planned, path_warning};
use crate::time_limit::within;

/// Load that is written and read on each measuring node.
const LOAD: Load = Load { bytes: 64 << 20, threads: 1 };

/// Load of further nodes: hundreds at once would measure, and load, the servers of a shared tier.
const LITTLE: Load = Load { bytes: 1 << 20, threads: 1 };

/// Number of nodes that measure the rates of a shared tier.
const MEASURED_NODES: usize = 16;

/// Time after which storage counts as hung.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// Lowest acceptable write rate: a slower node takes minutes for a checkpoint of a small model.
const WRITE_GIB_PER_SECOND_MIN: f64 = 0.1;

/// Checkpoints that a tier holds at once: the newest, and the one being written.
const CHECKPOINTS_AT_ONCE: u64 = 2;

pub(super) const NVME: CheckDesc = CheckDesc {
    name: "tier_nvme",
    inspects: "checkpoint.nvme.path or LOCAL_CHECKPOINT_DIR: 64 MiB are written, read and removed",
    fault: "tests/commands/doctor.rs: a_tier_that_cannot_be_written_fails",
    ..SHARED
};

pub(super) const SHARED: CheckDesc = CheckDesc {
    name: "tier_shared",
    group: Group::Storage,
    scope: Scope::Node,
    inspects: "checkpoint.shared.path, SHARED_CHECKPOINT_DIR or --out, in the same way, by 16 \
               nodes at once; the others write and read 1 MiB, and their rates are not judged",
    thresholds: "fails if it cannot be written within 20 s, or has no room for two checkpoints of \
                 --workload; warns below 0.1 GiB/s (minutes for a small model), if the file system \
                 does not survive a restart or is not the node's own, and if nothing of the path \
                 exists (its volume is not mounted). If the path does not exist yet, its nearest \
                 existing parent is measured",
    remedy: "check that the volume is mounted, not read-only or full, and belongs to the user of \
             the pod (fsGroup)",
    fault: "tests/commands/doctor.rs: a_shared_tier_that_cannot_be_written_fails",
};

/// Check of a tier, if the tier is configured.
pub(super) struct TierCheck<'a> {
    desc: &'static CheckDesc,
    tier: Option<&'a Planned>,
    /// Size of a checkpoint, where it is known.
    checkpoint_bytes: Option<u64>,
    /// Number of this node.
    node: usize,
}

impl<'a> TierCheck<'a> {
    /// Returns a check of every possible tier, on this node.
    pub(super) fn all(
        tiers: &'a [Planned],
        checkpoint_bytes: Option<u64>,
        node: usize,
    ) -> Vec<Self> {
        let named = [("nvme", &NVME), ("shared", &SHARED), ("object", &OBJECT_STORE)];
        let check = |(name, desc)| {
            let tier = tiers.iter().find(|tier| tier.name == name);
            Self { desc, tier, checkpoint_bytes, node }
        };
        named.into_iter().map(check).collect()
    }
}

impl Check for TierCheck<'_> {
    fn desc(&self) -> &'static CheckDesc {
        self.desc
    }

    fn run(&self, context: &Context) -> Finding {
        let Some(tier) = self.tier else { return Finding::skip("not configured") };
        if tier.address.is_empty() {
            return Finding::fail("no path of it is known on this node", "the same as on rank 0");
        }
        let needed_bytes = self.needed_bytes(tier, context);
        let checked = tier.clone();
        let load = self.load(tier);
        match within(ANSWERS_WITHIN, move || check_tier(&checked, load, needed_bytes)) {
            Ok(finding) => finding.unwrap_or_else(|| no_answer(tier)),
            Err(error) => Finding::fail(error.to_string(), "raise the limit"),
        }
    }
}

impl TierCheck<'_> {
    fn load(&self, tier: &Planned) -> Load {
        let is_one_of_many = tier.scope == TierScope::Shared && self.node >= MEASURED_NODES;
        if is_one_of_many { LITTLE } else { LOAD }
    }

    /// Returns the space for checkpoints on a tier of all nodes, or of one node, whose ranks save
    /// their part.
    fn needed_bytes(&self, tier: &Planned, context: &Context) -> Option<u64> {
        let nodes = match tier.scope {
            TierScope::Node => context.world.div_ceil(context.local_world) as u64,
            TierScope::Shared => 1,
        };
        let copies = if tier.has_partner_copies { 2 } else { 1 };
        self.checkpoint_bytes.map(|bytes| (copies * CHECKPOINTS_AT_ONCE * bytes).div_ceil(nodes))
    }
}

/// Checks a tier; any step may hang with its storage.
fn check_tier(tier: &Planned, load: Load, needed_bytes: Option<u64>) -> Finding {
    let address = &tier.address;
    if tier.is_object() {
        return check_store(address);
    }
    let folder = existing(Path::new(address));
    let finding = match bench(&folder.to_string_lossy(), load) {
        Err(error) => Finding::fail(error.to_string(), "a folder that can be written"),
        Ok(rates) => judge(tier, &rates, needed_bytes),
    };
    if folder == Path::new(address) { finding } else { below(folder, address, finding) }
}

/// Adds that only part of a path exists. If none of it does, its volume is probably not mounted.
fn below(folder: &Path, address: &str, finding: Finding) -> Finding {
    let found = format!("{address} does not exist, in {}: {}", folder.display(), finding.found);
    match finding.status {
        Status::Pass if folder == Path::new("/") => Finding::warn(found, "a volume on this path"),
        _ => Finding { found, ..finding },
    }
}

fn judge(tier: &Planned, rates: &TierRates, needed_bytes: Option<u64>) -> Finding {
    let TierRates { write_gib_per_second, read_gib_per_second, .. } = rates;
    let free_bytes = free_bytes(Path::new(&tier.address));
    let is_measured = rates.bytes >= LOAD.bytes;
    let done = match is_measured {
        true => format!("{write_gib_per_second:.2} GiB/s written, {read_gib_per_second:.2} read"),
        false => "written and read".to_owned(),
    };
    let room = free_bytes.map_or(String::new(), |bytes| format!(", {} free", gibibytes(bytes)));
    let found = done + &room;
    let lacks = needed_bytes.zip(free_bytes).filter(|(needed, free)| free < needed);
    if let Some((needed, _)) = lacks {
        Finding::fail(found, format!("{} for two checkpoints", gibibytes(needed)))
    } else if is_measured && *write_gib_per_second < WRITE_GIB_PER_SECOND_MIN {
        Finding::warn(found, format!("at least {WRITE_GIB_PER_SECOND_MIN} GiB/s"))
    } else if let Some(warning) = path_warning(tier) {
        Finding::warn(format!("{warning}; {found}"), "storage that lasts")
    } else {
        Finding::pass(found)
    }
}

fn no_answer(tier: &Planned) -> Finding {
    let found = format!("{} has not answered within {ANSWERS_WITHIN:?}", tier.address);
    Finding::fail(found, "an answer")
}

/// Returns the part of a path that exists: a run creates the rest. If nodes created it here, they
/// would race for its removal on a shared tier.
fn existing(path: &Path) -> &Path {
    let mut named = path.ancestors().filter(|folder| !folder.as_os_str().is_empty());
    named.find(|folder| folder.exists()).unwrap_or(Path::new("."))
}

/// Returns the free space on the file system of a path.
fn free_bytes(path: &Path) -> Option<u64> {
    let system = rustix::fs::statvfs(existing(path)).ok()?;
    Some(system.f_bavail * system.f_frsize)
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::text::Interval;

    fn tier(address: &Path) -> Planned {
        Planned {
            name: "shared",
            scope: TierScope::Shared,
            address: address.to_string_lossy().into_owned(),
            every: Interval::Never,
            keep: 1,
            has_partner_copies: false,
        }
    }

    fn rates(write_gib_per_second: f64) -> TierRates {
        TierRates {
            address: String::new(),
            filesystem: None,
            threads: 1,
            bytes: LOAD.bytes,
            write_seconds: 1.0,
            write_gib_per_second,
            read_seconds: 1.0,
            read_gib_per_second: 1.0,
            read_is_cold: None,
            creates_per_second: 1.0,
            stats_per_second: 1.0,
            lists_per_second: 1.0,
            deletes_per_second: 1.0,
        }
    }

    #[test]
    fn a_slow_or_small_tier_is_found() {
        // Not a temporary folder, which may be in memory and would get a warning.
        let tier = tier(Path::new(env!("CARGO_MANIFEST_DIR")));
        let judge = |needed_bytes, rate| judge(&tier, &rates(rate), needed_bytes);
        let full = judge(Some(u64::MAX / 4), 1.0);
        assert_eq!(full.status, Status::Fail, "{full:?}");
        assert!(full.expected.is_some_and(|text| text.contains("for two checkpoints")));
        let slow = judge(None, 0.05);
        assert_eq!(slow.status, Status::Warn);
        assert!(slow.found.starts_with("0.05 GiB/s written, 1.00 read, "), "{slow:?}");
        let little = super::judge(&tier, &TierRates { bytes: LITTLE.bytes, ..rates(0.05) }, None);
        assert_eq!(little.status, Status::Pass);
        assert!(little.found.starts_with("written and read, "), "{little:?}");
    }

    #[test]
    fn a_node_needs_room_for_the_part_of_its_ranks() {
        let checkpoint_bytes = Some(1000);
        let context = Context {
            root: "/".into(),
            host_root: "/".into(),
            world: 16,
            local_world: 4,
            threads: 1,
            on_cuda: false,
            nccl_ib_hca: None,
            memory_bytes: None,
        };
        let shared = tier(Path::new("/"));
        let check = TierCheck { desc: &SHARED, tier: Some(&shared), checkpoint_bytes, node: 0 };
        assert_eq!(check.needed_bytes(&shared, &context), Some(2000));
        let nvme = Planned { scope: TierScope::Node, ..shared.clone() };
        assert_eq!(check.needed_bytes(&nvme, &context), Some(500));
        assert_eq!(check.load(&shared).bytes, LOAD.bytes);
        let far = TierCheck { node: MEASURED_NODES, ..check };
        assert_eq!(far.load(&shared).bytes, LITTLE.bytes);
        let unknown = Planned { address: String::new(), ..shared.clone() };
        assert_eq!(TierCheck { tier: Some(&unknown), ..far }.run(&context).status, Status::Fail);
        assert_eq!(far.load(&nvme).bytes, LOAD.bytes);
    }

    #[test]
    fn what_exists_of_a_path_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        assert_eq!(existing(&path), folder.path());
        assert_eq!(existing(folder.path()), folder.path());
        assert_eq!(existing(Path::new("absent/b")), Path::new("."));
        let found = check_tier(&tier(&path), LITTLE, None).found;
        let said = format!("{} does not exist, in {}: ", path.display(), folder.path().display());
        assert!(found.starts_with(&said), "{found}");
        let unmounted = below(Path::new("/"), "/absent/b", Finding::pass("written and read"));
        assert_eq!(unmounted.status, Status::Warn);
        assert_eq!(unmounted.found, "/absent/b does not exist, in /: written and read");
    }

    #[test]
    fn memory_as_a_tier_warns() {
        let memory = judge(&tier(Path::new("/dev/shm")), &rates(1.0), None);
        assert_eq!(memory.status, Status::Warn, "{memory:?}");
    }

    #[test]
    fn storage_that_hangs_fails() {
        assert_eq!(no_answer(&tier(Path::new("/"))).status, Status::Fail);
    }
}
