//! Choice of the rank on another node that keeps a copy of this rank's files.

use checkpoint::Partner;
use record::machine::boot_id;
use serde::{Deserialize, Serialize};

use crate::config::{CheckpointConfig, Variables};
use crate::failure::{Failure, Outcome};
use crate::ranks::Ranks;

/// The partner of this rank, and a warning about those of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChosenPartner {
    pub(crate) partner: Partner,
    /// The same on all ranks.
    pub(crate) warning: Option<String>,
}

/// Place of a rank.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    node: usize,
    /// Machine that the node is on, empty if that is not known: the pods of a machine are different
    /// nodes.
    machine: String,
}

/// Returns the partner of this rank on `node`; `None` unless partner copies are configured.
/// Collective.
///
/// # Errors
/// Exit code 2 without a tier of nodes, and if copies cannot be on other nodes.
pub(crate) fn partner(
    config: &CheckpointConfig,
    node: usize,
    ranks: Ranks<'_>,
) -> Outcome<Option<ChosenPartner>> {
    if !config.nvme.partner {
        return Ok(None);
    }
    let has_tier = Variables::read().agreed(ranks)?.has_nvme() || config.nvme.path.is_some();
    if !has_tier {
        return Err(refused("a tier of nodes: checkpoint.nvme.path or LOCAL_CHECKPOINT_DIR"));
    }
    let places = ranks.gather(&Place { node, machine: boot_id() })?;
    choose(ranks.rank(), &places).map(Some)
}

fn choose(rank: usize, places: &[Place]) -> Outcome<ChosenPartner> {
    let node_of_rank: Vec<_> = places.iter().map(|place| place.node).collect();
    let world = places.len();
    let Some(partners) = Partner::of_all(&node_of_rank) else {
        let ranks_of = |node| node_of_rank.iter().filter(|&&other| other == node).count();
        let most = node_of_rank.iter().map(|&node| ranks_of(node)).max().unwrap_or(0);
        let expected = format!("at most half of the ranks on each node, found {most} of {world}");
        return Err(refused(&format!("{expected} on one")));
    };
    let has_near_keeper = |&rank: &usize| {
        let [own, keeper] = [rank, partners[rank].keeper].map(|rank| &places[rank].machine);
        own == keeper && !own.is_empty()
    };
    let near: Vec<_> = (0..world).filter(has_near_keeper).collect();
    let warning = near.first().map(|first| {
        format!(
            "checkpoint.nvme.partner: the copies of {} of {world} ranks are on the machine of the \
             rank itself, first those of rank {first}: nodes are pods that share it, and are lost \
             together; start one pod per machine",
            near.len()
        )
    });
    Ok(ChosenPartner { partner: partners[rank], warning })
}

pub(super) fn refused(expected: &str) -> Failure {
    Failure::usage(format!("checkpoint.nvme.partner = true: expected {expected}"))
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use collectives::Threads;

    use super::*;
    use crate::config::TierConfig;

    /// Returns the partners of ranks on these nodes, or their errors.
    fn partners(
        node_of_rank: &[usize],
        path: Option<&str>,
    ) -> Vec<Result<Option<ChosenPartner>, String>> {
        let path = path.map(str::to_owned);
        let nvme = TierConfig { path, partner: true, ..TierConfig::default() };
        let config = CheckpointConfig { nvme, ..CheckpointConfig::default() };
        let ranks = Threads::group(node_of_rank.len()).into_iter().zip(node_of_rank);
        thread::scope(|scope| {
            let config = &config;
            let threads: Vec<_> = ranks
                .map(|(rank, &node)| {
                    scope.spawn(move || {
                        let ranks = Ranks::new(&rank, Duration::from_secs(20));
                        partner(config, node, ranks).map_err(|failure| failure.error.to_string())
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn copies_need_disks_of_several_nodes() {
        let found = partners(&[0, 1, 0, 1], Some("/nvme"));
        let partner_of = |rank: usize| found[rank].clone().unwrap().unwrap().partner;
        assert_eq!(partner_of(0), Partner { keeper: 1, kept: 1 });
        assert_eq!(partner_of(2), Partner { keeper: 3, kept: 3 });
        for node_of_rank in [&[0, 0][..], &[0, 1, 0]] {
            for found in partners(node_of_rank, Some("/nvme")) {
                let text = found.unwrap_err();
                let world = node_of_rank.len();
                assert!(text.ends_with(&format!("found 2 of {world} on one")), "{text}");
            }
        }
        let text = partners(&[0, 1], None).remove(0).unwrap_err();
        assert!(text.contains("LOCAL_CHECKPOINT_DIR"), "{text}");
    }

    #[test]
    fn copies_on_the_same_machine_are_a_warning() {
        let warning = |machine_of_node: [&str; 3]| {
            let place =
                |(node, machine): (usize, &&str)| Place { node, machine: (*machine).to_owned() };
            let places: Vec<_> = machine_of_node.iter().enumerate().map(place).collect();
            choose(2, &places).unwrap().warning
        };
        assert_eq!(warning(["a", "b", "c"]), None);
        let text = warning(["a", "b", "b"]).unwrap();
        assert!(text.contains("1 of 3 ranks") && text.contains("first those of rank 1"), "{text}");
        assert_eq!(warning([""; 3]), None, "not known");
        assert!(warning(["a"; 3]).unwrap().contains("3 of 3 ranks"));
    }
}
