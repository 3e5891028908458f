//! NICs of ranks, as NCCL has logged them.

use std::collections::BTreeSet;

use super::transport::Transport;
use crate::sections::RankRecord;

/// Names the NICs by which ranks really send and receive. Where NCCL has not logged any, or only
/// their numbers, what is known of the system stays.
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
