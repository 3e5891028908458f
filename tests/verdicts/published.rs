//! A run beside published throughput, as a command: exit codes, and what is printed.

use std::path::Path;

use record::fixtures::comparable;
use record::machine::{ComputeCapability, DeviceProperties};
use record::{FlopsPerSecond, Record};
use serde_json::{Value, json};
use support::{Folder, run, text};
use verdict::published::Published;

const KEY: &str = "published:h100/llama3.1-8b/bf16";

/// Writes the record of a run of the published model on an H100 per rank.
fn write_run(folder: &Path, change: impl FnOnce(&mut Record)) -> String {
    let published = Published::find("h100/llama3.1-8b/bf16").unwrap();
    let mut record = comparable();
    record.workload.config["model"] = json!(published.shape);
    record.workload.config["precision"] = json!({"compute": "bf16"});
    for (ordinal, rank) in record.ranks.iter_mut().enumerate() {
        rank.device = Some(DeviceProperties {
            ordinal,
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            memory_bytes: 80 << 30,
            compute_capability: ComputeCapability { major: 9, minor: 0 },
            multiprocessors: 132,
            pci_bus_id: format!("0000:{ordinal:02}:00.0"),
        });
    }
    record.rank_flops_per_second = Some(FlopsPerSecond { causal: 5e14, full: 6e14 });
    (record.mfu_causal, record.mfu_full) = (Some(0.5), Some(0.6));
    change(&mut record);
    std::fs::create_dir_all(folder).unwrap();
    record.write(folder).unwrap();
    text(folder)
}

#[test]
fn the_same_work_is_printed_beside_published_figures_and_passes() {
    let folder = Folder::new();
    let path = write_run(&folder.sibling("h100"), |_| {});
    let page = run(&["compare", KEY, &path]).expect(0);
    page.expect_stdout(&["beside published:h100/", "MFU, attention full", "60.0%", "No verdict"]);
    let compared = run(&["compare", "--json", KEY, &path]).expect(0).stdout;
    let compared: Value = serde_json::from_str(&compared).unwrap();
    assert_eq!(compared["exit_code"], 0);
    let figure = &compared["rows"][0]["figures"][1];
    assert_eq!((&figure["name"], &figure["convention"]), (&json!("mfu"), &json!("full")));
    assert_eq!(figure["run"], 0.6, "the published figure counts attention in full: {figure}");
    assert_eq!(compared["rows"][1]["source"], "torchtitan, benchmarks/");
}

#[test]
fn other_work_is_not_comparable() {
    let folder = Folder::new();
    let smoke = text(&folder.sibling("smoke"));
    run(&["train", "--steps", "30", "--set", "telemetry.matmul_probe=0s", "--out", &smoke])
        .expect(0);
    run(&["compare", KEY, &smoke]).expect(12).expect_stderr(&[
        "expected a model of family = \"llama\" (found \"gpt\")",
        "expected products in bf16, found f32",
        "expected NVIDIA H100 80GB HBM3, found a CPU on rank 0",
    ]);
    let path = write_run(&folder.sibling("drill"), |record| {
        record.attempts[0].injected = vec!["stop@step=3".to_owned()];
    });
    run(&["compare", KEY, &path]).expect(12).expect_stderr(&["found --inject stop@step=3"]);
    let missing = text(&folder.sibling("missing"));
    run(&["compare", KEY, &missing]).expect(12);
}

#[test]
fn wrong_uses_are_named() {
    let folder = Folder::new();
    let path = write_run(&folder.sibling("h100"), |_| {});
    run(&["compare", "published:h100/llama3.1-8b", &path])
        .expect(2)
        .expect_stderr(&["expected one of", "\n  gb300/llama3.1-405b/nvfp4"]);
    for flags in [&["--gate", "step_ms=5%"][..], &["--threshold", "5%"], &["--per-rank"]] {
        let given = [&["compare"][..], flags, &[KEY, &path]].concat();
        run(&given).expect(2).expect_stderr(&[flags[0], "gives no verdict"]);
    }
    run(&["compare", &format!("{KEY},{path}"), &path])
        .expect(2)
        .expect_stderr(&["expected no other base"]);
    let two = write_run(&folder.sibling("runs").join("one"), |_| {});
    write_run(&folder.sibling("runs").join("two"), |_| {});
    let all = text(Path::new(&two).parent().unwrap());
    run(&["compare", KEY, &all]).expect(2).expect_stderr(&["expected one run, found 2"]);
}
