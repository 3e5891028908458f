//! `--profile-step` tells where a step's time goes, and changes nothing else.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use serde_json::Value;
use support::{Folder, run};

/// Cells of the row with this name: calls, ms, share, GFLOP, and the rates.
fn row(table: &str, name: &str) -> Vec<String> {
    let line = table.lines().find(|line| line.trim_start().starts_with(&format!("{name} ")));
    let line = line.unwrap_or_else(|| panic!("no row {name:?} in\n{table}"));
    let line = line.trim_start().trim_start_matches(name).replace(" %", "%");
    line.split_whitespace().map(str::to_owned).collect()
}

fn number(cell: &str) -> f64 {
    if cell == "-" { 0.0 } else { cell.trim_end_matches('%').parse().unwrap() }
}

fn train(folder: &Folder, extra: &[&str]) -> support::Finished {
    let out = folder.text();
    run(&[&["train", "--steps", "4", "--out", &out], extra].concat())
}

#[test]
fn a_profiled_step_shows_every_op_and_all_flops_and_changes_no_loss() {
    let (plain, profiled) = (Folder::new(), Folder::new());
    assert_eq!(train(&plain, &[]).expect(0).stdout, "", "only a profile goes to stdout");
    let table = train(&profiled, &["--profile-step", "3"]).expect(0).stdout;
    assert_eq!(plain.losses(), profiled.losses());

    let mut matrices = 0.0;
    for role in ["attn_qkv", "attn_out", "mlp_up", "mlp_down", "head"] {
        for kind in ["forward", "dX", "dW"] {
            let cells = row(&table, &format!("{role} {kind}"));
            assert!(number(&cells[1]) > 0.0 && number(&cells[4]) > 0.0, "{cells:?}\n{table}");
            matrices += number(&cells[3]);
        }
    }
    for name in [
        "embedding forward",
        "embedding backward",
        "norm forward",
        "norm again",
        "norm backward",
        "attention forward",
        "attention backward",
        "cross-entropy forward",
        "cross-entropy backward",
        "attn_qkv db",
        "gradient norm",
        "AdamW",
    ] {
        let cells = row(&table, name);
        assert!(number(&cells[1]) > 0.0 && number(&cells[5]) > 0.0, "{cells:?}\n{table}");
    }
    let plan = run(&["plan", "--json"]).expect(0).stdout;
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let flops = |key: &str| plan[key].as_f64().unwrap();
    let tokens = profiled.steps(0)[2].0["tokens"].as_f64().unwrap();
    // Without attention: twice the causal count less the full one.
    let expected = 2.0 * flops("flops_per_token_causal") - flops("flops_per_token_full");
    let expected = expected * tokens / 1e9;
    assert!((matrices / expected - 1.0).abs() < 1e-3, "{matrices} of {expected}\n{table}");
    let (ops, rest) = (row(&table, "all ops"), row(&table, "everything else"));
    let shares = number(&ops[2]) + number(&rest[2]);
    assert!((shares - 100.0).abs() < 0.2, "{shares} %\n{table}");
}

#[cfg(feature = "mpi")]
#[test]
fn a_profile_of_two_ranks_is_told_by_one() {
    let folder = Folder::new();
    let arguments = ["train", "--steps", "2", "--profile-step", "2", "--out", &folder.text()];
    let told = support::finish(support::mpirun(2, &arguments)).expect(0).stdout;
    assert_eq!(told.matches("step 2 on rank 0: ").count(), 1, "{told}");
    assert_eq!(told.matches("all ops ").count(), 1, "{told}");
}

/// The request comes in step 2, so that step 3 is the last: it is saved first.
#[test]
fn a_profiled_step_that_a_stop_ends_is_told_as_well() {
    let folder = Folder::new();
    let stop = ["--profile-step", "3", "--inject", "stop@step=2,rank=0"];
    let stopped = train(&folder, &stop).expect(75);
    assert_eq!(folder.losses().len(), 3);
    assert!(stopped.stdout.starts_with("step 3 on rank 0: "), "{}", stopped.stdout);
    for name in ["head dW", "AdamW"] {
        let cells = row(&stopped.stdout, name);
        assert!(number(&cells[5]) > 0.0, "{cells:?}\n{}", stopped.stdout);
    }
    assert!(!stopped.stderr.contains("no profile"), "{}", stopped.stderr);
}

#[test]
fn a_profiled_step_that_never_came_is_missed_in_one_warning() {
    let missed = ["--profile-step", "4", "--log-format", "json"];
    let ends = [
        (&["--inject", "stop@step=2,rank=0"][..], 75, 3),
        (&["--target-loss", "100"], 0, 1), // any loss is below it
    ];
    for (end, code, last) in ends {
        let finished = train(&Folder::new(), &[&missed[..], end].concat()).expect(code);
        assert_eq!(finished.stdout, "");
        let warnings = finished.stderr.lines().filter(|line| line.contains("no profile"));
        let [warning] = warnings.collect::<Vec<_>>()[..] else { panic!("{}", finished.stderr) };
        let warning: Value = serde_json::from_str(warning).unwrap();
        let text = format!("--profile-step 4: no profile, the run ended after step {last}");
        assert_eq!(
            (&warning["level"], &warning["fields"]["message"]),
            (&"WARN".into(), &text.into())
        );
    }
}

#[test]
fn a_profiled_step_of_a_complete_run_is_noted() {
    let folder = Folder::new();
    train(&folder, &[]).expect(0);
    let again = train(&folder, &["--profile-step", "2"]).expect(0);
    let said = "step 2 was done before: there is no profile";
    assert!(again.stderr.contains(said), "{}", again.stderr);
}

#[test]
fn a_profile_that_cannot_be_is_refused_by_name() {
    let folder = Folder::new();
    let refused = train(&folder, &["--profile-step", "1", "--engine", "candle"]).expect(2);
    assert!(refused.stderr.contains("--profile-step with run.engine = candle"));
    assert!(refused.stderr.contains("--engine fused"), "{}", refused.stderr);
    for step in ["0", "5"] {
        let refused = train(&folder, &["--profile-step", step]).expect(2);
        assert!(refused.stderr.contains(&format!("--profile-step {step}")), "{}", refused.stderr);
    }
    let both = ["--set", "run.recompute=true", "--engine", "candle"];
    let refused = train(&folder, &both).expect(2);
    assert!(refused.stderr.contains("run.recompute"), "{}", refused.stderr);
    assert!(!folder.path().exists(), "refused before the folder is made");
}
