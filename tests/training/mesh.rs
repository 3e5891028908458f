//! Ranks in two dimensions end to end: the losses of one rank, traffic over each dimension in
//! record and report, and the settings that are refused.

use serde_json::{Value, json};
use support::{Folder, finish, mpirun, run};

/// As many sequences as eight ranks can divide, in more than one micro-batch of one rank.
const TRAIN: [&str; 10] = [
    "--threads",
    "1",
    "--steps",
    "20",
    "--set",
    support::SEVERAL_BUCKETS,
    "--set",
    "batch.micro_sequences=1",
    "--set",
    "checkpoint.at_end=false",
];

/// Trains on ranks in dimensions of these sizes.
fn train([data, shard]: [usize; 2], sharded: &str) -> Folder {
    let folder = Folder::new();
    let [data_key, shard_key] =
        [("data", data), ("shard", shard)].map(|(key, n)| format!("parallel.{key}={n}"));
    let sharded = format!("parallel.sharded={sharded}");
    let layout = ["--set", &data_key, "--set", &shard_key, "--set", &sharded];
    folder.train_on(data * shard, &[&TRAIN[..], &layout].concat()).expect(0);
    folder
}

/// Rows of the traffic of a record: dimension, ranks and operation.
fn operations(record: &Value) -> Vec<String> {
    let rows = record["collectives"]["traffic"].as_array().unwrap();
    let text = |row: &Value| {
        let [dimension, operation] = ["dimension", "operation"].map(|key| row[key].as_str());
        let bytes = row["bytes_per_step"].as_f64().unwrap();
        assert!(bytes > 0.0 && bytes.fract() == 0.0, "the same in every step: {row:#}");
        assert!(row["busbw_bytes_per_second"].as_f64().unwrap() > 0.0, "{row:#}");
        format!("{} {} {}", dimension.unwrap(), row["ranks"], operation.unwrap())
    };
    rows.iter().map(text).collect()
}

#[test]
fn two_dimensions_have_the_losses_of_one_rank() {
    let alone = train([1, 1], "none");
    assert_eq!(operations_of_one_rank(&alone), 0);
    let sharded = |shard: usize, data: usize| {
        let rows = [("shard", shard, "reduce_scatter"), ("data", data, "reduce_scatter")];
        let back = [("data", data, "all_gather"), ("shard", shard, "all_gather")];
        let row = |(dimension, ranks, operation)| format!("{dimension} {ranks} {operation}");
        rows.into_iter().chain(back).map(row).collect::<Vec<_>>()
    };
    let reduced = ["shard 2 reduce_scatter", "data 2 all_reduce", "shard 2 all_gather"];
    let cases = [
        ([2, 2], "none", reduced.map(str::to_owned).to_vec()),
        ([2, 2], "optimizer", sharded(2, 2)),
        ([2, 4], "optimizer", sharded(4, 2)),
        ([2, 2], "gradients", sharded(2, 2)),
        ([2, 4], "weights", sharded(4, 2)),
    ];
    for (sizes, kind, expected) in cases {
        let [data, shard] = sizes;
        let folder = train(sizes, kind);
        let losses = folder.losses();
        assert_eq!(losses.len(), 20);
        for (expected, found) in alone.losses().iter().zip(losses) {
            let relative = expected.relative_difference(found);
            assert!(relative < 1e-5, "{sizes:?}, {kind}, {expected:?}: {relative:e}");
        }
        let record = folder.record();
        assert_eq!(operations(&record), expected, "{sizes:?}, {kind}");
        for (rank, described) in record["ranks"].as_array().unwrap().iter().enumerate() {
            let place = json!({ "data": rank / shard, "shard": rank % shard });
            assert_eq!(described["mesh"], place, "rank {rank}");
        }
        assert_eq!(record["run"]["parallel"]["sharded"], kind);
        assert_eq!(record["workload"]["id"], alone.record()["workload"]["id"]);
        let report = run(&["report", &folder.text()]).expect(0);
        let in_report = format!("(data {data} x shard {shard})");
        let [of_shard, of_data] = [format!("shard {shard} |"), format!("data {data} |")];
        report.expect_stdout(&[&in_report, &of_shard, &of_data, "busbw"]);
    }
}

/// Number of rows of traffic of a single rank, which has no collectives.
fn operations_of_one_rank(folder: &Folder) -> usize {
    folder.record()["collectives"]["traffic"].as_array().map_or(0, Vec::len)
}

#[test]
fn wrong_divisions_of_ranks_are_refused_in_a_sentence() {
    let refused = |settings: &[&str]| {
        let folder = Folder::new();
        let out = folder.text();
        let finished = finish(mpirun(2, &[&["train", "--out", &out], settings].concat())).expect(2);
        assert!(!folder.path().exists(), "the folder is not created");
        finished
    };
    let product = "parallel.data = 3 and parallel.shard = 1: expected a product of 2, the number \
                   of ranks";
    refused(&["--set", "parallel.data=3", "--set", "parallel.shard=1"]).expect_stderr(&[product]);
    let former =
        "run.shard_optimizer = true: expected parallel.sharded = \"optimizer\" or \"none\"";
    refused(&["--set", "run.shard_optimizer=true"]).expect_stderr(&[former]);
}
