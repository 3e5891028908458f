//! NICs of ranks, as NCCL has logged them.

use std::collections::BTreeSet;

use collectives::transports::Transport;

use super::sections::RankRecord;

/// Names the NICs by which ranks really send and receive. Where NCCL has not logged any, or only
/// their numbers, what is known of the system stays.
pub(crate) fn name_nics(ranks: &mut [RankRecord], transports: &[Transport]) {
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

#[cfg(test)]
mod tests {
    use collectives::transports::{Log, transports};

    use super::*;
    use crate::record::tests::finished;

    #[test]
    fn what_nccl_has_used_comes_before_what_is_near() {
        let log = "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB eth0:10.0.0.1<0>\n\
                   NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/1/GDRDMA\n\
                   NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA\n\
                   NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/Unknown/3\n";
        let mut ranks = finished().ranks;
        ranks.iter_mut().for_each(|rank| rank.nic = Some("mlx5_9:1".to_owned()));
        name_nics(&mut ranks, &transports(Log::parse(log).ends()));
        assert_eq!(ranks[0].nic.as_deref(), Some("mlx5_0:1, mlx5_1:1"));
        assert_eq!(ranks[1].nic.as_deref(), Some("mlx5_9:1"), "without a name");
        assert!(ranks[0].location(&ranks).ends_with(", NIC mlx5_0:1, mlx5_1:1)"));
    }
}
