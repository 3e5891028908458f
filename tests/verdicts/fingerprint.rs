//! Golden losses: runs whose computation differs are void.

use models::presets;
use models::workload::BatchConfig;
use record::Compute;
use record::golden::{Found, Golden, GoldenKey};
use serde_json::Value;
use support::{Folder, SEVERAL_BUCKETS, run, text};

#[test]
fn a_run_compares_its_losses_with_golden_ones() {
    let folder = Folder::new();
    folder.train(&["--steps", "10"]).expect(0);
    let record = folder.record();
    let golden = &record["fingerprint"]["golden"];
    assert_eq!(golden["compared"], 4, "{golden}");
    assert!(golden["missed_step"].is_null(), "{golden}");
    let worst = golden["worst_nats"].as_f64().unwrap();
    assert!(worst <= golden["tolerance_nats"].as_f64().unwrap() / 10.0, "{golden}");
    let checked = run(&["fingerprint", "check", &folder.text()]);
    assert!(checked.stdout.contains(": right: 4 losses compared"), "{checked:?}");
    checked.expect(0);
}

/// The batch of larger presets is that of the page about golden losses.
#[test]
fn presets_have_golden_losses() {
    for name in ["smoke", "llama-smoke", "gpt2-124m", "smollm-135m"] {
        for compute in [Compute::F32, Compute::Bf16] {
            let mut workload = presets::load(name).unwrap();
            workload.precision.compute = compute;
            if !name.ends_with("smoke") {
                workload.batch = BatchConfig {
                    micro_sequences: 1,
                    sequence_tokens: 256,
                    global_sequences: Some(4),
                    sequences_per_rank: None,
                };
            }
            let batch = &workload.batch;
            let tokens = batch.global_sequences(1) * batch.sequence_tokens;
            let key = GoldenKey {
                workload_id: &workload.id(None),
                device: "cpu",
                tokens_per_step: tokens as u64,
            };
            let found = Golden::find(None, name, key).unwrap();
            assert!(matches!(found, Found::Golden(_)), "{name} in {compute}: {found:?}");
        }
    }
}

#[test]
fn a_loss_that_is_not_the_golden_one_voids_the_run() {
    let trusted = Folder::new();
    let other = ["--set", "optimizer.weight_decay=0.05", "--steps", "5"];
    trusted.train(&other).expect(0);
    let fingerprint = &trusted.record()["fingerprint"];
    assert!(fingerprint["golden"].is_null(), "none for this workload");
    let differing = fingerprint["not_comparable"].as_str().unwrap();
    assert!(differing.starts_with("workload id "), "{differing}");
    let unknown = run(&["fingerprint", "check", &trusted.text()]);
    assert!(unknown.stderr.contains(&format!("not comparable: {differing}")), "{unknown:?}");
    unknown.expect(12);
    let made = run(&["fingerprint", "make", &trusted.text()]);
    assert_eq!(made.code, 0, "{made:?}");
    let golden = trusted.sibling("golden.toml");
    let check = |file: &str| {
        std::fs::write(&golden, file).unwrap();
        run(&["fingerprint", "check", &trusted.text(), "--golden", &text(&golden)])
    };
    let checked = check(&made.stdout);
    assert!(checked.stdout.trim_end().ends_with("; same bits"), "{checked:?}");
    checked.expect(0);
    let of_other_batch = check(&made.stdout.replace("step = 2048", "step = 4096")).expect(12);
    assert!(of_other_batch.stderr.contains(": tokens per step 2048 (golden: 4096)"));
    let checked = check(&made.stdout.replace("\"1 x 1\"", "\"1 x 2\"")).expect(0);
    assert!(checked.stdout.contains("bits not comparable: topology 1 x 1 (golden: 1 x 2)"));
    let exact = made.stdout.rsplit_once("losses = [5.").unwrap();
    let checked = check(&[exact.0, "losses = [6.", exact.1].concat()).expect(0);
    assert!(checked.stdout.contains("; other bits, although"), "{checked:?}");
    // The loss of the second step is about 5.54.
    let wrong = made.stdout.replacen(", 5.5", ", 5.4", 1);
    let checked = check(&wrong);
    assert!(checked.stdout.contains(": wrong at step 2: 2 losses compared"), "{checked:?}");
    checked.expect(4);
    let folder = Folder::new();
    let set = format!("telemetry.golden={:?}", text(&golden));
    let finished = folder.train_on(2, &[&other[..], &["--set", &set]].concat());
    assert!(finished.stderr.contains("the loss of step 2 is 5.5"), "{finished:?}");
    finished.expect(4);
    let record = folder.record();
    assert_eq!((&record["status"], &record["exit_code"]), (&"void".into(), &4.into()));
    let golden = &record["fingerprint"]["golden"];
    assert_eq!((&golden["missed_step"], &golden["same_bits"]), (&2.into(), &Value::Null));
    assert_eq!(golden["other_order"], "topology 1 x 2 (golden: 1 x 1)");
    assert_eq!(record["reason"]["step"], 2);
    let compared = run(&["compare", &trusted.text(), &folder.text()]);
    compared.expect(12);
    check("golden = 1").expect(2);
}

#[test]
fn a_corrupted_weight_is_found_on_its_rank() {
    let folder = Folder::new();
    let finished = folder.train_on(2, &["--steps", "6", "--inject", "corrupt@step=5,rank=1"]);
    finished.expect(4);
    let reason = &folder.record()["reason"];
    assert_eq!((&reason["rank"], &reason["step"]), (&1.into(), &5.into()), "{reason:#}");
}

/// Both ranks compute with the weight, so neither is known to be the one that has it.
#[test]
fn a_corrupted_sharded_weight_is_found_and_blamed_on_no_other_rank() {
    for rank in [0, 1] {
        let folder = Folder::new();
        let fault = format!("corrupt@step=5,rank={rank}");
        let shards = ["--set", "parallel.sharded=weights", "--set", SEVERAL_BUCKETS];
        let flags = [&["--steps", "6", "--inject", &fault][..], &shards].concat();
        folder.train_on(2, &flags).expect(4);
        let reason = &folder.record()["reason"];
        assert_eq!((&reason["rank"], &reason["step"]), (&Value::Null, &5.into()), "{reason:#}");
    }
}
