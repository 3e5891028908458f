//! Attempts that take their number, and those that lose it.

use std::fs;

use checkpoint::{Alone, Error, Silent};

use crate::support::*;

#[test]
fn all_ranks_learn_one_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let epochs = on_ranks(3, |peers| store.claim(4, peers).unwrap());
    assert_eq!(epochs, [4, 4, 4]);
    assert!(folder.path().join("EPOCH-0004").is_file());
}

#[test]
fn a_new_attempt_fences_before_its_first_save() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    assert_eq!(store.claim(1, &Alone).unwrap(), 1);
    save(&store, 2, 10, 1, 1);
    assert_eq!(store.claim(2, &Alone).unwrap(), 2);
    for result in on_ranks(2, |peers| save_rank(&store, (20, 1, 1), peers, &Silent)) {
        match result.unwrap_err() {
            Error::Fenced { path, .. } => assert_eq!(path, folder.path().join("EPOCH-0002")),
            other => panic!("{other}"),
        }
    }
    save(&store, 2, 20, 2, 1);
}

#[test]
fn a_lost_count_of_attempts_goes_on_after_the_largest_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    save(&store, 1, 10, 7, 1);
    assert_eq!(store.claim(1, &Alone).unwrap(), 8);
    assert_eq!(store.claim(1, &Alone).unwrap(), 9);
    assert!(!folder.path().join("EPOCH-0008").exists(), "old ones are swept");
    save(&store, 1, 20, 9, 1);
}

#[test]
fn attempts_that_start_together_never_share_an_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for round in 1..=20 {
        let mut epochs = on_ranks(4, |_| store.claim(round, &Alone).unwrap());
        epochs.sort_unstable();
        assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "{epochs:?}");
        let newest = format!("EPOCH-{:04}", epochs[3]);
        assert!(folder.path().join(newest).exists());
    }
    let epochs = fs::read_dir(folder.path()).unwrap().flatten();
    let epochs = epochs.filter(|entry| entry.file_name().to_str().unwrap().starts_with("EPOCH"));
    assert_eq!(epochs.count(), 1);
}
