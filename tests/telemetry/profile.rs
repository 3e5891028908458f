//! `--profile-step` prints the time of each op of a step, and does not change the run.

use serde_json::Value;
use support::{Finished, Folder, profile_row, run};

fn number(cell: &str) -> f64 {
    if cell == "-" { 0.0 } else { cell.trim_end_matches('%').parse().unwrap() }
}

fn train(folder: &Folder, flags: &[&str]) -> Finished {
    folder.train(&[&["--steps", "4"], flags].concat())
}

#[test]
fn a_profile_has_every_op_and_all_flops_and_changes_no_loss() {
    let plain = Folder::new();
    let profiled = Folder::new();
    assert_eq!(train(&plain, &[]).expect(0).stdout, "", "only a profile is printed to stdout");
    let table = train(&profiled, &["--profile-step", "3"]).expect(0).stdout;
    assert_eq!(plain.losses(), profiled.losses());

    let mut matrices = 0.0;
    for role in ["attn_qkv", "attn_out", "mlp_up", "mlp_down", "head"] {
        for kind in ["forward", "dX", "dW"] {
            let cells = profile_row(&table, &format!("{role} {kind}"));
            assert!(number(&cells[1]) > 0.0 && number(&cells[4]) > 0.0, "{cells:?}\n{table}");
            matrices += number(&cells[3]);
        }
    }
    for name in [
        "embedding forward",
        "embedding backward",
        "norm forward",
        "norm recompute",
        "norm backward",
        "attention forward",
        "attention backward",
        "cross-entropy forward",
        "cross-entropy backward",
        "attn_qkv db",
        "gradient norm",
        "AdamW",
    ] {
        let cells = profile_row(&table, name);
        assert!(number(&cells[1]) > 0.0 && number(&cells[5]) > 0.0, "{cells:?}\n{table}");
    }
    let plan = run(&["plan", "--json"]).expect(0).stdout;
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let flops = |key: &str| plan[key].as_f64().unwrap();
    let tokens = profiled.steps(0)[2].0["tokens"].as_f64().unwrap();
    // FLOPs without attention: twice the causal count minus the full one.
    let expected = 2.0 * flops("flops_per_token_causal") - flops("flops_per_token_full");
    let expected = expected * tokens / 1e9;
    assert!((matrices / expected - 1.0).abs() < 1e-3, "{matrices} of {expected}\n{table}");
    let ops = profile_row(&table, "all ops");
    let rest = profile_row(&table, "everything else");
    let shares = number(&ops[2]) + number(&rest[2]);
    assert!((shares - 100.0).abs() < 0.2, "{shares} %\n{table}");
}

#[cfg(feature = "mpi")]
#[test]
fn a_profile_on_two_ranks_is_printed_once() {
    let flags = ["--steps", "2", "--profile-step", "2"];
    let stdout = Folder::new().train_on(2, &flags).expect(0).stdout;
    assert_eq!(stdout.matches("step 2 on rank 0: ").count(), 1, "{stdout}");
    assert_eq!(stdout.matches("all ops ").count(), 1, "{stdout}");
}

/// The stop is requested in step 3, which is the last, and its save is before the profile.
#[test]
fn the_profile_of_the_last_step_before_a_stop_is_printed() {
    let folder = Folder::new();
    let stop = ["--profile-step", "3", "--inject", "stop@step=3,rank=0"];
    let stopped = train(&folder, &stop).expect(75);
    assert_eq!(folder.losses().len(), 3);
    assert!(stopped.stdout.starts_with("step 3 on rank 0: "), "{}", stopped.stdout);
    for name in ["head dW", "AdamW"] {
        let cells = profile_row(&stopped.stdout, name);
        assert!(number(&cells[5]) > 0.0, "{cells:?}\n{}", stopped.stdout);
    }
    assert!(!stopped.stderr.contains("no profile"), "{}", stopped.stderr);
}

#[test]
fn a_profiled_step_that_is_not_reached_is_one_warning() {
    let profile = ["--profile-step", "4", "--log-format", "json"];
    let ends = [
        (&["--inject", "stop@step=2,rank=0"][..], 75, 2),
        (&["--target-loss", "100"], 0, 1), // any loss is below it
    ];
    for (end, code, last) in ends {
        let finished = train(&Folder::new(), &[&profile[..], end].concat()).expect(code);
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
fn a_profile_of_a_complete_run_is_a_note() {
    let folder = Folder::new();
    train(&folder, &[]).expect(0);
    let note = "--profile-step: no effect, step 2 was completed before";
    train(&folder, &["--profile-step", "2"]).expect(0).expect_stderr(&[note]);
}

#[test]
fn a_profile_that_is_not_possible_is_refused() {
    let folder = Folder::new();
    let candle = ["--profile-step", "1", "--engine", "candle"];
    let message = ["--profile-step with run.engine = candle", "--engine fused"];
    train(&folder, &candle).expect(2).expect_stderr(&message);
    for step in ["0", "5"] {
        let message = format!("--profile-step {step}");
        train(&folder, &["--profile-step", step]).expect(2).expect_stderr(&[&message]);
    }
    let recompute = ["--set", "run.recompute=full", "--engine", "candle"];
    train(&folder, &recompute).expect(2).expect_stderr(&["run.recompute"]);
    assert!(!folder.path().exists(), "refused before the folder is created");
}
