//! Paces of devices, measured before: the record of an earlier run of the same work.

use std::path::Path;

use crate::statistics::median_of;
use crate::{RankRecord, Record};

/// Reason why a record has no paces for a job.
#[derive(Debug, thiserror::Error)]
pub enum PaceError {
    /// The record cannot be read.
    #[error(transparent)]
    Unreadable(#[from] crate::Error),
    /// Steps of another workload take another time.
    #[error("it is of workload {of}, and this is workload {own}")]
    OtherWork {
        /// Hash of the record's workload.
        of: String,
        /// Hash of this run's.
        own: String,
    },
}

/// Identity of a rank's device: the node or host, and there the GPU's address or the rank's place
/// among those without one.
#[derive(Debug, PartialEq, Eq)]
struct Device<'a> {
    host: &'a str,
    pci_bus_id: Option<&'a str>,
    local_rank: usize,
}

impl<'a> Device<'a> {
    fn of(rank: &'a RankRecord, ranks: &'a [RankRecord]) -> Self {
        let host = |rank: &'a RankRecord| rank.node.as_deref().unwrap_or(&rank.host);
        let pci_bus_id = rank.device.as_ref().map(|device| device.pci_bus_id.as_str());
        let before = ranks.iter().take_while(|other| other.rank != rank.rank);
        let on_cores = before.filter(|other| pci_bus_id.is_none() && host(other) == host(rank));
        Self { host: host(rank), pci_bus_id, local_rank: on_cores.count() }
    }
}

/// Reads the seconds of a step of each rank's device from the record in `dir`; `None` for a device
/// that was not in it, or was slow in it.
///
/// # Errors
/// If there is no record, or one of other work.
pub fn paces(
    dir: &Path,
    workload_id: &str,
    ranks: &[RankRecord],
) -> Result<Vec<Option<f64>>, PaceError> {
    let record = Record::read(dir)?;
    if record.workload.id != workload_id {
        let [of, own] = [&record.workload.id, workload_id].map(str::to_owned);
        return Err(PaceError::OtherWork { of, own });
    }
    let of_rank = |rank| {
        let device = Device::of(rank, ranks);
        let is_it = |other: &&RankRecord| Device::of(other, &record.ranks) == device;
        pace(record.ranks.iter().find(is_it)?)
    };
    Ok(ranks.iter().map(of_rank).collect())
}

fn pace(rank: &RankRecord) -> Option<f64> {
    let times = rank.times.as_ref().filter(|_| rank.straggler.is_none())?;
    let mut own_ms = times.own_ms.clone();
    Some(median_of(&mut own_ms) / 1e3).filter(|seconds| *seconds > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OwnTimes;
    use crate::fixtures::finished;

    #[test]
    fn a_device_has_its_pace_wherever_its_rank_is() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = finished();
        let rank_0 = record.ranks[0].clone();
        let of = |rank, node: &str, ms| RankRecord {
            rank,
            node: Some(node.to_owned()),
            times: Some(OwnTimes { first_steps: vec![1, 2, 3], own_ms: vec![9.0 * ms, ms, ms] }),
            straggler: None,
            ..rank_0.clone()
        };
        let ranks = vec![of(0, "a", 10.0), of(1, "b", 20.0), of(2, "b", 30.0)];
        record.ranks.clone_from(&ranks);
        record.write(folder.path()).unwrap();
        let placed = vec![of(0, "b", 0.0), of(1, "a", 0.0), of(2, "c", 0.0), of(3, "b", 0.0)];
        let id = record.workload.id.clone();
        let found = paces(folder.path(), &id, &placed).unwrap();
        assert_eq!(found, [Some(0.02), Some(0.01), None, Some(0.03)]);
        let other = paces(folder.path(), "another", &placed).unwrap_err();
        assert!(matches!(other, PaceError::OtherWork { .. }), "{other}");
    }
}
