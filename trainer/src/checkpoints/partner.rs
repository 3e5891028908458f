//! Choice of the rank on another node that keeps a copy of this rank's files.

use checkpoint::Partner;

use crate::config::{CheckpointConfig, Variables};
use crate::failure::{Failure, Outcome};
use crate::ranks::Ranks;

/// Returns the partner of this rank on `node`; `None` unless partner copies are configured.
/// Collective.
///
/// # Errors
/// Exit code 2 without a tier of nodes, and if copies cannot be on other nodes.
pub(crate) fn partner(
    config: &CheckpointConfig,
    node: usize,
    ranks: Ranks<'_>,
) -> Outcome<Option<Partner>> {
    if !config.nvme.partner {
        return Ok(None);
    }
    let has_tier = Variables::read().agreed(ranks)?.has_nvme() || config.nvme.path.is_some();
    if !has_tier {
        return Err(refused("a tier of nodes: checkpoint.nvme.path or LOCAL_CHECKPOINT_DIR"));
    }
    let node_of_rank = ranks.gather(&node)?;
    let partner = Partner::of(ranks.rank(), &node_of_rank);
    Ok(Some(partner.ok_or_else(|| {
        let ranks_of = |node| node_of_rank.iter().filter(|&&other| other == node).count();
        let most = node_of_rank.iter().map(|&node| ranks_of(node)).max().unwrap_or(0);
        let world = node_of_rank.len();
        refused(&format!("at most half of the ranks on each node, found {most} of {world} on one"))
    })?))
}

fn refused(expected: &str) -> Failure {
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
    ) -> Vec<Result<Option<Partner>, String>> {
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
        assert_eq!(found[0], Ok(Some(Partner { keeper: 1, kept: 1 })));
        assert_eq!(found[2], Ok(Some(Partner { keeper: 3, kept: 3 })));
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
}
