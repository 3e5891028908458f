//! Paces of devices, measured before: the record of an earlier run of the same work.

use std::collections::HashMap;
use std::path::Path;

use crate::statistics::median_of;
use crate::{RankRecord, Record, Status};

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
    /// Not all of its steps are done.
    #[error("its run is not complete")]
    Incomplete,
    /// Its times are not those of the machine.
    #[error("faults were injected into it")]
    Injected,
}

/// Identity of a rank's device: the node or host, and there the GPU's address or the rank's place
/// among those without one.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Device<'a> {
    host: &'a str,
    pci_bus_id: Option<&'a str>,
    local_rank: usize,
}

/// Returns the device of each rank.
fn devices(ranks: &[RankRecord]) -> impl Iterator<Item = Device<'_>> {
    let mut on_cores: HashMap<&str, usize> = HashMap::new();
    ranks.iter().map(move |rank| {
        let host = rank.node.as_deref().unwrap_or(&rank.host);
        let pci_bus_id = rank.device.as_ref().map(|device| device.pci_bus_id.as_str());
        let mut local_rank = 0;
        if pci_bus_id.is_none() {
            let count = on_cores.entry(host).or_default();
            local_rank = std::mem::replace(count, *count + 1);
        }
        Device { host, pci_bus_id, local_rank }
    })
}

/// Least number of blocks of steps that show a pace.
const BLOCKS_LEAST: usize = 16;

/// Reads the seconds of a step of each rank's device from the record in `dir`; `None` for a device
/// that was not in it, was slow in it, or has too few steps in it.
///
/// # Errors
/// If there is no record, or one of other work, of an incomplete run, or with injected faults.
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
    if record.status != Status::Complete {
        return Err(PaceError::Incomplete);
    }
    if record.injected().next().is_some() {
        return Err(PaceError::Injected);
    }
    let known = devices(&record.ranks).zip(&record.ranks);
    let known: HashMap<Device<'_>, &RankRecord> = known.collect();
    Ok(devices(ranks).map(|device| pace(known.get(&device)?)).collect())
}

fn pace(rank: &RankRecord) -> Option<f64> {
    let times = rank.times.as_ref().filter(|_| rank.straggler.is_none())?;
    let mut own_ms = times.own_ms.clone();
    let is_known = own_ms.len() >= BLOCKS_LEAST;
    Some(median_of(&mut own_ms) / 1e3).filter(|seconds| is_known && *seconds > 0.0)
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
            times: Some(OwnTimes {
                first_steps: (1..=BLOCKS_LEAST as u64).collect(),
                own_ms: [vec![9.0 * ms], vec![ms; BLOCKS_LEAST - 1]].concat(),
            }),
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
        record.status = Status::Failed;
        record.write(folder.path()).unwrap();
        let incomplete = paces(folder.path(), &id, &placed).unwrap_err();
        assert!(matches!(incomplete, PaceError::Incomplete), "{incomplete}");
    }
}
