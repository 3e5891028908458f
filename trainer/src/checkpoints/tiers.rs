//! The tiers of a run, as configured: which there are, how often a checkpoint gets to each, and how
//! many stay there.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use checkpoint::durable::IoError;
use checkpoint::remote::{Remote, RemoteOptions, is_remote};
use checkpoint::tier::{Filesystem, LocalTier, Medium, ObjectTier, Scope, Tier};
use checkpoint::{Identity, Member, Store};
use serde::{Deserialize, Serialize};

use crate::config::{CheckpointConfig, Interval, TierConfig};
use crate::failure::{ExitCode, Failure, Outcome};
use crate::ranks::Ranks;

/// Environment variables that name a tier's folder where the configuration does not.
const NVME_VARIABLE: &str = "LOCAL_CHECKPOINT_DIR";
const SHARED_VARIABLE: &str = "SHARED_CHECKPOINT_DIR";

/// A set of tiers, by their positions among those of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierSet(pub(crate) u8);

impl TierSet {
    /// Every tier there is.
    pub(crate) const ALL: Self = Self(u8::MAX);

    /// Whether it has none.
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether it has this one.
    pub(crate) fn contains(self, tier: usize) -> bool {
        self.0 & (1 << tier) != 0
    }

    /// Those of both.
    #[must_use]
    pub(crate) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn insert(&mut self, tier: usize) {
        self.0 |= 1 << tier;
    }
}

/// A tier that a run is to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Planned {
    /// As in the configuration.
    pub(crate) name: &'static str,
    pub(crate) scope: Scope,
    /// A folder or a URL; that of the run.
    pub(crate) address: String,
    pub(crate) every: Interval,
    pub(crate) keep: usize,
}

/// The tiers of a run whose own folder for checkpoints is `folder`, the nearest first.
pub(crate) fn planned(config: &CheckpointConfig, folder: &Path, run: &str) -> Vec<Planned> {
    let variable = |name: &str| std::env::var(name).ok().filter(|path| !path.is_empty());
    let plan = |name, scope, tier: &TierConfig, default: Option<String>| {
        let of_run = |path: String| format!("{}/{run}", path.trim_end_matches('/'));
        Some(Planned {
            name,
            scope,
            address: tier.path.clone().or(default).map(of_run)?,
            every: tier.every.unwrap_or(config.every),
            keep: tier.keep.unwrap_or(config.keep),
        })
    };
    let nvme = plan("nvme", Scope::Node, &config.nvme, variable(NVME_VARIABLE));
    let shared = plan("shared", Scope::Shared, &config.shared, variable(SHARED_VARIABLE));
    let object = plan("object", Scope::Shared, &config.object, None);
    let shared = shared.unwrap_or_else(|| Planned {
        name: "shared",
        scope: Scope::Shared,
        address: folder.to_string_lossy().into_owned(),
        every: config.shared.every.unwrap_or(config.every),
        keep: config.shared.keep.unwrap_or(config.keep),
    });
    let shared = config.has_shared_tier().then_some(shared);
    nvme.into_iter().chain(shared).chain(object).collect()
}

/// Whether each tier of a run, the nearest first, is an object store.
pub(crate) fn are_objects(config: &CheckpointConfig) -> Vec<bool> {
    planned(config, Path::new(""), "").iter().map(Planned::is_object).collect()
}

impl Planned {
    /// Whether it is in an object store, and not a folder.
    fn is_object(&self) -> bool {
        is_remote(&self.address)
    }
}

/// A tier that cannot be used, on some rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NotOpened {
    pub(crate) tier: String,
    pub(crate) rank: usize,
    pub(crate) reason: String,
}

/// The tiers of a run that all ranks can use.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    pub(crate) members: Vec<Member>,
    /// What is planned for each.
    pub(crate) planned: Vec<Planned>,
    pub(crate) not_opened: Vec<NotOpened>,
}

/// Opens tiers on all ranks alike; one that a rank cannot open is used by none. An object store is
/// asked for `deadline`, or its own patience if that is shorter. Collective.
///
/// # Errors
/// The error of a tier that belongs to something else, on the rank that found it, and that of the
/// last tier where no other is left.
pub(crate) fn open(
    planned: Vec<Planned>,
    identity: &Identity,
    deadline: Duration,
    ranks: Ranks<'_>,
) -> Outcome<Opened> {
    let mut opened = Opened::default();
    for tier in planned {
        let own = open_one(&tier, identity, deadline, ranks.rank());
        let reason = own.as_ref().err().map(ToString::to_string);
        let reason = serde_json::to_vec(&reason).map_err(internal)?;
        let mut is_usable = true;
        for (rank, reason) in ranks.gather_bytes(&reason)?.iter().enumerate() {
            let reason: Option<String> = serde_json::from_slice(reason).map_err(internal)?;
            let Some(reason) = reason else { continue };
            is_usable = false;
            opened.not_opened.push(NotOpened { tier: tier.name.to_owned(), rank, reason });
        }
        match own {
            Ok(store) if is_usable => {
                let Planned { name, scope, .. } = tier;
                let store = Arc::new(store);
                opened.members.push(Member { name: name.to_owned(), scope, store });
                opened.planned.push(tier);
            }
            Err(error) if !matches!(error, checkpoint::Error::Io(_)) => return Err(error.into()),
            _ => {}
        }
    }
    if opened.members.is_empty() {
        let NotOpened { tier, rank, reason } = opened.not_opened.swap_remove(0);
        let error = anyhow::anyhow!("no tier of checkpoints can be used: {tier}: {reason}");
        return Err(Failure::new(ExitCode::Checkpoint, error).caused_by(rank));
    }
    Ok(opened)
}

fn open_one(
    tier: &Planned,
    identity: &Identity,
    deadline: Duration,
    rank: usize,
) -> Result<Store, checkpoint::Error> {
    let Planned { scope, address, .. } = tier;
    if rank == 0 && tier.is_object() {
        check_exclusive_put(&remote(address, deadline)?)?;
    }
    Ok(Store::open(place(address, deadline)?, identity)?.with_scope(*scope))
}

/// The tier at a path or URL; an object store has so long for each answer, or its own patience if
/// that is shorter. Touches nothing.
pub(crate) fn place(address: &str, patience: Duration) -> Result<Arc<dyn Tier>, checkpoint::Error> {
    if is_remote(address) {
        return Ok(Arc::new(ObjectTier::new(remote(address, patience)?)));
    }
    Ok(Arc::new(LocalTier::new(address)))
}

fn remote(address: &str, patience: Duration) -> Result<Remote, IoError> {
    let own = RemoteOptions::default();
    let options = RemoteOptions { patience: own.patience.min(patience), ..own };
    Remote::open_with(address, options)
}

/// The commit of a checkpoint relies on it.
fn check_exclusive_put(remote: &Remote) -> Result<(), IoError> {
    let nonce = UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let key = format!("PROBE-{nonce:x}-{}", std::process::id());
    if remote.honours_exclusive_put(&key)? {
        return Ok(());
    }
    let reason = "it ignores If-None-Match, so two runs could commit the same checkpoint";
    let error = io::Error::new(io::ErrorKind::Unsupported, reason);
    Err(IoError::at(&remote.url(""), "use the object store")(error))
}

fn internal(error: impl Into<anyhow::Error>) -> Failure {
    Failure::new(ExitCode::Internal, error)
}

/// What is odd about the place of a tier.
pub(crate) fn doubts(tier: &Planned) -> Option<String> {
    let Planned { name, scope, address, .. } = tier;
    if tier.is_object() {
        return None;
    }
    let Filesystem { name: kind, medium } = Filesystem::of(Path::new(address)).ok()?;
    let doubt = match (medium, scope) {
        (Medium::Ephemeral, _) => "does not survive a restart of the machine or its container",
        (Medium::Network, Scope::Node) => "is a network file system, not a disk of this node",
        _ => return None,
    };
    Some(format!("tier {name}: {address} ({kind}) {doubt}"))
}

/// When a checkpoint gets to each tier.
#[derive(Debug)]
pub(crate) struct Cadence {
    every: Vec<Interval>,
    last: Vec<Instant>,
}

impl Cadence {
    pub(crate) fn new(planned: &[Planned]) -> Self {
        let every: Vec<_> = planned.iter().map(|tier| tier.every).collect();
        Self { last: vec![Instant::now(); every.len()], every }
    }

    /// The tiers that a checkpoint of this step, counted from 1, has to get to. Rank 0 has the
    /// clock of all.
    pub(crate) fn due(&self, step: u64, rank: usize) -> TierSet {
        let mut due = TierSet::default();
        for (tier, (every, last)) in self.every.iter().zip(&self.last).enumerate() {
            let is_due = match every {
                Interval::Never => false,
                Interval::Steps(steps) => step.is_multiple_of(*steps),
                Interval::Time(time) => rank == 0 && last.elapsed() >= *time,
            };
            if is_due {
                due.insert(tier);
            }
        }
        due
    }

    /// Restarts the clocks of these tiers.
    pub(crate) fn saved(&mut self, tiers: TierSet) {
        for (tier, last) in self.last.iter_mut().enumerate() {
            if tiers.contains(tier) {
                *last = Instant::now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn planned_with(config: &CheckpointConfig) -> Vec<(&'static str, String, Interval)> {
        let planned = planned(config, Path::new("out/checkpoints"), "run-1");
        planned.into_iter().map(|tier| (tier.name, tier.address, tier.every)).collect()
    }

    #[test]
    fn the_run_s_folder_is_the_shared_tier_unless_another_is_named() {
        let every = Interval::Steps(5);
        let mut config = CheckpointConfig { every, ..CheckpointConfig::default() };
        let own = ("shared", "out/checkpoints".to_owned(), every);
        assert_eq!(planned_with(&config), std::slice::from_ref(&own));
        config.nvme.path = Some("/nvme/".to_owned());
        config.object.path = Some("s3://bucket/runs".to_owned());
        config.object.every = Some(Interval::Steps(50));
        let nvme = ("nvme", "/nvme/run-1".to_owned(), every);
        let object = ("object", "s3://bucket/runs/run-1".to_owned(), Interval::Steps(50));
        assert_eq!(planned_with(&config), [nvme.clone(), own, object.clone()]);
        config.shared.path = Some("/lustre".to_owned());
        assert_eq!(planned_with(&config)[1].1, "/lustre/run-1");
        config.shared.path = Some("none".to_owned());
        assert_eq!(planned_with(&config), [nvme, object]);
    }

    #[test]
    fn each_tier_has_its_own_cadence() {
        let mut config =
            CheckpointConfig { every: Interval::Steps(2), ..CheckpointConfig::default() };
        config.nvme.path = Some("/nvme".to_owned());
        config.shared.every = Some(Interval::Steps(6));
        config.object.path = Some("s3://bucket".to_owned());
        config.object.every = Some(Interval::Time(Duration::from_nanos(1)));
        let mut cadence = Cadence::new(&planned(&config, Path::new("out"), "run-1"));
        let due = |cadence: &Cadence, step, rank| cadence.due(step, rank).0;
        assert_eq!([1, 2, 6].map(|step| due(&cadence, step, 1)), [0, 0b001, 0b011]);
        assert_eq!(due(&cadence, 1, 0), 0b100, "rank 0 has the clock");
        cadence.every[2] = Interval::Time(Duration::from_secs(3600));
        cadence.saved(TierSet::ALL);
        assert_eq!(due(&cadence, 1, 0), 0);
    }
}
