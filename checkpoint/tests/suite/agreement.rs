//! Ranks that differ, are lost, or are replaced while they save.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;

use checkpoint::{Error, Observer, Peers, PeersError, Point, Save, Silent, Store};
use serde_json::Value;

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
    for (gathers, expected) in [(0, 10), (1, 10), (2, 20)] {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        save(&store, 2, 10, 1, 0);
        let results = on_ranks(2, |peers| {
            let left = if peers.rank() == 1 { gathers } else { usize::MAX };
            let peers = Mortal { peers, left: Cell::new(left) };
            save_rank(&store, (20, 1, 1), &peers, &Silent)
        });
        for result in results {
            assert!(matches!(result, Err(Error::Peers(_))), "{gathers}: {result:?}");
        }
        let resumed = resume(&store, 2);
        assert_eq!((resumed.step, resumed.rejected), (expected, Vec::new()), "{gathers}");
    }
}

#[test]
fn ranks_that_save_different_things_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let results = on_ranks(3, |peers| {
        let step = if peers.rank() == 2 { 11 } else { 10 };
        save_rank(&store, (step, 1, 1), peers, &Silent)
    });
    for result in results {
        match result.unwrap_err() {
            Error::Disagree { what, rank, first, other } => {
                assert_eq!((what, rank, &*first, &*other), ("step", 2, "10", "11"));
            }
            other => panic!("{other}"),
        }
    }
    assert!(names(&store).is_empty());
}

/// Starts a newer attempt while this one writes.
struct Successor(PathBuf);

impl Observer for Successor {
    fn reached(&self, point: Point) {
        if point == Point::VoteBeforeManifest {
            fs::create_dir(&self.0).unwrap();
        }
    }
}

#[test]
fn an_attempt_that_is_overtaken_does_not_commit() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let newer = folder.path().join("s000000005-e0002-00000000");
    let results =
        on_ranks(2, |peers| save_rank(&store, (10, 1, 1), peers, &Successor(newer.clone())));
    for result in results {
        assert!(matches!(result, Err(Error::Fenced { .. })), "{result:?}");
    }
    assert_eq!(names(&store), ["s000000005-e0002-00000000"]);
}

/// Puts something in the way of the manifest.
struct Obstacle(PathBuf);

impl Observer for Obstacle {
    fn reached(&self, point: Point) {
        if point == Point::VoteBeforeManifest {
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
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let results = on_ranks(2, |peers| {
        save_rank(&store, (10, 1, 1), peers, &Obstacle(folder.path().to_owned()))
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
fn a_save_that_was_cut_short_is_swept_by_the_next_one_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for result in on_ranks(2, |peers| {
        let peers = Mortal { peers, left: Cell::new(1) };
        save_rank(&store, (10, 1, 1), &peers, &Silent)
    }) {
        assert!(matches!(result, Err(Error::Peers(_))), "{result:?}");
    }
    assert_eq!(names(&store).len(), 1);
    let new = save(&store, 2, 20, 1, 1);
    assert_eq!(names(&store), [new]);
}

/// A save of step 10 by two ranks of the first attempt, of which one must not.
fn save_but_for(store: &Store, unable: usize) -> Vec<checkpoint::Error> {
    let save = |peers: &Thread| {
        let model = model(10);
        let save = Save {
            step: 10,
            epoch: 1,
            parts: &parts(&model, 2, peers.rank()),
            state: &state(10),
            rank_state: &Value::Null,
            parent: None,
            unable: (peers.rank() == unable).then_some("its steps are not on the disk"),
        };
        store.save(&save, peers, &Silent)
    };
    on_ranks(2, save).into_iter().map(Result::unwrap_err).collect()
}

#[test]
fn a_rank_that_must_not_save_says_why_to_all() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for unable in [0, 1] {
        for error in save_but_for(&store, unable) {
            let Error::SaveFailed { failures, .. } = error else { panic!("{error}") };
            assert_eq!((failures.len(), failures[0].rank), (1, unable));
            assert_eq!(failures[0].reason, "its steps are not on the disk");
        }
        assert!(names(&store).is_empty(), "nothing is left of it");
    }
}

#[test]
fn an_attempt_that_is_overtaken_learns_it_also_when_it_must_not_save() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fs::create_dir(folder.path().join("s000000005-e0002-00000000")).unwrap();
    for unable in [0, 1] {
        for error in save_but_for(&store, unable) {
            assert!(matches!(error, Error::Fenced { .. }), "{unable}: {error}");
        }
    }
}
