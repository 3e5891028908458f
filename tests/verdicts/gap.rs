//! `report --gap` explains the profiled step of a real run.

use serde_json::Value;
use support::{Folder, run, text};

/// Shares of a step in which measured times may differ from their sum.
const DIFFERENCE_MAX: f64 = 0.01;

/// Returns the gap of a run as JSON, after checks of what holds for every run.
fn gap(arguments: &[&str]) -> Value {
    let printed = run(&[&["report", "--gap", "--json"], arguments].concat()).expect(0).stdout;
    let gap: Value = serde_json::from_str(&printed).unwrap();
    let step_ms = gap["step_ms"].as_f64().unwrap();
    let rows = gap["rows"].as_array().unwrap();
    let rows_ms: f64 = rows.iter().map(|row| row["ms"].as_f64().unwrap()).sum();
    assert!(step_ms > 0.0 && (rows_ms / step_ms - 1.0).abs() <= DIFFERENCE_MAX, "{gap:#}");
    for row in rows {
        let is_known = row["gap_ms"].is_number();
        assert_eq!(is_known, row["bound_ms"].is_number(), "{row}");
        assert_eq!(is_known, row["reason"].is_null(), "null has a reason: {row}");
    }
    gap
}

fn names(gap: &Value) -> Vec<&str> {
    gap["rows"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect()
}

#[test]
fn the_rows_of_a_profiled_step_add_up_to_its_time() {
    let folder = Folder::new();
    folder.train(&["--steps", "6", "--profile-step", "4"]).expect(0);
    let path = text(&folder.path());
    let gap = gap(&[&path]);
    let step = &folder.steps(0)[3].0;
    let wall_ms = step["wall_ns"].as_f64().unwrap() / 1e6;
    assert_eq!((&gap["step"], gap["step_ms"].as_f64()), (&Value::from(4), Some(wall_ms)));
    let found = names(&gap);
    for name in ["mlp_up dW", "head forward", "AdamW", "between ops", "waiting for data", "saves"] {
        assert!(found.contains(&name), "{name}: {found:?}");
    }
    let weight = |name: &str| {
        let row = &gap["rows"][found.iter().position(|it| *it == name).unwrap()];
        row["weight"].clone()
    };
    assert_eq!(weight("mlp_up dW"), serde_json::json!({"inputs": 128, "outputs": 512}));
    assert_eq!(weight("norm forward"), Value::Null);
    let page = run(&["report", "--gap", &path]).expect(0).stdout;
    let rows = page.lines().filter(|line| line.contains(" ms: "));
    assert!((1..=10).contains(&rows.count()), "{page}");
    assert!(page.starts_with("smoke (") && page.contains(", step 4 on rank 0: "), "{page}");
}

#[cfg(feature = "mpi")]
#[test]
fn communication_is_explained_by_links_between_the_same_ranks() {
    let folder = Folder::new();
    folder.train_on(2, &["--steps", "8", "--profile-step", "8"]).expect(0);
    let path = text(&folder.path());
    let waiting = |gap: &Value| {
        let index = names(gap).iter().position(|name| *name == "waiting for ranks");
        gap["rows"][index.unwrap()].clone()
    };
    let unknown = waiting(&gap(&[&path]));
    let reason = unknown["reason"].as_str().unwrap();
    assert!(reason.starts_with("links were not measured: --comm FILE"), "{reason}");
    let comm =
        ["comm", "--json", "--operation", "all-reduce", "--max-bytes", "4M", "--iterations", "20"];
    let measured = support::finish(support::mpirun(2, &comm)).expect(0).stdout;
    let file = folder.sibling("comm.json");
    std::fs::write(&file, measured).unwrap();
    let explained = gap(&["--comm", &text(&file), &path]);
    // On a machine with other load, training may be faster than the measurement of links.
    let waiting = waiting(&explained);
    let is_disturbed = |text: &str| text.contains("measurement of links was disturbed");
    match waiting["reason"].as_str() {
        None => assert_eq!(waiting["bound_by"], "links", "{explained:#}"),
        Some(reason) => assert!(is_disturbed(reason) || reason.contains("ops take"), "{reason}"),
    }
}

#[test]
fn wrong_uses_are_named() {
    let folder = Folder::new();
    folder.train(&["--steps", "2"]).expect(0);
    let path = text(&folder.path());
    run(&["report", "--gap", &path]).expect(2).expect_stderr(&[
        "the record has no profile of a step",
        "hint: train with --profile-step N",
    ]);
    run(&["report", "--gap", "--markdown", &path]).expect(2);
    run(&["report", "--comm", &path, &path]).expect(2).expect_stderr(&["--gap"]);
    let record = text(&folder.path().join("record.json"));
    run(&["report", "--gap", "--comm", &record, &path])
        .expect(2)
        .expect_stderr(&["expected the output of `yardstick comm --json`"]);
    run(&["report", "--gap", &path, &path]).expect(2).expect_stderr(&["found 2"]);
}
