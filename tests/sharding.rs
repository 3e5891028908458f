//! A sharded optimizer end to end: the same bits as without, over kills, worlds and backends.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(feature = "mpi")]

mod support;

use collectives::{Collective, Mpi, MpiOptions};
use safetensors::SafeTensors;
use support::{Folder, finish, mpirun, mpirun_test, run};
use trainer::config::Config;
use trainer::data::Source;
use trainer::inject::Injector;
use trainer::step::{Trainer, Wish};

const SHARDED: [&str; 2] = ["--set", "run.shard_optimizer=true"];

/// Trains on some ranks with one compute thread each and several buckets.
fn train(folder: &Folder, ranks: usize, extra: &[&str]) -> support::Finished {
    let out = folder.text();
    let buckets = ["--set", "collectives.bucket_bytes=262144"];
    let all = [&["train", "--threads", "1", "--out", &out], &buckets[..], extra].concat();
    finish(mpirun(ranks, &all))
}

fn same(first: &Folder, second: &Folder, what: &str) {
    assert_eq!(first.losses(), second.losses(), "{what}");
    assert_eq!(first.record()["fingerprint"], second.record()["fingerprint"], "{what}");
    assert!(first.record()["fingerprint"]["weights"].is_string(), "{what}");
}

/// The families and formats that all of this is shown for.
const CASES: [[&str; 4]; 4] = [
    ["--workload", "smoke", "--set", "precision.compute=f32"],
    ["--workload", "smoke", "--set", "precision.compute=bf16"],
    ["--workload", "llama-smoke", "--set", "precision.compute=f32"],
    ["--workload", "llama-smoke", "--set", "precision.compute=bf16"],
];

#[test]
fn sharded_and_not_are_bit_identical_and_evaluate_alike() {
    for case in CASES {
        for ranks in [2, 4] {
            let extra = [&case[..], &["--steps", "6", "--eval-every", "3"]].concat();
            let (whole, sharded) = (Folder::new(), Folder::new());
            train(&whole, ranks, &extra).expect(0);
            train(&sharded, ranks, &[&extra[..], &SHARDED].concat()).expect(0);
            same(&whole, &sharded, &format!("{case:?} on {ranks} ranks"));
            gathers_are_told(&whole, &sharded);
            let evaluated = |folder: &Folder| folder.steps(0)[5].0["evaluation_loss"].clone();
            assert_eq!(evaluated(&whole), evaluated(&sharded), "{case:?} on {ranks} ranks");
            assert!(evaluated(&sharded).is_number());
        }
    }
}

/// Weights go round as well as gradients, and count where they are waited for: in the next step's
/// forward, or in an evaluation after step 3 and so not in step 4.
fn gathers_are_told(whole: &Folder, sharded: &Folder) {
    let bytes = |folder: &Folder, step: usize| -> u64 {
        folder.steps(0)[step - 1].0["comm_bytes"].as_u64().unwrap()
    };
    let gradients = bytes(whole, 1);
    let more: Vec<bool> = (1..=6).map(|step| bytes(sharded, step) > gradients).collect();
    assert_eq!(more, [false, true, true, false, true, true]);
    assert!(bytes(sharded, 3) > bytes(sharded, 2), "those of two steps");
}

/// Any world size, sharded or not, takes any checkpoint: what goes on from a sharded one is what
/// goes on from one that is not, because both hold the same state.
#[test]
fn checkpoints_pass_between_worlds_sharded_and_not() {
    for case in CASES {
        let changes = [([2, 1], [true, false]), ([1, 2], [false, true]), ([4, 3], [true, true])];
        for ([before, after], sharded) in changes {
            let run = |sharded: [bool; 2]| {
                let folder = Folder::new();
                let starts = [(before, "3", sharded[0]), (after, "6", sharded[1])];
                for (ranks, steps, is_sharded) in starts {
                    let sharded = if is_sharded { &SHARDED[..] } else { &[] };
                    // Sequences that three ranks can share as well.
                    let batch = ["--set", "batch.global_sequences=24", "--set"];
                    let micro = ["batch.micro_sequences=2", "--steps", steps];
                    let all = [&case[..], sharded, &batch, &micro].concat();
                    train(&folder, ranks, &all).expect(0);
                }
                folder
            };
            let what = format!("{case:?}, {before} to {after} ranks, sharded {sharded:?}");
            same(&run([false; 2]), &run(sharded), &what);
        }
    }
}

#[test]
fn an_export_is_the_same() {
    let exported = |extra: &[&str]| {
        let (folder, target) = (Folder::new(), tempfile::tempdir().unwrap());
        let bf16 = ["--steps", "3", "--set", "precision.compute=bf16"];
        train(&folder, 2, &[&bf16[..], extra].concat()).expect(0);
        let to = target.path().join("exported");
        run(&["export", &folder.text(), "--out", &to.to_string_lossy()]).expect(0);
        let bytes = std::fs::read(to.join("model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let mut tensors: Vec<_> =
            tensors.tensors().into_iter().map(|(name, t)| (name, t.data().to_vec())).collect();
        tensors.sort();
        tensors
    };
    assert!(exported(&[]) == exported(&SHARDED));
}

#[test]
fn the_plan_knows_what_is_not_held() {
    let total = |extra: &[&str]| {
        let all = [&["plan", "--workload", "gpt2-124m", "--ranks", "4", "--json"], extra].concat();
        let plan: serde_json::Value = serde_json::from_str(&run(&all).expect(0).stdout).unwrap();
        ["weight_bytes", "optimizer_bytes", "total_bytes"].map(|key| plan[key].as_u64().unwrap())
    };
    let bf16 = ["--set", "precision.compute=bf16"];
    let (whole, sharded) = (total(&[]), total(&SHARDED));
    assert_eq!(sharded[0], whole[0]);
    assert_eq!(sharded[1] * 4, whole[1]);
    assert_eq!(sharded[2], whole[2] - whole[1] * 3 / 4);
    let (whole, sharded) = (total(&bf16), total(&[&bf16[..], &SHARDED].concat()));
    assert_eq!([sharded[0] * 4, sharded[1] * 4], [whole[0], whole[1]]);
    assert_eq!(sharded[2], whole[2] - (whole[0] + whole[1]) * 3 / 4);
}

/// Says how a rank that the test below starts moves data: what is no rank must not start more.
const MOVES: &str = "YARDSTICK_TEST_MOVES";

/// Between nodes, and without shared memory, sums have one order as well: also of three addends.
#[test]
fn every_way_of_mpi_gives_what_it_gives_without() {
    if let Ok(moves) = std::env::var(MOVES) {
        let (moves, ranks) = moves.split_once(' ').unwrap();
        return compare(moves, ranks.parse().unwrap());
    }
    for (moves, ranks) in [("shared", 2), ("mpi", 2), ("mpi", 4), ("nodes", 4), ("uneven", 4)] {
        let mut command = mpirun_test(ranks, "every_way_of_mpi_gives_what_it_gives_without");
        command.env(MOVES, format!("{moves} {ranks}"));
        finish(command).expect_test_passed();
    }
}

/// On one rank of so many: trains both ways.
fn compare(moves: &str, ranks: usize) {
    let options = MpiOptions {
        node_shared: moves != "mpi",
        pretended_nodes: match moves {
            "nodes" => vec![0, 1, 1, 0],
            "uneven" => vec![0, 1, 2, 1],
            _ => Vec::new(),
        },
        ..MpiOptions::default()
    };
    let mpi = Mpi::open(options).unwrap();
    assert_eq!((mpi.world(), mpi.shares_memory()), (ranks, moves != "mpi"), "{moves}");
    // The tensors of `llama-smoke` leave padding between them, which must stay zero.
    let families = ["smoke", "llama-smoke"].into_iter();
    for (workload, compute) in families.flat_map(|w| ["f32", "bf16"].map(|c| (w, c))) {
        let losses = |is_sharded: bool, overlaps: bool| -> Vec<[u64; 2]> {
            let overrides = [
                format!("collectives.overlap={overlaps}"),
                "collectives.bucket_bytes=262144".to_owned(),
                format!("precision.compute={compute}"),
                format!("run.shard_optimizer={is_sharded}"),
            ];
            let config = Config::load(workload, &overrides).unwrap();
            let vocabulary = config.workload.model.vocabulary;
            let source = Source::open(&config.workload.data, vocabulary, &config.base).unwrap();
            let mut trainer = Trainer::new(&config, &source, &mpi, Injector::default()).unwrap();
            let mut step = || trainer.step(Wish::default()).unwrap();
            let bits = |_| {
                let stepped = step();
                [stepped.loss.to_bits(), stepped.gradient_norm.to_bits()]
            };
            (0..4).map(bits).collect()
        };
        let (whole, what) =
            (losses(false, true), format!("{moves}, {workload}, {compute}, {}", mpi.rank()));
        assert_eq!(losses(true, true), whole, "{what}");
        assert_eq!(losses(true, false), whole, "{what}, without overlap");
    }
}
