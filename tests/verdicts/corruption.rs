//! Silent data corruption: a fault that passes leaves no trace, one that stays names its rank.

use serde_json::{Value, json};
use support::{Folder, run};

/// Gradients are computed twice in every fifth step.
const OFTEN: [&str; 4] =
    ["--set", "sdc.recompute_every_steps=5", "--set", "telemetry.matmul_probe=0s"];

fn train(faults: &[&str]) -> (Folder, i32, Value) {
    let folder = Folder::new();
    let inject = faults.iter().flat_map(|fault| ["--inject", fault]);
    let flags: Vec<&str> = ["--steps", "12"].into_iter().chain(OFTEN).chain(inject).collect();
    let finished = folder.train_on(4, &flags);
    let record = folder.record();
    (folder, finished.code, record)
}

#[test]
fn a_run_repairs_faults_that_pass_and_ends_with_the_bits_of_an_undisturbed_one() {
    let (_, code, undisturbed) = train(&[]);
    assert_eq!(code, 0);
    let sdc = &undisturbed["sdc"];
    assert_eq!((&sdc["findings"], &sdc["unavailable"]), (&json!([]), &json!([])), "{sdc:#}");
    assert!(sdc["checks"].as_u64().unwrap() >= 12, "{sdc:#}");
    let faults = [
        "flip@step=5,rank=2,where=gradient",
        "flip@step=7,rank=0,where=reduction,bits=32",
        "flip@step=10,rank=3,where=input",
    ];
    let (folder, code, record) = train(&faults);
    assert_eq!((code, &record["status"]), (0, &json!("complete")));
    assert_eq!(record["fingerprint"], undisturbed["fingerprint"]);
    let findings = record["sdc"]["findings"].as_array().unwrap();
    let found: Vec<_> = findings
        .iter()
        .map(|found| [&found["step"], &found["rank"], &found["what"], &found["action"]])
        .collect();
    let expected = [
        [json!(5), json!(2), json!("gradients"), json!("repeat")],
        [json!(7), Value::Null, json!("reduction"), json!("repeat")],
        [json!(10), json!(3), json!("gradients"), json!("repeat")],
    ];
    assert_eq!(found, expected.each_ref().map(|found| found.each_ref()), "{findings:#?}");
    let report = run(&["report", &folder.text()]);
    assert!(report.stdout.contains(" comparisons, 3 findings\n"), "{report:?}");
}

#[test]
fn a_rank_that_computes_wrong_ends_the_run_which_is_void() {
    let (folder, code, record) = train(&["flip@step=3,rank=2,where=gradient,every=1"]);
    assert_eq!((code, &record["status"]), (4, &json!("void")));
    let reason = &record["reason"];
    assert_eq!((&reason["rank"], &reason["step"]), (&json!(2), &json!(5)), "{reason:#}");
    let found = &record["sdc"]["findings"][0];
    assert_eq!((&found["repeat"], &found["action"]), (&json!("persistent"), &json!("stop")));
    run(&["compare", &folder.text(), &folder.text()]).expect(12);
}
