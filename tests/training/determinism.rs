//! Runs of one workload at one world size are bit-identical; at another world size losses agree to
//! rounding.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde_json::Value;
use support::{Folder, LossBits, RunResult, SEVERAL_BUCKETS, VARIANTS, Variant, is_matrix};

/// Trains 20 steps on some ranks with one compute thread each.
fn train(ranks: usize, flags: &[&str]) -> Folder {
    train_for("20", ranks, flags)
}

fn train_for(steps: &str, ranks: usize, flags: &[&str]) -> Folder {
    let folder = Folder::new();
    let settings = ["--steps", steps, "--threads", "1", "--set", "telemetry.matmul_probe=0s"];
    folder.train_on(ranks, &[&settings[..], flags].concat()).expect(0);
    folder
}

/// Trains a variant for 20 steps.
fn train_variant(ranks: usize, variant: Variant, flags: &[&str]) -> Folder {
    let folder = train(ranks, &[&variant.flags(), flags].concat());
    let record = folder.record();
    assert_eq!(record["ranks"].as_array().unwrap().len(), ranks);
    assert_eq!(folder.losses().len(), 20, "{variant:?}");
    assert!(record["fingerprint"]["weights"].is_string(), "{variant:?}");
    folder
}

/// The result on two ranks without checkpoints and evaluation; made once for all tests.
fn on_two_ranks(variant: Variant) -> &'static RunResult {
    static RESULTS: [OnceLock<RunResult>; VARIANTS] = [const { OnceLock::new() }; VARIANTS];
    RESULTS[variant.index()].get_or_init(|| {
        let folder = train_variant(2, variant, &["--set", "checkpoint.at_end=false"]);
        assert_eq!(folder.record()["checkpoints"], Value::Null);
        folder.result()
    })
}

/// The largest relative difference between losses at the same step.
fn largest_difference(ours: &[LossBits], theirs: &[LossBits]) -> f64 {
    let pairs = ours.iter().zip(theirs);
    let differences = pairs.map(|(ours, theirs)| ours.relative_difference(*theirs));
    differences.max_by(f64::total_cmp).unwrap()
}

#[test]
fn a_second_run_that_saves_and_evaluates_is_bit_identical() {
    for variant in Variant::corners() {
        let both = ["--checkpoint-every", "4steps", "--eval-every", "5"];
        let folder = train_variant(2, variant, &both);
        // One that is due while another is being written is skipped.
        let saves = folder.record()["checkpoints"]["count"].as_u64();
        assert!(saves.is_some_and(|saves| (2..=5).contains(&saves)), "{variant:?}: {saves:?}");
        let evaluated = evaluations(&folder);
        let steps = evaluated.iter().map(|(step, _)| *step);
        assert!(steps.eq([5, 10, 15, 20]), "{variant:?}");
        assert_eq!(*on_two_ranks(variant), folder.result(), "{variant:?}");
        if variant != variant.plain() {
            let plain = train_variant(2, variant.plain(), &["--eval-every", "5"]);
            assert_eq!(evaluated, evaluations(&plain), "{variant:?}");
        }
    }
}

/// Steps with an evaluation, and its loss.
fn evaluations(folder: &Folder) -> Vec<(u64, Value)> {
    let steps = folder.steps(0).into_iter();
    let evaluated = steps.filter(|line| line.0["evaluation_loss"].is_number());
    evaluated.map(|line| (line.step(), line.0["evaluation_loss"].clone())).collect()
}

#[test]
fn sharding_and_recomputation_do_not_change_a_bit() {
    for variant in Variant::chosen() {
        assert_eq!(on_two_ranks(variant), on_two_ranks(variant.plain()), "{variant:?}");
    }
}

#[test]
fn families_and_formats_have_different_results() {
    let variants = Variant::all().into_iter().step_by(4);
    let results: Vec<_> = variants.map(on_two_ranks).collect();
    for (index, result) in results.iter().enumerate() {
        assert!(!results[..index].contains(result), "{result:?}");
    }
}

#[test]
fn the_record_names_the_mpi_library() {
    let run = train(2, &[]);
    let library = run.record()["environment"]["mpi_library"].as_str().unwrap().to_owned();
    let expected = std::env::var("YARDSTICK_MPI_LIBRARY").unwrap_or_else(|_| "MPI".into());
    assert!(library.contains(&expected), "{library}: expected {expected}");
}

/// Figures that do not apply on a CPU are null without a warning; a figure that is missing is
/// listed in one warning, in the log and in the record, and not once per rank.
#[test]
fn missing_figures_are_listed_in_one_warning() {
    let folder = Folder::new();
    let no_probe = ["--steps", "2", "--set", "telemetry.matmul_probe=0s"];
    let stderr = folder.train_on(2, &no_probe).expect(0).stderr;
    let start = "null in the record: ";
    let (_, list) = stderr.split_once(start).unwrap_or_else(|| panic!("no warning: {stderr}"));
    assert_eq!(stderr.matches(start).count(), 1, "{stderr}");
    assert!(!stderr.contains('\u{1b}'), "colours are only for terminals: {stderr:?}");
    let warning = format!("{start}{}", list.lines().next().unwrap());
    let record = folder.record();
    assert_eq!(record["mfu_measured"], Value::Null);
    assert!(warning.contains("mfu_measured"), "{warning}");
    for figure in ["mfu_causal", "mfu_full", "transports"] {
        assert_eq!(record[figure], Value::Null);
        assert!(!warning.contains(figure), "{figure}: {warning}");
    }
    let anomalies = record["anomalies"].as_array().unwrap();
    assert!(anomalies.iter().any(|anomaly| anomaly["text"] == warning), "{warning} {anomalies:?}");
}

#[test]
fn another_seed_gives_other_losses() {
    let variant = Variant::all()[0];
    let other = train_variant(2, variant, &["--set", "schedule.seed=1"]).result();
    assert_ne!(on_two_ranks(variant).losses, other.losses);
    assert_ne!(on_two_ranks(variant).fingerprint, other.fingerprint);
}

#[test]
fn with_overlap_the_first_reduction_starts_before_backward_ends() {
    let leads = |folder: &Folder, rank| -> Vec<u64> {
        let lines = folder.steps(rank);
        lines.iter().map(|line| line.0["first_bucket_lead_ns"].as_u64().unwrap()).collect()
    };
    let hidden = |folder: &Folder| folder.record()["collectives"]["hidden_share"].as_f64().unwrap();
    // Not in every step: on a busy machine the communication thread may wait for a core, and then
    // perhaps in all steps of a run.
    let mut found = Vec::new();
    let is_early = (0..3).any(|_| {
        let on = train(2, &["--set", SEVERAL_BUCKETS]);
        let leads = [0, 1].map(|rank| leads(&on, rank));
        let hidden_share = hidden(&on);
        let is_early = leads.iter().all(|of_rank| of_rank.iter().any(|&lead| lead > 0));
        found.push((leads, hidden_share));
        is_early && hidden_share > 0.0
    });
    assert!(is_early, "{found:?}");
    let off = train(2, &["--set", SEVERAL_BUCKETS, "--set", "collectives.overlap=false"]);
    assert!(leads(&off, 0).iter().all(|&lead| lead == 0), "without overlap none starts early");
    assert_eq!(hidden(&off), 0.0);
}

#[test]
fn losses_at_any_world_size_agree_to_rounding() {
    let chosen = if is_matrix() { Variant::all().to_vec() } else { Variant::corners().to_vec() };
    let mut ones = HashMap::new();
    for variant in chosen {
        let one = ones
            .entry(variant.plain().index())
            .or_insert_with(|| train_variant(1, variant.plain(), &[]).losses());
        let two = on_two_ranks(variant);
        let four = train_variant(4, variant, &[]).result();
        for (ranks, other) in [(2, two), (4, &four)] {
            let difference = largest_difference(one, &other.losses);
            let case = format!("{variant:?}, {ranks} ranks: {difference:e}");
            assert!(difference <= variant.rounding(), "{case}");
        }
    }
}

#[test]
fn the_candle_engine_has_the_same_losses() {
    for variant in [Variant::all()[0], Variant::all()[8]] {
        let [fused, candle] = ["fused", "candle"].map(|engine| {
            let short = ["--engine", engine, "--set", "batch.sequence_tokens=32"]; // candle is slow
            let folder = train_for("3", 2, &[&variant.flags()[..], &short].concat());
            assert_eq!(folder.record()["ranks"].as_array().unwrap().len(), 2);
            folder.losses()
        });
        assert_eq!(candle.len(), 3);
        let difference = largest_difference(&fused, &candle);
        assert!(difference <= 1e-4, "{variant:?}: {difference:e}");
    }
}
