//! Assignment of a restored checkpoint's files to the ranks of a new attempt: the disk of a rank's
//! node may have those of other ranks than before.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::store::Store;

/// Files of a committed checkpoint that a process can read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Number of ranks that saved the checkpoint.
    world: usize,
    /// Those of them whose files are here.
    ranks: Vec<usize>,
}

impl Holding {
    /// Lists what a store has of a checkpoint.
    ///
    /// # Errors
    /// Errors of reading the checkpoint's manifest, as when it is not committed.
    pub fn of(store: &Store, checkpoint: &str) -> Result<Self> {
        let name = store.parse_name(checkpoint)?;
        let manifest = store.manifest(&name)?;
        Ok(Self { world: manifest.world, ranks: store.ranks_here(&name, &manifest)? })
    }

    fn has(&self, saved: usize) -> bool {
        self.ranks.binary_search(&saved).is_ok()
    }
}

/// Assigns the files of each saved rank to one process that holds them: the one with the fewest so
/// far, and among those the lowest. Takes what each process holds, and returns the saved ranks that
/// each one [copies](super::Promoter::submit_restored); the same on all processes.
///
/// # Errors
/// The reason why the checkpoint cannot be promoted.
pub fn assign(holdings: &[Option<Holding>]) -> std::result::Result<Vec<Vec<usize>>, String> {
    let Some(Some(Holding { world, .. })) = holdings.first() else {
        return Err("the node of rank 0, which publishes the copy, has nothing of it".to_owned());
    };
    let mut assigned = vec![Vec::new(); holdings.len()];
    let mut missing = Vec::new();
    for saved in 0..*world {
        let has = |rank: &usize| holdings[*rank].as_ref().is_some_and(|found| found.has(saved));
        let holders = (0..holdings.len()).filter(has);
        match holders.min_by_key(|&rank| assigned[rank].len()) {
            Some(rank) => assigned[rank].push(saved),
            None => missing.push(saved),
        }
    }
    match missing.first() {
        None => Ok(assigned),
        Some(first) => Err(format!(
            "the files of {} of the {world} ranks that saved it are on no node, first those of \
             rank {first}",
            missing.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(world: usize, ranks: &[usize]) -> Option<Holding> {
        Some(Holding { world, ranks: ranks.to_vec() })
    }

    #[test]
    fn each_saved_rank_is_copied_once_by_a_process_that_has_its_files() {
        let swapped = [holding(2, &[1]), holding(2, &[0])];
        assert_eq!(assign(&swapped), Ok(vec![vec![1], vec![0]]));
        let partners = [holding(3, &[0, 2]), holding(3, &[0, 1]), None];
        assert_eq!(assign(&partners), Ok(vec![vec![0, 2], vec![1], vec![]]));
        let shared = || holding(5, &[0, 1, 2, 3, 4]);
        assert_eq!(assign(&[shared(), shared()]), Ok(vec![vec![0, 2, 4], vec![1, 3]]), "evenly");
    }

    #[test]
    fn files_that_nobody_has_are_named() {
        let lost = assign(&[holding(4, &[2]), holding(4, &[0]), None]).unwrap_err();
        assert!(lost.contains("2 of the 4 ranks") && lost.contains("rank 1"), "{lost}");
        let leader = assign(&[None, holding(1, &[0])]).unwrap_err();
        assert!(leader.contains("the node of rank 0"), "{leader}");
    }
}
