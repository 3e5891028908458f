//! Tests of the gap of a step, on records whose figures are round numbers.

use record::fixtures::comparable;
use record::phase::{ByPhase, Phase};
use record::{BucketRecord, ExitCode, OpRecord, ProfileRecord, Record, WeightShape};
use serde_json::{Value, json};

use super::*;

fn op(name: &str, phase: Phase, ms: f64, flops: f64, bytes: f64) -> OpRecord {
    let weight = (flops > 0.0).then_some(WeightShape { inputs: 384, outputs: 1536 });
    OpRecord { name: name.to_owned(), phase, weight, calls: 1, ms, flops, bytes }
}

/// A step of 100 ms on a machine with 1 TFLOP/s and 10 GB/s. Of the ops, `forward` takes twice its
/// products' time, `dW` works in caches at 71 %, AdamW is at 50 % of the memory rate.
fn profile() -> ProfileRecord {
    ProfileRecord {
        step: 5,
        phases_ns: Some(ByPhase {
            data: 1_000_000,
            forward: 25_000_000,
            backward: 42_000_000,
            comm_exposed: 8_000_000,
            optimizer: 20_000_000,
            checkpoint: 2_000_000,
            eval: 0,
            other: 2_000_000,
        }),
        ops: vec![
            op("mlp_up forward", Phase::Forward, 20.0, 10e9, 1e7),
            op("norm forward", Phase::Forward, 4.0, 0.0, 1e8),
            op("mlp_up dW", Phase::Backward, 40.0, 28.4e9, 1e9),
            op("AdamW", Phase::Optimizer, 20.0, 0.0, 1e8),
        ],
        matmul_flops_per_second: Some(1e12),
        memory_bytes_per_second: Some(1e10),
        incomplete: None,
    }
}

/// A run on two ranks with a profile, which reduced one bucket of 100 MB and one of 10 MB a step.
fn run() -> Record {
    let mut record = comparable();
    record.profile = Some(profile());
    let bucket = |bytes, mean_ms, operations| BucketRecord {
        operation: "all_reduce".to_owned(),
        operations,
        bytes,
        mean_ms,
        least_ms: mean_ms,
        hidden_ms: 0.0,
        exposed_ms: 0.0,
        algbw_bytes_per_second: 0.0,
        busbw_bytes_per_second: 0.0,
    };
    let attempt = record.attempts.last_mut().unwrap();
    (attempt.resumed_after_step, attempt.last_step) = (Some(6), 12); // 4 of 6 steps count
    record.ranks[0].buckets = vec![bucket(100_000_000, 80.0, 4), bucket(10_000_000, 5.0, 4)];
    record
}

/// The output of `yardstick comm` between ranks of the run, with a latency of 1 ms and 2.5 GB/s.
fn comm_output(record: &Record) -> Value {
    let row = |bytes: f64| {
        let times = json!({"time_us": 1e3 + bytes / 2.5e3, "wrong": 0});
        json!({"operation": "all_reduce", "bytes": bytes as u64, "in_place": times})
    };
    json!({
        "world": 2,
        "hosts": record.ranks.iter().map(|rank| &rank.host).collect::<Vec<_>>(),
        "device": "cpu",
        "backend": "mpi",
        "rows": [row(4096.0), row(1e6), row(1e8)],
    })
}

fn links(output: &Value) -> MeasuredLinks {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("comm.json");
    std::fs::write(&path, output.to_string()).unwrap();
    MeasuredLinks::read(&path).unwrap()
}

fn row<'a>(gap: &'a Gap, name: &str) -> &'a GapRow {
    gap.rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("{name}: {gap:#?}"))
}

fn near(found: Option<f64>, expected: f64) -> bool {
    found.is_some_and(|found| (found - expected).abs() < 1e-6)
}

#[test]
fn rows_add_up_to_the_step() {
    let gap = Gap::of(&run(), None).unwrap();
    assert!(near(Some(gap.step_ms), 100.0) && near(Some(gap.rows_ms), 100.0), "{gap:#?}");
    let of = |phase| gap.rows.iter().filter(|row| row.phase == phase).map(|row| row.ms).sum();
    let phases = profile().phases_ns.unwrap();
    for phase in Phase::ALL {
        assert!(near(Some(of(phase)), phases.get(phase) as f64 / 1e6), "{phase:?}");
    }
}

#[test]
fn an_op_is_bounded_by_its_products_or_its_bytes_whichever_takes_longer() {
    let gap = Gap::of(&run(), None).unwrap();
    let bound = |name| (row(&gap, name).bound_by, row(&gap, name).bound_ms);
    assert_eq!(bound("mlp_up forward"), (Some(BoundBy::Matmul), Some(10.0)));
    assert_eq!(bound("AdamW"), (Some(BoundBy::Memory), Some(10.0)));
    let in_caches = row(&gap, "mlp_up dW");
    assert_eq!(in_caches.bound_by, Some(BoundBy::Matmul), "100 ms of memory in 40 ms");
    assert!(near(in_caches.bound_ms, 28.4) && near(in_caches.gap_ms, 11.6), "{in_caches:?}");
    assert_eq!(bound("norm forward"), (Some(BoundBy::Caches), Some(4.0)), "10 ms of memory in 4");
    let mut memory_bound = run();
    memory_bound.profile.as_mut().unwrap().ops[0].bytes = 1.5e8;
    let gap = Gap::of(&memory_bound, None).unwrap();
    let found = row(&gap, "mlp_up forward");
    assert_eq!((found.bound_by, found.bound_ms), (Some(BoundBy::Memory), Some(15.0)));
}

#[test]
fn what_a_step_could_do_without_is_a_gap_as_a_whole() {
    let gap = Gap::of(&run(), None).unwrap();
    for (name, ms) in [("waiting for data", 1.0), ("saves", 2.0), ("in no phase", 2.0)] {
        assert_eq!((row(&gap, name).ms, row(&gap, name).gap_ms), (ms, Some(ms)), "{name}");
    }
    let between = gap.rows.iter().filter(|row| row.name == "between ops");
    let between: Vec<_> = between.map(|row| (row.phase, row.gap_ms)).collect();
    let expected =
        [(Phase::Backward, Some(2.0)), (Phase::Forward, Some(1.0)), (Phase::Optimizer, Some(0.0))];
    assert_eq!(between, expected, "the largest first");
}

#[test]
fn exposed_communication_is_bounded_by_links_less_backward() {
    let record = run();
    let gap = Gap::of(&record, Some(&links(&comm_output(&record)))).unwrap();
    // 1 ms + 40 ms and 1 ms + 4 ms, of which backward hides 42 ms.
    let bounds: Vec<f64> = gap.buckets.iter().map(|bucket| bucket.bound_ms).collect();
    assert!(near(Some(bounds[0]), 41.0) && near(Some(bounds[1]), 5.0), "{bounds:?}");
    assert_eq!(gap.buckets[0].operations_per_step, 1.0);
    let waiting = row(&gap, "waiting for ranks");
    assert_eq!(waiting.bound_by, Some(BoundBy::Links));
    assert!(near(waiting.bound_ms, 4.0) && near(waiting.gap_ms, 4.0), "{waiting:?}");
    let mut hidden = record.clone();
    hidden.profile.as_mut().unwrap().phases_ns.as_mut().unwrap().backward = 60_000_000;
    let gap = Gap::of(&hidden, Some(&links(&comm_output(&record)))).unwrap();
    assert!(near(row(&gap, "waiting for ranks").bound_ms, 0.0), "backward hides all of it");
    let mut brief = record.clone();
    brief.profile.as_mut().unwrap().phases_ns.as_mut().unwrap().comm_exposed = 3_000_000;
    let gap = Gap::of(&brief, Some(&links(&comm_output(&record)))).unwrap();
    assert!(near(row(&gap, "waiting for ranks").bound_ms, 3.0), "at most what was exposed");
    let mut gathered = record;
    gathered.ranks[0].buckets[1].operation = "all_gather".to_owned();
    let output = comm_output(&gathered).to_string();
    let gathers = output.replace("all_reduce", "all_gather");
    let [mut output, gathers]: [Value; 2] =
        [output, gathers].map(|text| serde_json::from_str(&text).unwrap());
    let more = gathers["rows"].as_array().unwrap().clone();
    output["rows"].as_array_mut().unwrap().extend(more);
    let gap = Gap::of(&gathered, Some(&links(&output))).unwrap();
    assert!(near(row(&gap, "waiting for ranks").bound_ms, 0.0), "forward hides gathers");
}

#[test]
fn a_single_rank_waits_for_nobody() {
    let mut record = run();
    record.ranks.truncate(1);
    let gap = Gap::of(&record, None).unwrap();
    assert_eq!(row(&gap, "waiting for ranks").gap_ms, Some(8.0));
    assert!(near(gap.gap_ms, 100.0 - 10.0 - 4.0 - 28.4 - 10.0), "{gap:#?}");
    assert!(near(gap.bound_ms, 52.4), "{gap:#?}");
}

/// Returns the reason of a row whose bound is `null`.
fn reason(gap: &Gap, name: &str) -> String {
    let row = row(gap, name);
    assert_eq!((row.bound_ms, row.gap_ms, row.bound_by), (None, None, None), "{row:?}");
    assert_eq!((gap.bound_ms, gap.gap_ms), (None, None), "a sum of unknown figures is unknown");
    row.reason.clone().unwrap()
}

fn without(change: impl FnOnce(&mut ProfileRecord)) -> Gap {
    let mut record = run();
    record.ranks.truncate(1);
    change(record.profile.as_mut().unwrap());
    Gap::of(&record, None).unwrap()
}

#[test]
fn a_rate_that_was_not_measured_is_null_with_the_reason() {
    let gap = without(|profile| profile.matmul_flops_per_second = None);
    assert_eq!(reason(&gap, "mlp_up dW"), "the matmul rate was not measured");
    assert_eq!(row(&gap, "AdamW").gap_ms, Some(10.0), "which needs none");
    let gap = without(|profile| profile.memory_bytes_per_second = None);
    assert_eq!(reason(&gap, "AdamW"), "the memory rate was not measured");
    let gap = without(|profile| profile.incomplete = Some("no event".to_owned()));
    assert_eq!(reason(&gap, "AdamW"), "times of ops are missing: no event");
}

#[test]
fn a_probe_that_an_op_exceeds_was_disturbed() {
    let gap = without(|profile| profile.ops[0].flops = 20e9 * 1.06);
    let text = "the probe of the matmul rate was disturbed: mlp_up forward ran at 106 % of it";
    assert_eq!(reason(&gap, "mlp_up dW"), text);
    let gap = without(|profile| profile.ops[0].flops = 20e9 * 1.04);
    assert!(near(row(&gap, "mlp_up forward").gap_ms, 0.0), "within the accuracy of the probe");
    let large = |profile: &mut ProfileRecord| {
        profile.ops[3] = op("AdamW", Phase::Optimizer, 20.0, 0.0, 3e8);
    };
    let text = "the probe of the memory rate was disturbed: AdamW ran at 150 % of it";
    assert_eq!(reason(&without(large), "AdamW"), text);
    let in_caches = without(|profile| {
        large(profile);
        profile.ops[3].calls = 2;
    });
    assert_eq!(row(&in_caches, "AdamW").bound_by, Some(BoundBy::Caches), "150 MB a call");
}

#[test]
fn ops_that_take_longer_than_their_phases_explain_nothing() {
    let gap = without(|profile| profile.ops[2].ms = 44.0);
    let text = "the ops take 2.00 ms more than their phases: their times were disturbed";
    assert_eq!(reason(&gap, "mlp_up forward"), text);
    assert_eq!(reason(&gap, "saves"), text);
    let gap = without(|profile| profile.ops[2].ms = 42.9);
    assert_eq!(row(&gap, "saves").gap_ms, Some(2.0), "within 1 % of the step");
}

#[test]
fn links_that_were_not_measured_between_the_ranks_are_no_bound() {
    let record = run();
    let waiting = |output: &Value| {
        let gap = Gap::of(&record, Some(&links(output))).unwrap();
        reason(&gap, "waiting for ranks")
    };
    let gap = Gap::of(&record, None).unwrap();
    assert!(reason(&gap, "waiting for ranks").contains("--comm FILE"));
    let mut other = comm_output(&record);
    other["hosts"] = json!(["node-x", "node-y"]);
    assert!(waiting(&other).contains("measured between ranks on node-x, node-y, and the run"));
    let mut other = comm_output(&record);
    other["backend"] = json!("nccl");
    assert!(waiting(&other).contains("by nccl on cpu, and the run communicated by mpi on cpu"));
    let mut slow = record.clone();
    slow.ranks[0].buckets[0].mean_ms = 39.0;
    let gap = Gap::of(&slow, Some(&links(&comm_output(&record)))).unwrap();
    let text = "the measurement of links was disturbed: all_reduce of 100 MB took 39.00 ms in \
                training, and 41.00 alone";
    assert_eq!(reason(&gap, "waiting for ranks"), text);
    let mut other = comm_output(&record);
    other["rows"].as_array_mut().unwrap().truncate(1);
    assert!(waiting(&other).contains("has 1 size of all_reduce"));
    let mut other = comm_output(&record);
    for row in other["rows"].as_array_mut().unwrap() {
        row["in_place"]["time_us"] = json!(1e9 / row["bytes"].as_f64().unwrap());
    }
    assert!(waiting(&other).contains("do not grow with the size"), "{}", waiting(&other));
}

#[test]
fn a_page_has_at_most_ten_rows_the_largest_gap_first() {
    let record = run();
    let page = Gap::of(&record, Some(&links(&comm_output(&record)))).unwrap().to_string();
    let lines: Vec<&str> = page.lines().collect();
    assert_eq!(
        lines[0],
        "smoke (0123456789ab), step 5 on rank 0: 100.00 ms = 56.40 by measured rates + 43.60 gap"
    );
    let rows = [
        "    backward     11.60 of     40.00 ms: mlp_up dW, 384x1536, at 71 % of the matmul rate",
        "     forward     10.00 of     20.00 ms: mlp_up forward, 384x1536, at 50 % of the matmul \
         rate",
        "   optimizer     10.00 of     20.00 ms: AdamW, at 50 % of the memory rate",
    ];
    assert_eq!(lines[1..4], rows);
    assert!(lines.last().unwrap().contains("smaller gaps"), "{page}");
    let mut many = run();
    let ops = &mut many.profile.as_mut().unwrap().ops;
    *ops = (0..30).map(|_| op("part", Phase::Backward, 1.0, 0.5e9, 1e6)).collect();
    let page = Gap::of(&many, None).unwrap().to_string();
    let rows = page.lines().filter(|line| line.contains(" ms: "));
    assert_eq!(rows.count(), 10, "{page}");
    assert!(page.contains("\nnull: links were not measured: --comm FILE"), "{page}");
    let waiting = page.lines().find(|line| line.contains("waiting for ranks")).unwrap();
    assert!(waiting.contains("null of      8.00 ms"), "{page}");
}

#[test]
fn a_record_without_a_profile_is_a_wrong_use() {
    let mut record = run();
    record.profile.as_mut().unwrap().phases_ns = None;
    let error = Gap::of(&record, None).unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::Usage);
    assert!(error.to_string().contains("no times of phases"), "{error}");
    record.profile = None;
    let error = Gap::of(&record, None).unwrap_err();
    assert!(error.to_string().contains("hint: train with --profile-step N"), "{error}");
}
