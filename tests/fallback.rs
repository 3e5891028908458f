//! Machines that refuse what shared memory needs: the run goes on without, with the same bits, and
//! its record says so.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(feature = "mpi")]

#[path = "support/refuse.rs"]
mod refuse;
mod support;

use std::os::unix::process::CommandExt;

use support::{Folder, Kind, finish, mpirun_test, yardstick};

/// The rank that is refused something, what it is, and the arguments of `yardstick`; to the ranks
/// that the test below starts.
const REFUSED: &str = "YARDSTICK_TEST_REFUSED";

/// Not a test by itself: what a rank does before it becomes `yardstick`.
#[test]
fn rank_of_a_job() {
    let Ok(told) = std::env::var(REFUSED) else { return };
    let mut told = told.split('\n');
    let (rank, what) = (told.next().unwrap(), told.next().unwrap());
    let names = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"];
    if names.iter().any(|name| std::env::var(name).is_ok_and(|found| found == rank)) {
        match what {
            "making" => refuse::making_memory(),
            _ => refuse::opening_to_write(),
        }
    }
    let error = yardstick(&told.collect::<Vec<_>>()).exec();
    panic!("{error}");
}

/// Trains on two ranks, one of which is refused something.
fn train(refused: &str, kind: Kind) -> Folder {
    let folder = Folder::new();
    let out = folder.text();
    let words = [&["train", "--steps", "6", "--threads", "1", "--out", &out], &kind.flags()[..]];
    let mut command = mpirun_test(2, "rank_of_a_job");
    command.env(REFUSED, format!("{refused}\n{}", words.concat().join("\n")));
    finish(command).expect(0);
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
