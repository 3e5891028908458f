//! What the ranks know of the transports between them: each reads NCCL's log of its own process,
//! and all learn what the others have found.

use collectives::transports::PairEnd;
use serde::{Deserialize, Serialize};

use super::nccl_log::NcclLog;
use crate::failure::Outcome;
use crate::ranks::Ranks;

/// What one rank has found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Evidence {
    /// The rank's own ends of its connections.
    pub(crate) ends: Vec<PairEnd>,
    /// Why there may be more.
    pub(crate) gap: Option<String>,
}

/// Reads the log, after the first step: NCCL connects when an operation first needs it.
#[derive(Debug, Clone, Copy)]
pub(super) struct TransportProbe<'run> {
    pub(super) log: &'run NcclLog,
    /// All ranks, with time to read a file.
    pub(super) ranks: Ranks<'run>,
}

impl TransportProbe<'_> {
    /// Gathers the evidence of all ranks, in their order.
    pub(super) fn gather(&self) -> Outcome<Vec<Evidence>> {
        let (log, gap) = self.log.read();
        let ends = log.ends_of(self.ranks.rank());
        let gap = gap.or_else(|| ends.is_empty().then(|| "NCCL's log does not name them".into()));
        self.ranks.gather(&Evidence { ends, gap })
    }
}
