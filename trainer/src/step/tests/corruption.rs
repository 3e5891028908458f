//! Tests that flipped bits are found, on the right rank, and that nothing else is.

use models::rng::{Purpose, Stream};
use rayon::ThreadPoolBuilder;
use record::{Corrupted, Corruption, CorruptionAction, CorruptionRecord, Repeated};

use super::*;
use crate::fault_injection::Injection;

/// Checks in every step.
const ALWAYS: [&str; 2] = ["sdc.every_steps=1", "sdc.recompute_every_steps=1"];

/// End of a run on one rank.
#[derive(Debug)]
struct Ended {
    /// Bits of the loss and gradient norm of each step, and the weights, if it came to its end.
    trained: Option<Trained>,
    /// Exit code, and the rank that is to blame.
    failed: Option<(ExitCode, Option<usize>)>,
    record: CorruptionRecord,
}

/// Trains on ranks with unequal numbers of threads, of which some have faults.
fn run(config: &Config, world: usize, steps: u64, faults: &[&str]) -> Vec<Ended> {
    let injections: Vec<Injection> = faults.iter().map(|text| text.parse().unwrap()).collect();
    on_ranks(world, |rank| {
        let threads = ThreadPoolBuilder::new().num_threads(1 + rank.rank() % 2).build().unwrap();
        let injector = Injector::new(&injections, rank.rank(), 1);
        threads.install(|| on_faulty_mesh(config, rank, injector, |trainer| end(trainer, steps)))
    })
}

fn end(trainer: &mut Trainer<'_>, steps: u64) -> Ended {
    let mut bits = Vec::new();
    let mut train = || {
        trainer.self_test()?;
        for _ in 0..steps {
            let timed = trainer.time_step(|trainer| trainer.step(Requests::default))?;
            bits.push([timed.result.loss.to_bits(), timed.result.gradient_norm.to_bits()]);
        }
        trainer.compare_replicas()
    };
    let failed = train().err().map(|failure| (failure.code, failure.rank));
    let weights =
        failed.is_none().then(|| trainer.weights_digest(trainer.ranks()).expect("a digest"));
    let trained = weights.map(|weights| Trained { steps: bits, weights });
    Ended { trained, failed, record: trainer.corruption_record() }
}

/// Returns the only finding, which all ranks have.
fn only_finding(ends: &[Ended]) -> &Corruption {
    let [finding] = &ends[0].record.findings[..] else { panic!("{:?}", ends[0]) };
    for end in ends {
        assert_eq!(end.record.findings, ends[0].record.findings);
        assert_eq!(end.failed, ends[0].failed);
    }
    finding
}

#[test]
fn checks_find_nothing_in_clean_runs_and_do_not_change_a_bit() {
    for workload in ["smoke", "llama-smoke"] {
        for sharded in ["none", "optimizer", "gradients", "weights"] {
            for (world, extra) in [
                (1, ["batch.micro_sequences=2", "precision.compute=f32"]),
                (2, ["batch.micro_sequences=2", "precision.compute=bf16"]),
                (4, ["batch.micro_sequences=1", "precision.compute=f32"]),
            ] {
                let sharded = format!("parallel.sharded={sharded}");
                let settings = [extra[0], extra[1], &sharded];
                let without = ["sdc.every_steps=0", "sdc.recompute_every_steps=0"];
                let config_of =
                    |checks: [&str; 2]| config(workload, &[&settings[..], &checks[..]].concat());
                let plain = run(&config_of(without), world, 4, &[]);
                let checked = run(&config_of(ALWAYS), world, 4, &[]);
                for (plain, checked) in plain.iter().zip(&checked) {
                    let what = format!("{workload} on {world} ranks, {settings:?}: {checked:?}");
                    assert!(checked.record.findings.is_empty(), "{what}");
                    assert_eq!(checked.trained, plain.trained, "{what}");
                    assert_eq!(checked.record.recomputed_share, 1.0, "{what}");
                    assert!(checked.record.checks > plain.record.checks, "{what}");
                }
            }
        }
    }
}

/// Sharded gradients of many micro-batches are added up in f32, with a rounding of their own.
#[test]
fn rounding_of_many_micro_batches_is_no_finding() {
    for world in [1, 2] {
        let settings = ["parallel.sharded=gradients", "batch.micro_sequences=1"];
        let batch = ["batch.global_sequences=256", "batch.sequence_tokens=16"];
        let config = config("smoke", &[&settings[..], &batch, &ALWAYS].concat());
        for end in run(&config, world, 2, &[]) {
            assert!(end.failed.is_none() && end.record.findings.is_empty(), "{end:?}");
        }
    }
}

#[test]
fn a_fault_that_passes_is_repaired_by_computing_the_step_again() {
    for sharded in ["none", "weights"] {
        let sharded = format!("parallel.sharded={sharded}");
        let config = config("smoke", &[ALWAYS[0], ALWAYS[1], &sharded]);
        for world in [1, 2, 4] {
            let undisturbed = run(&config, world, 4, &[]);
            for (value, what) in [
                ("gradient", Corrupted::Gradients),
                ("input", Corrupted::Gradients),
                ("reduction,bits=32", Corrupted::Reduction),
            ] {
                if what == Corrupted::Reduction && world == 1 {
                    continue;
                }
                let rank = world - 1;
                let fault = format!("flip@step=3,rank={rank},where={value}");
                let ends = run(&config, world, 4, &[&fault]);
                let found = only_finding(&ends);
                let case = format!("{fault}, {world} ranks, {sharded}: {found:?}");
                assert_eq!((found.step, found.what), (3, what), "{case}");
                assert_eq!(found.repeat, Some(Repeated::Transient), "{case}");
                assert_eq!(found.action, CorruptionAction::Repeat, "{case}");
                let blamed = (what == Corrupted::Gradients).then_some(rank);
                assert_eq!(found.rank, blamed, "{case}");
                assert!(found.bucket.is_some(), "{case}");
                for (end, undisturbed) in ends.iter().zip(&undisturbed) {
                    assert_eq!(end.trained, undisturbed.trained, "{case}");
                }
            }
        }
    }
}

#[test]
fn a_fault_that_stays_ends_the_run_and_a_third_rank_says_whose_it_is() {
    let config = config("smoke", &["sdc.every_steps=0", "sdc.recompute_every_steps=3"]);
    for world in [2, 4] {
        for value in ["gradient", "input"] {
            let fault = format!("flip@step=2,rank=1,where={value},every=1");
            let ends = run(&config, world, 6, &[&fault]);
            let found = only_finding(&ends);
            let case = format!("{fault}, {world} ranks: {found:?}");
            assert_eq!((found.step, found.what), (3, Corrupted::Gradients), "{case}");
            assert_eq!(found.repeat, Some(Repeated::Persistent), "{case}");
            assert_eq!(found.action, CorruptionAction::Stop, "{case}");
            assert_eq!(found.rank, (world > 2).then_some(1), "{case}");
            assert_eq!(ends[0].failed, Some((ExitCode::Numerical, found.rank)), "{case}");
        }
    }
}

#[test]
fn a_rank_that_never_computes_right_is_found_before_the_first_step() {
    let config = config("smoke", &[]);
    let ends = run(&config, 4, 2, &["flip@step=1,rank=2,where=gradient,every=1"]);
    let found = only_finding(&ends);
    assert_eq!((found.step, found.what, found.rank), (0, Corrupted::SelfTest, Some(2)));
    assert_eq!(ends[0].failed, Some((ExitCode::Numerical, Some(2))));
}

#[test]
fn state_that_changed_on_one_rank_is_found_before_the_next_comparison_is_over() {
    let config = config("smoke", &["sdc.every_steps=2"]);
    for world in [2, 4] {
        for value in ["weights", "moments"] {
            let fault = format!("flip@step=3,rank=1,where={value}");
            let ends = run(&config, world, 6, &[&fault]);
            let found = only_finding(&ends);
            let case = format!("{fault}, {world} ranks: {found:?}");
            assert_eq!((found.step, found.what), (4, Corrupted::Replicas), "{case}");
            assert_eq!(found.rank, (world > 2).then_some(1), "{case}");
            assert_eq!(ends[0].failed, Some((ExitCode::Numerical, found.rank)), "{case}");
        }
    }
}

#[test]
fn replicas_of_a_shard_are_compared_with_each_other() {
    let settings = ["sdc.every_steps=1", "parallel.sharded=weights", "parallel.data=3"];
    let config = config("smoke", &[&settings[..], &["batch.global_sequences=12"]].concat());
    let ends = run(&config, 6, 2, &["flip@step=2,rank=4,where=weights"]);
    let found = only_finding(&ends);
    assert_eq!((found.step, found.what, found.rank), (2, Corrupted::Replicas, Some(4)));
}

#[test]
fn the_second_fault_of_a_rank_and_any_fault_if_so_set_end_the_run() {
    let faults = ["flip@step=2,rank=1,where=gradient", "flip@step=3,rank=1,where=gradient"];
    let repairs = config("smoke", &ALWAYS);
    let ends = run(&repairs, 4, 4, &faults);
    let actions: Vec<_> = ends[0].record.findings.iter().map(|found| found.action).collect();
    assert_eq!(actions, [CorruptionAction::Repeat, CorruptionAction::Stop]);
    assert_eq!(ends[0].failed, Some((ExitCode::Numerical, Some(1))));
    let stops = config("smoke", &[ALWAYS[0], ALWAYS[1], "sdc.action=stop"]);
    let ends = run(&stops, 4, 4, &faults[..1]);
    assert_eq!(only_finding(&ends).action, CorruptionAction::Stop);
    assert_eq!(ends[0].failed, Some((ExitCode::Numerical, Some(1))));
}

/// Returns a count that is larger in `make soak-corruption`.
fn count(of_soak: &str, count: u64) -> u64 {
    std::env::var(of_soak).map_or(count, |count| count.parse().expect("a number"))
}

#[test]
fn healthy_ranks_are_never_found() {
    let steps = count("YARDSTICK_SOAK_CLEAN_STEPS", 16) / 4;
    let batch =
        ["batch.micro_sequences=1", "batch.global_sequences=12", "batch.sequence_tokens=16"];
    for (world, sharded) in [(1, "gradients"), (2, "none"), (3, "weights"), (4, "optimizer")] {
        let sharded = format!("parallel.sharded={sharded}");
        let config = config("smoke", &[&batch[..], &ALWAYS, &[&sharded]].concat());
        for end in run(&config, world, steps, &[]) {
            assert!(end.failed.is_none() && end.record.findings.is_empty(), "{end:?}");
        }
    }
}

/// Flips random bits of random values, each in a run of its own.
#[test]
fn random_flips_are_found_on_their_rank_or_change_nothing() {
    let flips = count("YARDSTICK_SOAK_FLIPS", 4);
    let batch = ["batch.micro_sequences=1", "batch.global_sequences=4", "batch.sequence_tokens=16"];
    let config = config("smoke", &[&batch[..], &ALWAYS].concat());
    let undisturbed = run(&config, 4, 2, &[]);
    let stream = Stream::new(11, Purpose::Test);
    for value in ["gradient", "input", "weights", "moments", "reduction"] {
        let mut found = 0;
        for flip in 0..flips {
            let rank = stream.below(2 * flip, 4) as usize;
            let bits = 1 + stream.below(2 * flip + 1, 3);
            let step = 1 + flip % 2;
            let fault = format!("flip@step={step},rank={rank},where={value},bits={bits},attempt=1");
            let ends = run(&config, 4, 2, &[&fault]);
            let findings = &ends[0].record.findings;
            let case = format!("{fault}: {:?}", ends[0]);
            let blames_other = findings.iter().any(|it| it.rank.is_some_and(|it| it != rank));
            assert!(!blames_other, "{case}");
            let is_seen = !findings.is_empty() || ends[0].failed.is_some();
            found += u64::from(is_seen);
            // A reduction may differ by less than its rounding; zeros may become very small.
            if value != "reduction" && ends[0].trained.is_some() {
                assert_eq!(ends[0].trained, undisturbed[0].trained, "{case}");
            }
        }
        println!("{value}: {found} of {flips} flips found");
        // Most gradients are much smaller than their root mean square; moments begin at zero.
        let least = if value == "reduction" { 1 } else { flips / 2 };
        assert!(found >= least, "{value}: {found}");
    }
}
