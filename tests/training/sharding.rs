//! Sharded optimizer end to end: the same bits as without, also across world sizes and transports.

use collectives::{Collective, Mpi, MpiOptions, Single};
use device::Device;
use safetensors::SafeTensors;
use support::{Finished, Folder, finish, mpirun_test, run, text};
use trainer::config::Config;
use trainer::data::Source;
use trainer::fault_injection::Injector;
use trainer::mesh::Mesh;
use trainer::step::{Requests, Trainer};

const SHARDED: [&str; 2] = ["--set", "parallel.sharded=optimizer"];

/// Trains on some ranks with one compute thread each and several buckets.
fn train(folder: &Folder, ranks: usize, extra: &[&str]) -> Finished {
    let flags = ["--threads", "1", "--set", support::SEVERAL_BUCKETS];
    folder.train_on(ranks, &[&flags, extra].concat())
}

fn assert_same(first: &Folder, second: &Folder, case: &str) {
    assert_eq!(first.result(), second.result(), "{case}");
    assert!(first.result().fingerprint["weights"].is_string(), "{case}");
}

/// Cases of both families in both formats.
const CASES: [[&str; 4]; 4] = [
    ["--workload", "smoke", "--set", "precision.compute=f32"],
    ["--workload", "smoke", "--set", "precision.compute=bf16"],
    ["--workload", "llama-smoke", "--set", "precision.compute=f32"],
    ["--workload", "llama-smoke", "--set", "precision.compute=bf16"],
];

#[test]
fn sharding_does_not_change_a_bit() {
    for (case, ranks) in CASES.into_iter().zip([4, 2, 2, 4]) {
        let extra = [&case[..], &["--steps", "6", "--eval-every", "3"]].concat();
        let whole = Folder::new();
        let sharded = Folder::new();
        train(&whole, ranks, &extra).expect(0);
        train(&sharded, ranks, &[&extra[..], &SHARDED].concat()).expect(0);
        assert_same(&whole, &sharded, &format!("{case:?} on {ranks} ranks"));
        assert_gathers_are_reported(&whole, &sharded);
        let evaluated = |folder: &Folder| folder.steps(0)[5].0["evaluation_loss"].clone();
        assert_eq!(evaluated(&whole), evaluated(&sharded), "{case:?} on {ranks} ranks");
        assert!(evaluated(&sharded).is_number());
    }
}

/// Gathers of weights count in the step that waits for them: in the next step's forward, or in an
/// evaluation after step 3 and then not in step 4.
fn assert_gathers_are_reported(whole: &Folder, sharded: &Folder) {
    let bytes = |folder: &Folder, step: usize| -> u64 {
        folder.steps(0)[step - 1].0["comm_bytes"].as_u64().unwrap()
    };
    let gradients = bytes(whole, 1);
    let more: Vec<bool> = (1..=6).map(|step| bytes(sharded, step) > gradients).collect();
    assert_eq!(more, [false, true, true, false, true, true]);
    assert!(bytes(sharded, 3) > bytes(sharded, 2), "gathers of two steps");
}

/// A run resumes from any checkpoint with any number of ranks, sharded or not, because checkpoints
/// hold the same state. From any layout to any other: `parallel`.
#[test]
fn checkpoints_do_not_depend_on_sharding() {
    let changes = [([2, 1], [true, false]), ([4, 3], [true, true])];
    for (case, ([before, after], sharded)) in [CASES[0], CASES[3]].into_iter().zip(changes) {
        let run = |sharded: [bool; 2]| {
            let folder = Folder::new();
            for (ranks, steps, is_sharded) in [(before, "3", sharded[0]), (after, "6", sharded[1])]
            {
                let sharded = if is_sharded { &SHARDED[..] } else { &[] };
                // A number of sequences that three ranks can divide.
                let batch = ["--set", "batch.global_sequences=12", "--set"];
                let micro = ["batch.micro_sequences=1", "--steps", steps];
                train(&folder, ranks, &[&case[..], sharded, &batch, &micro].concat()).expect(0);
            }
            folder
        };
        let case = format!("{case:?}, {before} to {after} ranks, sharded {sharded:?}");
        assert_same(&run([false; 2]), &run(sharded), &case);
    }
}

#[test]
fn an_export_does_not_depend_on_sharding() {
    let exported = |extra: &[&str]| {
        let folder = Folder::new();
        let bf16 = ["--steps", "3", "--set", "precision.compute=bf16"];
        train(&folder, 2, &[&bf16[..], extra].concat()).expect(0);
        let out = folder.sibling("exported");
        run(&["export", &folder.text(), "--out", &text(&out)]).expect(0);
        let bytes = std::fs::read(out.join("model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let mut tensors: Vec<_> =
            tensors.tensors().into_iter().map(|(name, t)| (name, t.data().to_vec())).collect();
        tensors.sort();
        tensors
    };
    assert!(exported(&[]) == exported(&SHARDED));
}

#[test]
fn the_plan_divides_sharded_buffers() {
    let bytes = |extra: &[&str]| {
        let all = [&["plan", "--workload", "gpt2-124m", "--ranks", "4", "--json"], extra].concat();
        let plan: serde_json::Value = serde_json::from_str(&run(&all).stdout).unwrap();
        let items = plan["plan"]["items"].as_array().unwrap();
        let decaying = items.iter().find(|item| item["name"] == "blocks that decay").unwrap();
        let [weights, optimizer, total] = ["weight_bytes", "optimizer_bytes", "total_bytes"]
            .map(|key| plan[key].as_u64().unwrap());
        // The table of blocks that decay is one of an owner's elements too.
        [weights, optimizer, total - decaying["bytes"].as_u64().unwrap()]
    };
    let bf16 = ["--set", "precision.compute=bf16"];
    let whole = bytes(&[]);
    let sharded = bytes(&SHARDED);
    assert_eq!(sharded[0], whole[0]);
    assert_eq!(sharded[1] * 4, whole[1]);
    assert_eq!(sharded[2], whole[2] - whole[1] * 3 / 4);
    let whole = bytes(&bf16);
    let sharded = bytes(&[&bf16[..], &SHARDED].concat());
    assert_eq!([sharded[0] * 4, sharded[1] * 4], [whole[0], whole[1]]);
    assert_eq!(sharded[2], whole[2] - (whole[0] + whole[1]) * 3 / 4);
}

/// Set for the ranks that the test below starts, which must not start more: the transport and the
/// number of ranks.
const TRANSPORT: &str = "YARDSTICK_TEST_TRANSPORT";

/// Sums have one order on every transport: in shared memory, over MPI and between nodes.
#[test]
fn sharding_changes_no_bit_on_any_transport() {
    if let Ok(job) = std::env::var(TRANSPORT) {
        let (transport, ranks) = job.split_once(' ').unwrap();
        return compare(transport, ranks.parse().unwrap());
    }
    for (transport, ranks) in [("shared", 2), ("mpi", 2), ("mpi", 4), ("nodes", 4), ("uneven", 4)] {
        let mut command = mpirun_test(ranks, "sharding::sharding_changes_no_bit_on_any_transport");
        command.env(TRANSPORT, format!("{transport} {ranks}"));
        finish(command).expect_test_passed();
    }
}

/// Trains one rank with and without sharding and overlap.
fn compare(transport: &str, ranks: usize) {
    let options = MpiOptions {
        shared_memory: transport != "mpi",
        simulated_nodes: match transport {
            "nodes" => vec![0, 1, 1, 0],
            "uneven" => vec![0, 1, 2, 1],
            _ => Vec::new(),
        },
        ..MpiOptions::default()
    };
    let mpi = Mpi::open(options).unwrap();
    assert_eq!((mpi.world(), mpi.shares_memory()), (ranks, transport != "mpi"), "{transport}");
    // `llama-smoke` has padding between tensors, which must stay zero.
    for (workload, compute) in [("smoke", "bf16"), ("llama-smoke", "f32")] {
        let bits = |is_sharded: bool, overlaps: bool| -> Vec<[u64; 2]> {
            let overrides = [
                format!("collectives.overlap={overlaps}"),
                "collectives.bucket_bytes=262144".to_owned(),
                format!("precision.compute={compute}"),
                format!("parallel.sharded={}", if is_sharded { "optimizer" } else { "none" }),
            ];
            let config = Config::load(workload, &overrides).unwrap();
            let vocabulary = config.workload.model.vocabulary;
            let source =
                Source::open(&config.workload.data, vocabulary, &config.data_locations()).unwrap();
            let single = Single::new();
            let mut trainer = Trainer::new(
                &config,
                &source,
                &Device::Host,
                Mesh::flat(&mpi, &single),
                Injector::default(),
            )
            .unwrap();
            let step = |_| {
                let stepped = trainer.step(Requests::default).unwrap();
                [stepped.loss.to_bits(), stepped.gradient_norm.to_bits()]
            };
            (0..4).map(step).collect()
        };
        let whole = bits(false, true);
        let case = format!("{transport}, {workload}, {compute}, rank {}", mpi.rank());
        assert_eq!(bits(true, true), whole, "{case}");
        assert_eq!(bits(true, false), whole, "{case}, without overlap");
    }
}
