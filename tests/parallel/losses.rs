//! Eight ranks in every layout: losses and norms of one rank, the same bits where only the place of
//! the state differs, traffic over each dimension, and the settings that are refused.

use std::collections::HashMap;

use serde_json::{Value, json};
use support::{Folder, finish, is_matrix, mpirun, run};

use super::layout::{KINDS, Layout};

const STEPS: usize = 10;

/// Arrangement of eight ranks, and the number of micro-batches of each.
struct Case {
    data: usize,
    shard: usize,
    sharded: &'static str,
    accumulation: usize,
}

/// Every mesh once, and every kind of divided state. All of them in both formats, each with one and
/// with three micro-batches, in `make test-matrix`.
fn cases() -> Vec<Case> {
    let meshes = [[8, 1], [4, 2], [2, 4], [1, 8]];
    let case = |[data, shard]: [usize; 2], sharded, accumulation| Case {
        data,
        shard,
        sharded,
        accumulation,
    };
    if !is_matrix() {
        let chosen = [("optimizer", 3), ("gradients", 1), ("weights", 1), ("weights", 3)];
        let cases = meshes.into_iter().zip(chosen);
        return cases.map(|(mesh, (sharded, micro))| case(mesh, sharded, micro)).collect();
    }
    let of_mesh = |mesh| {
        [1, 3]
            .into_iter()
            .flat_map(move |micro| KINDS.into_iter().map(move |sharded| case(mesh, sharded, micro)))
    };
    meshes.into_iter().flat_map(of_mesh).collect()
}

/// Trains on one thread a rank, with several buckets.
fn train(layout: Layout, accumulation: usize, format: &str) -> Folder {
    let folder = Folder::new();
    let sequences = format!("batch.global_sequences={}", 8 * accumulation);
    let compute = format!("precision.compute={format}");
    let settings = [
        support::SEVERAL_BUCKETS,
        "batch.micro_sequences=1",
        "checkpoint.at_end=false",
        "telemetry.matmul_probe=0s",
        &sequences,
        &compute,
    ];
    let settings = settings.into_iter().flat_map(|setting| ["--set", setting]);
    let layout_flags = layout.flags();
    let mut flags = vec!["--threads", "1", "--steps", "10"];
    flags.extend(settings.chain(layout_flags.iter().map(String::as_str)));
    folder.train_on(layout.ranks(), &flags).expect(0);
    folder
}

/// Largest relative differences of what each step computes.
struct Tolerance {
    loss: f64,
    gradient_norm: f64,
}

const F32: Tolerance = Tolerance { loss: 1e-5, gradient_norm: 1e-5 };

/// Working weights are rounded: a sum in another order moves some to their other neighbours. The
/// norms of one rank alone differ by 1 % where its micro-batches have another size.
const BF16: Tolerance = Tolerance { loss: 1e-3, gradient_norm: 2e-2 };

/// Fails unless all losses and norms are those expected.
#[track_caller]
fn assert_close(found: &Folder, expected: &Folder, tolerance: &Tolerance, case: &str) {
    let steps = [found, expected].map(|folder| folder.steps(0));
    assert_eq!(steps.each_ref().map(Vec::len), [STEPS; 2], "{case}");
    for (found, expected) in steps[0].iter().zip(&steps[1]) {
        let Tolerance { loss, gradient_norm } = *tolerance;
        for (key, tolerance) in [("loss", loss), ("gradient_norm", gradient_norm)] {
            let [found, wanted] = [found, expected].map(|step| step.0[key].as_f64().unwrap());
            let difference = (found / wanted - 1.0).abs();
            let step = expected.step();
            assert!(difference < tolerance, "{case}, step {step}, {key}: {found}, not {wanted}");
        }
    }
}

/// Rows of the traffic of a record: dimension, ranks and operation.
fn traffic(record: &Value) -> Vec<String> {
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

/// Rows of the traffic that a layout should have, in the order of a step.
fn expected_traffic(layout: Layout) -> Vec<String> {
    let Layout { data, shard, sharded } = layout;
    let [world, data, shard] = [("world", data * shard), ("data", data), ("shard", shard)]
        .map(|(dimension, ranks)| move |operation| format!("{dimension} {ranks} {operation}"));
    let is_flat = layout.data == 1 || layout.shard == 1;
    match (is_flat, sharded) {
        (true, "none") => vec![world("all_reduce")],
        (true, _) => vec![world("reduce_scatter"), world("all_gather")],
        (false, "none") => {
            vec![shard("reduce_scatter"), data("all_reduce"), shard("all_gather")]
        }
        (false, _) => vec![
            shard("reduce_scatter"),
            data("reduce_scatter"),
            data("all_gather"),
            shard("all_gather"),
        ],
    }
}

/// Fails unless the record and the report describe the layout.
#[track_caller]
fn assert_described(folder: &Folder, layout: Layout) {
    let Layout { data, shard, sharded } = layout;
    let record = folder.record();
    assert_eq!(traffic(&record), expected_traffic(layout), "{layout}");
    let is_flat = data == 1 || shard == 1;
    for (rank, described) in record["ranks"].as_array().unwrap().iter().enumerate() {
        let place = json!({ "data": rank / shard, "shard": rank % shard });
        let expected = if is_flat { Value::Null } else { place };
        assert_eq!(described["mesh"], expected, "{layout}, rank {rank}");
    }
    assert_eq!(record["run"]["parallel"]["sharded"], sharded);
    if !is_flat {
        let in_report = format!("(data {data} x shard {shard})");
        let [of_shard, of_data] = [format!("shard {shard} |"), format!("data {data} |")];
        let report = run(&["report", &folder.text()]).expect(0);
        report.expect_stdout(&[&in_report, &of_shard, &of_data, "busbw"]);
    }
}

/// Sums of one micro-batch have the same order whatever is divided. Sharded gradients of several
/// are reduced after each of them, and not after all.
#[test]
fn every_layout_has_the_losses_of_one_rank() {
    let mut alone = HashMap::new();
    for Case { data, shard, sharded, accumulation } in cases() {
        let layout = Layout { data, shard, sharded };
        let case = format!("{layout}, {accumulation} micro-batches");
        let alone = alone
            .entry(accumulation)
            .or_insert_with(|| train(Layout::ONE_RANK, accumulation, "f32"));
        let [undivided, divided] =
            ["none", sharded].map(|sharded| Layout { data, shard, sharded }).map(|layout| {
                let folder = train(layout, accumulation, "f32");
                assert_close(&folder, alone, &F32, &case);
                assert_described(&folder, layout);
                folder
            });
        if accumulation == 1 || sharded == "optimizer" {
            assert_eq!(divided.result(), undivided.result(), "{case}");
        }
        assert_eq!(divided.record()["workload"]["id"], alone.record()["workload"]["id"]);
        let traffic = &alone.record()["collectives"]["traffic"];
        assert_eq!(traffic.as_array().map_or(0, Vec::len), 0, "one rank has none");
    }
}

#[test]
fn bf16_has_the_losses_of_one_rank() {
    let mut alone = HashMap::new();
    let one = [Case { data: 2, shard: 4, sharded: "weights", accumulation: 3 }];
    let all = if is_matrix() { cases() } else { one.into() };
    for Case { data, shard, sharded, accumulation } in all {
        let layout = Layout { data, shard, sharded };
        let alone = alone
            .entry(accumulation)
            .or_insert_with(|| train(Layout::ONE_RANK, accumulation, "bf16"));
        let folder = train(layout, accumulation, "bf16");
        assert_close(&folder, alone, &BF16, &format!("bf16 x {accumulation}, {layout}"));
    }
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
