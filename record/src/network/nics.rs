//! NICs of ranks, as logged by NCCL.

use std::collections::BTreeSet;

use super::transport::Transport;
use crate::sections::RankRecord;

/// Sets the NICs that ranks actually send and receive on. If NCCL has logged none, or only their
/// numbers, the NICs found from the system stay.
pub fn name_nics(ranks: &mut [RankRecord], transports: &[Transport]) {
    for rank in ranks {
        let sent = transports.iter().filter(|it| it.from == rank.rank);
        let received = transports.iter().filter(|it| it.to == Some(rank.rank));
        let received = received.filter_map(|it| it.receive.as_ref());
        let ends = sent.filter_map(|it| it.send.as_ref()).chain(received);
        let is_name = |name: &&String| name.parse::<u32>().is_err();
        let names: BTreeSet<_> = ends.flat_map(|end| &end.nics).filter(is_name).cloned().collect();
        if !names.is_empty() {
            rank.nic = Some(names.into_iter().collect::<Vec<_>>().join(", "));
        }
    }
}
