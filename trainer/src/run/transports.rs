//! Discovery of the transports between ranks: each rank reads NCCL's log of its own process, and
//! all ranks share their findings.

use std::mem::ManuallyDrop;
use std::time::Duration;

use collectives::transports::PairEnd;
use launch::bootstrap::World;
use serde::{Deserialize, Serialize};

use super::nccl_log::{LoggedGroup, NcclLog};
use super::peer_loss::WatchedBackends;
use super::process;
use super::rank_backend::RankBackend;
use super::session::open_device;
use crate::config::Config;
use crate::failure::Outcome;
use crate::ranks::Ranks;

/// Findings of one rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Evidence {
    /// Own ends of the rank's connections.
    pub(crate) ends: Vec<PairEnd>,
    /// Reason why there may be more.
    pub(crate) gap: Option<String>,
}

/// Probe that reads the log after the first step: NCCL connects when an operation first needs it.
#[derive(Debug, Clone, Copy)]
pub(super) struct TransportProbe<'run> {
    pub(super) log: &'run NcclLog,
    /// All ranks, with time to read a file.
    pub(super) ranks: Ranks<'run>,
    /// Groups of ranks that NCCL has connected: the ranks in its log are theirs.
    pub(super) groups: &'run [LoggedGroup],
}

const UNATTRIBUTED: &str = "NCCL's log has later connections, of which it does not name the group";

impl TransportProbe<'_> {
    /// Gathers the evidence of all ranks, in their order.
    pub(super) fn gather(&self) -> Outcome<Vec<Evidence>> {
        let (log, gap) = self.log.read(self.groups);
        let own = self.ranks.rank();
        let groups = self.groups.iter().enumerate();
        let ends: Vec<_> =
            groups.flat_map(|(section, group)| log.ends_of(own, section, &group.ranks)).collect();
        let reasons = [
            (ends.is_empty(), "NCCL's log does not name them"),
            (log.has_connections(self.groups.len()), UNATTRIBUTED),
        ];
        let reason = reasons.iter().find(|(applies, _)| *applies);
        let gap = gap.or_else(|| reason.map(|(_, text)| (*text).to_owned()));
        self.ranks.gather(&Evidence { ends, gap })
    }
}

/// Result of connecting all ranks.
#[derive(Debug)]
pub(crate) struct Connected {
    /// Findings of each rank; empty if a rank has failed.
    pub(crate) evidence: Vec<Evidence>,
    /// Reason why each rank could not connect, if so.
    pub(crate) failures: Vec<Option<String>>,
    /// True if everything that was opened has been closed.
    pub(crate) is_closed: bool,
}

/// Additional time that ranks wait for a rank that waits for NCCL.
const AFTER_NCCL: Duration = Duration::from_secs(10);

/// Connects ranks in the same way as a run on CUDA devices, with the operations of training on
/// small buffers, and reads NCCL's log. A device or library that fails is no error, so that all
/// ranks learn of it. Collective.
///
/// # Errors
/// If a rank is lost.
pub(crate) fn connect(
    config: &Config,
    world: &World,
    peer_loss: &WatchedBackends,
    ranks: Ranks<'_>,
    log: &NcclLog,
) -> Outcome<Connected> {
    let gather_failures =
        |failure: Option<String>| ranks.with_timeout(ranks.timeout + AFTER_NCCL).gather(&failure);
    let device = open_device(config, &world.placement);
    let failures = gather_failures(device.as_ref().err().map(ToString::to_string))?;
    let Some(device) = device.ok().filter(|_| failures.iter().all(Option::is_none)) else {
        return Ok(Connected { evidence: Vec::new(), failures, is_closed: true });
    };
    // Not dropped after a failure, as in a run.
    let backend = RankBackend::open(config, world, &device, peer_loss).map(ManuallyDrop::new);
    let failures = gather_failures(backend.as_ref().err().map(ToString::to_string))?;
    let Some(backend) = backend.ok().filter(|_| failures.iter().all(Option::is_none)) else {
        return Ok(Connected { evidence: Vec::new(), failures, is_closed: false });
    };
    let evidence = TransportProbe { log, ranks, groups: backend.logged() }.gather()?;
    let closed = ManuallyDrop::into_inner(backend).close(process::close_timeout(config));
    Ok(Connected { evidence, failures, is_closed: process::warn_unless_closed(closed) })
}
