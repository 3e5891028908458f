//! Attempts that claim their number, and those that are fenced.

use std::fs;

use checkpoint::{Error, NoFailpoints, SingleRank};

use crate::support::*;

#[test]
fn all_ranks_get_the_same_attempt() {
    let store = TemporaryStore::new();
    let attempts = on_ranks(3, |peers| store.claim_attempt(4, peers).unwrap().attempt);
    assert_eq!(attempts, [4, 4, 4]);
    assert!(store.path().join("ATTEMPT-0004").is_file());
}

#[test]
fn a_new_attempt_fences_before_its_first_save() {
    let store = TemporaryStore::new();
    assert_eq!(store.claim_attempt(1, &SingleRank).unwrap().attempt, 1);
    save(&store, 2, 10, 1, 1);
    assert_eq!(store.claim_attempt(2, &SingleRank).unwrap().attempt, 2);
    for result in on_ranks(2, |peers| {
        save_rank(&store, Plan { step: 20, attempt: 1, keep: 1 }, peers, &NoFailpoints)
    }) {
        match result.unwrap_err() {
            Error::Fenced { path, .. } => assert_eq!(path, store.path().join("ATTEMPT-0002")),
            other => panic!("{other}"),
        }
    }
    save(&store, 2, 20, 2, 1);
}

#[test]
fn a_lost_count_of_attempts_continues_after_the_largest() {
    let store = TemporaryStore::new();
    save(&store, 1, 10, 7, 1);
    assert_eq!(store.claim_attempt(1, &SingleRank).unwrap().attempt, 8);
    assert_eq!(store.claim_attempt(1, &SingleRank).unwrap().attempt, 9);
    assert!(!store.path().join("ATTEMPT-0008").exists(), "older claims are removed");
    save(&store, 1, 20, 9, 1);
}

#[test]
fn attempts_that_start_together_never_share_a_number() {
    let store = TemporaryStore::new();
    for round in 1..=20 {
        let mut attempts =
            on_ranks(4, |_| store.claim_attempt(round, &SingleRank).unwrap().attempt);
        attempts.sort_unstable();
        assert!(attempts.windows(2).all(|pair| pair[0] < pair[1]), "{attempts:?}");
        let newest = format!("ATTEMPT-{:04}", attempts[3]);
        assert!(store.path().join(newest).exists());
    }
    let entries = fs::read_dir(store.path()).unwrap().flatten();
    let is_claim = |name: &str| name.starts_with("ATTEMPT");
    let claims = entries.filter(|entry| is_claim(entry.file_name().to_str().unwrap()));
    assert_eq!(claims.count(), 1);
}
