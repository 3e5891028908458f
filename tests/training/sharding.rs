//! Sharded optimizer: the same bits as without on every transport, the same export, and its share
//! of the planned memory.

use collectives::{Collective, Mpi, MpiOptions, Single};
use device::Device;
use safetensors::SafeTensors;
use support::{Folder, finish, mpirun_test, run, text};
use trainer::config::Config;
use trainer::data::Source;
use trainer::fault_injection::Injector;
use trainer::mesh::Mesh;
use trainer::step::{Requests, Trainer};

const SHARDED: [&str; 2] = ["--set", "parallel.sharded=optimizer"];

#[test]
fn an_export_does_not_depend_on_sharding() {
    let exported = |extra: &[&str]| {
        let folder = Folder::new();
        let bf16 = ["--threads", "1", "--steps", "3", "--set", "precision.compute=bf16"];
        let buckets = ["--set", support::SEVERAL_BUCKETS];
        folder.train_on(2, &[&bf16[..], &buckets, extra].concat()).expect(0);
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

const TEST: &str = "training::sharding::sharding_changes_no_bit_on_any_transport";

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
    for (transport, ranks) in [("shared", 2), ("mpi", 2), ("nodes", 4), ("uneven", 4)] {
        let mut command = mpirun_test(ranks, TEST);
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
                "batch.micro_sequences=1".to_owned(),
                "batch.global_sequences=4".to_owned(),
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
