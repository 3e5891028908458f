//! Machines that refuse what shared memory needs: the run goes on without, with the same bits, and
//! its record says so.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(feature = "mpi")]

#[path = "support/refuse.rs"]
mod refuse;
#[path = "support/refused.rs"]
mod refused;
mod support;

use support::{Folder, Kind, finish};

/// Not a test by itself: what a rank does before it becomes `yardstick`.
#[test]
fn rank_of_a_job() {
    refused::become_yardstick();
}

/// Trains on two ranks, one of which is refused something.
fn train(refused: &str, kind: Kind) -> Folder {
    let folder = Folder::new();
    let out = folder.text();
    let words = [&["train", "--steps", "6", "--threads", "1", "--out", &out], &kind.flags()[..]];
    finish(refused::two_ranks(refused, &words.concat())).expect(0);
    folder
}

/// The anomalies of a run that are neither about slow processors nor about unknown figures.
fn told_of_sharing(run: &Folder) -> Vec<String> {
    let record = run.record();
    let texts = record["anomalies"].as_array().unwrap().iter();
    let texts = texts.map(|anomaly| anomaly["text"].as_str().unwrap().to_owned());
    texts.filter(|text| !text.starts_with("matmul ") && !text.starts_with("null, ")).collect()
}

#[test]
fn what_a_rank_is_refused_changes_no_bit_and_is_told() {
    let plain = Kind::all().into_iter().find(|kind| kind.workload == "llama-smoke").unwrap();
    for kind in [false, true].map(|is_sharded| Kind { is_sharded, ..plain }) {
        let undisturbed = train("none\n", kind);
        assert_eq!(told_of_sharing(&undisturbed), Vec::<String>::new(), "{kind:?}");
        for (refused, told) in [
            ("0\nmaking", "rank 0 could not map it: "),
            ("1\nmaking", "rank 1 could not share its buffer: "),
            ("1\nopening", "rank 1 could not map it: "),
        ] {
            let run = train(refused, kind);
            assert_eq!(run.losses(), undisturbed.losses(), "{kind:?}, {refused:?}");
            let (record, expected) = (run.record(), undisturbed.record());
            assert_eq!(record["fingerprint"], expected["fingerprint"], "{kind:?}, {refused:?}");
            let [anomaly] = &told_of_sharing(&run)[..] else { panic!("{record}") };
            let is_named = anomaly.contains(told) && anomaly.contains(&refuse::told());
            assert!(is_named, "{kind:?}, {refused:?}: {anomaly}");
        }
    }
}
