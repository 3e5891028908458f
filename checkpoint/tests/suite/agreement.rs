//! Ranks that disagree, are lost, or are fenced while they save.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;

use checkpoint::{Error, Failpoint, Failpoints, NoFailpoints, Peers, PeersError};

use crate::support::*;

/// Peers of a rank that dies at its n-th gather.
struct Mortal<'a> {
    peers: &'a Thread,
    left: Cell<usize>,
}

impl Peers for Mortal<'_> {
    fn rank(&self) -> usize {
        self.peers.rank()
    }

    fn world(&self) -> usize {
        self.peers.world()
    }

    fn all_gather(&self, payload: &[u8]) -> Result<Vec<Vec<u8>>, PeersError> {
        if self.left.get() == 0 {
            return Err(PeersError::new("killed"));
        }
        self.left.set(self.left.get() - 1);
        self.peers.all_gather(payload)
    }
}

#[test]
fn a_lost_rank_is_an_error_and_never_damage() {
    for (gathers, expected) in [(0, 10), (1, 20)] {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        save(&store, 2, 10, 1, 0);
        let results = on_ranks(2, |peers| {
            let left = if peers.rank() == 1 { gathers } else { usize::MAX };
            let peers = Mortal { peers, left: Cell::new(left) };
            save_rank(&store, Plan { step: 20, attempt: 1, keep: 1 }, &peers, &NoFailpoints)
        });
        for result in results {
            assert!(matches!(result, Err(Error::Peers(_))), "{gathers}: {result:?}");
        }
        let resumed = resume(&store, 2);
        assert_eq!((resumed.step, resumed.rejected), (expected, Vec::new()), "{gathers}");
    }
}

#[test]
fn ranks_that_save_different_steps_get_an_error() {
    let store = TemporaryStore::new();
    let results = on_ranks(3, |peers| {
        let step = if peers.rank() == 2 { 11 } else { 10 };
        save_rank(&store, Plan { step, attempt: 1, keep: 1 }, peers, &NoFailpoints)
    });
    for result in results {
        match result.unwrap_err() {
            Error::Disagree { what, rank, first, other } => {
                assert_eq!(
                    (what, rank, &*first, &*other),
                    ("checkpoint", 2, "s000000010-a0001-00000001", "s000000011-a0001-00000001")
                );
            }
            other => panic!("{other}"),
        }
    }
    assert!(names(&store).is_empty());
}

/// Starts a newer attempt while this one writes.
struct Successor(PathBuf);

impl Failpoints for Successor {
    fn hit(&self, failpoint: Failpoint) {
        if failpoint == Failpoint::VoteBeforeManifest {
            fs::create_dir(&self.0).unwrap();
        }
    }
}

#[test]
fn an_attempt_that_is_fenced_while_it_writes_does_not_commit() {
    let store = TemporaryStore::new();
    let newer = store.path().join("s000000005-a0002-00000000");
    let results = on_ranks(2, |peers| {
        save_rank(&store, Plan { step: 10, attempt: 1, keep: 1 }, peers, &Successor(newer.clone()))
    });
    for result in results {
        assert!(matches!(result, Err(Error::Fenced { .. })), "{result:?}");
    }
    assert_eq!(names(&store), ["s000000005-a0002-00000000"]);
}

/// Removes the folder of the checkpoint, so that its manifest cannot be written.
struct FolderRemover(PathBuf);

impl Failpoints for FolderRemover {
    fn hit(&self, failpoint: Failpoint) {
        if failpoint == Failpoint::VoteBeforeManifest {
            for entry in fs::read_dir(&self.0).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    fs::remove_dir_all(path).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_manifest_that_cannot_be_written_fails_the_save_on_all_ranks() {
    let store = TemporaryStore::new();
    let results = on_ranks(2, |peers| {
        save_rank(
            &store,
            Plan { step: 10, attempt: 1, keep: 1 },
            peers,
            &FolderRemover(store.path().to_owned()),
        )
    });
    for result in results {
        match result.unwrap_err() {
            Error::SaveFailed { failures, .. } => {
                assert_eq!((failures.len(), failures[0].rank), (1, 0));
                assert!(failures[0].reason.contains("MANIFEST"), "{failures:?}");
            }
            other => panic!("{other}"),
        }
    }
    assert!(names(&store).is_empty());
}

#[test]
fn an_interrupted_save_is_removed_by_the_next_one_of_the_process() {
    let store = TemporaryStore::new();
    for result in on_ranks(2, |peers| {
        let peers = Mortal { peers, left: Cell::new(1) };
        save_rank(&store, Plan { step: 10, attempt: 1, keep: 1 }, &peers, &NoFailpoints)
    }) {
        assert!(matches!(result, Err(Error::Peers(_))), "{result:?}");
    }
    assert_eq!(names(&store).len(), 1);
    let new = save(&store, 2, 20, 1, 1);
    assert_eq!(names(&store), [new]);
}
