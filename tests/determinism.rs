//! Same workload, same world: same bits. Other world: same to rounding.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(feature = "mpi")]

mod support;

use std::sync::OnceLock;

use serde_json::Value;
use support::{Folder, KINDS, Kind, Line, SEVERAL_BUCKETS, finish, mpirun};

/// Trains 20 steps on some ranks with one compute thread each.
fn train(ranks: usize, extra: &[&str]) -> Folder {
    train_for("20", ranks, extra)
}

fn train_for(steps: &str, ranks: usize, extra: &[&str]) -> Folder {
    let folder = Folder::new();
    let out = folder.text();
    let mut arguments = vec!["train", "--steps", steps, "--threads", "1", "--out", &out];
    arguments.extend(extra);
    finish(mpirun(ranks, &arguments)).expect(0);
    folder
}

/// What a run came to.
#[derive(Debug, PartialEq)]
struct End {
    /// Bits of the loss at each step.
    losses: Vec<(u64, u64)>,
    fingerprint: Value,
}

impl End {
    fn of(ranks: usize, kind: Kind, extra: &[&str]) -> Self {
        Self::and_folder(ranks, kind, extra).0
    }

    fn and_folder(ranks: usize, kind: Kind, extra: &[&str]) -> (Self, Folder) {
        let folder = train(ranks, &[&kind.flags(), extra].concat());
        let record = folder.record();
        assert_eq!(record["ranks"].as_array().unwrap().len(), ranks);
        let end = Self { losses: folder.losses(), fingerprint: record["fingerprint"].clone() };
        assert_eq!(end.losses.len(), 20, "{kind:?}");
        assert!(end.fingerprint["weights"].is_string(), "{kind:?}");
        (end, folder)
    }

    fn loss(&self, step: usize) -> f64 {
        f64::from_bits(self.losses[step].1)
    }

    /// The largest relative difference of a loss that the others have, and its step.
    fn difference(&self, others: &[(u64, u64)]) -> (f64, u64) {
        let at =
            |(ours, &(step, bits)): (f64, &_)| ((ours - f64::from_bits(bits)).abs() / ours, step);
        let ours = (0..others.len()).map(|index| self.loss(index));
        ours.zip(others).map(at).max_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
    }
}

/// On two ranks, doing nothing but train; made once for all tests.
fn on_two_ranks(kind: Kind) -> &'static End {
    static ENDS: [OnceLock<End>; KINDS] = [const { OnceLock::new() }; KINDS];
    ENDS[kind.index()].get_or_init(|| {
        let (end, folder) = End::and_folder(2, kind, &["--set", "checkpoint.at_end=false"]);
        assert_eq!(folder.record()["checkpoints"], Value::Null);
        end
    })
}

/// The second run of each kind does what the first does not, so that one comparison shows both.
#[test]
fn a_second_run_that_saves_and_evaluates_is_bit_identical() {
    for kind in Kind::all() {
        let both = ["--checkpoint-every", "4steps", "--eval-every", "5"];
        let (second, folder) = End::and_folder(2, kind, &both);
        assert_eq!(folder.record()["checkpoints"]["count"], 5, "{kind:?}");
        let steps = folder.steps(0);
        let evaluated = steps.iter().filter(|line| line.0["evaluation_loss"].is_number());
        assert!(evaluated.map(Line::step).eq([5, 10, 15, 20]), "{kind:?}");
        assert_eq!(*on_two_ranks(kind), second, "{kind:?}");
    }
}

#[test]
fn neither_sharding_nor_recomputation_changes_a_bit() {
    for kind in Kind::all() {
        assert_eq!(on_two_ranks(kind), on_two_ranks(kind.plain()), "{kind:?}");
    }
}

#[test]
fn families_and_formats_differ() {
    let ends: Vec<_> = Kind::all().iter().step_by(4).map(|&kind| on_two_ranks(kind)).collect();
    for (index, end) in ends.iter().enumerate() {
        assert!(!ends[..index].contains(end), "{end:?}");
    }
}

#[test]
fn the_record_names_the_mpi_library() {
    let first = train(2, &[]);
    let library = first.record()["environment"]["mpi_library"].as_str().unwrap().to_owned();
    let expected = std::env::var("YARDSTICK_MPI_LIBRARY").unwrap_or_else(|_| "MPI".into());
    assert!(library.contains(&expected), "{library}: expected {expected}");
}

/// `null` with one warning, to people and in the record; not one from each rank.
#[test]
fn what_could_not_be_known_is_told_once() {
    let folder = Folder::new();
    let arguments = ["train", "--steps", "2", "--out", &folder.text()];
    let stderr = finish(mpirun(2, &arguments)).expect(0).stderr;
    let start = "null, because not known: ";
    let (_, told) = stderr.split_once(start).unwrap_or_else(|| panic!("not told: {stderr}"));
    assert_eq!(stderr.matches(start).count(), 1, "{stderr}");
    assert!(!stderr.contains('\u{1b}'), "colours are for terminals: {stderr:?}");
    let told = format!("{start}{}", told.lines().next().unwrap());
    let record = folder.record();
    for figure in ["mfu_causal", "mfu_full", "transports"] {
        assert_eq!(record[figure], Value::Null);
        assert!(told.contains(figure), "{figure}: {told}");
    }
    let anomalies = record["anomalies"].as_array().unwrap();
    assert!(anomalies.iter().any(|anomaly| anomaly["text"] == told), "{told} {anomalies:?}");
}

#[test]
fn another_seed_gives_other_losses() {
    let kind = Kind::all()[0];
    let other = End::of(2, kind, &["--set", "schedule.seed=1"]);
    assert_ne!(on_two_ranks(kind).losses, other.losses);
    assert_ne!(on_two_ranks(kind).fingerprint, other.fingerprint);
}

#[test]
fn overlap_on_and_off_are_bit_identical() {
    for kind in Kind::all() {
        let off = End::of(2, kind, &["--set", "collectives.overlap=false"]);
        assert_eq!(*on_two_ranks(kind), off, "{kind:?}");
    }
}

#[test]
fn the_first_bucket_starts_before_backward_ends() {
    let on = train(2, &["--set", SEVERAL_BUCKETS]);
    let leads = |folder: &Folder, rank| -> Vec<u64> {
        let lines = folder.steps(rank);
        lines.iter().map(|line| line.0["first_bucket_lead_ns"].as_u64().unwrap()).collect()
    };
    for rank in 0..2 {
        // Not in every step: on a busy machine the communication thread may wait for a core.
        let leads = leads(&on, rank);
        assert!(leads.iter().any(|&lead| lead > 0), "rank {rank}: {leads:?}");
    }
    let off = train(2, &["--set", SEVERAL_BUCKETS, "--set", "collectives.overlap=false"]);
    assert!(leads(&off, 0).iter().all(|&lead| lead == 0), "without overlap nothing starts early");
    let hidden = |folder: &Folder| folder.record()["collectives"]["hidden_share"].as_f64().unwrap();
    assert_eq!(hidden(&off), 0.0);
    assert!(hidden(&on) > 0.0);
}

#[test]
fn one_two_and_four_ranks_agree_at_one_global_batch() {
    for family_and_format in Kind::all().chunks(4) {
        let one = End::of(1, family_and_format[0], &[]);
        for &kind in family_and_format {
            for (ranks, other) in [(2, on_two_ranks(kind)), (4, &End::of(4, kind, &[]))] {
                let (relative, step) = one.difference(&other.losses);
                let told = format!("{kind:?}, {ranks} ranks, step {step}: {relative:e}");
                assert!(relative <= kind.rounding(), "{told}");
            }
        }
    }
}

#[test]
fn the_candle_engine_trains_to_the_same_losses() {
    for kind in [Kind::all()[0], Kind::all()[8]] {
        let flags = [&kind.flags()[..], &["--engine", "candle"]].concat();
        let candle = train_for("5", 2, &flags); // it takes its time
        assert_eq!(candle.record()["ranks"].as_array().unwrap().len(), 2);
        let candle = candle.losses();
        assert_eq!(candle.len(), 5);
        let (relative, step) = on_two_ranks(kind).difference(&candle);
        assert!(relative <= 1e-4, "{kind:?}, step {step}: {relative:e}");
    }
}
