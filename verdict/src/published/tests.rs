//! Tests of runs beside published figures.

use std::path::Path;

use record::fixtures::comparable;
use record::machine::{ComputeCapability, DeviceProperties};
use record::{Clocks, ExitCode, FlopsPerSecond, Rate, Record, Status};
use serde_json::json;

use super::*;
use crate::error::{Error, Result};

/// A run of a published model on two GPUs, at 10,000 tokens/s each.
fn run_of(published: &Published) -> Record {
    let mut record = comparable();
    record.workload.config["model"] = json!(published.shape);
    record.workload.config["precision"] = json!({"compute": published.precision});
    record.workload.config["batch"]["sequence_tokens"] = json!(8192);
    for (index, rank) in record.ranks.iter_mut().enumerate() {
        rank.device = Some(DeviceProperties {
            ordinal: index,
            name: published.driver_name.clone(),
            memory_bytes: 80 << 30,
            compute_capability: ComputeCapability { major: 9, minor: 0 },
            multiprocessors: 132,
            pci_bus_id: format!("0000:{index:02}:00.0"),
        });
    }
    let rate = Rate { total: 20_000.0, per_rank: 10_000.0 };
    record.tokens_per_second = Some(Clocks { step: rate, wall: rate });
    record.rank_flops_per_second = Some(FlopsPerSecond { causal: 515e12, full: 579e12 });
    (record.mfu_causal, record.mfu_full) = (Some(0.52), Some(0.585));
    record
}

fn h100() -> Published {
    Published::find("h100/llama3.1-8b/bf16").unwrap()
}

fn compare(published: &Published, record: &Record) -> Result<PublishedComparison> {
    PublishedComparison::of_record(published, record, Path::new("runs/a"))
}

#[test]
fn every_row_has_a_device_a_model_and_figures() {
    let all = Published::all();
    assert_eq!(all.iter().map(|published| published.rows.len()).sum::<usize>(), 27);
    for published in all {
        let Published { key, driver_name, shape, rows, .. } = &published;
        let peak = record::peaks::PEAKS.iter().any(|peak| peak.name == driver_name);
        assert!(peak, "{key}: a GPU that this program knows");
        assert!(shape.contains_key("family"), "{key}");
        assert_eq!(super::key(&format!("published:{key}")), Some(key.as_str()));
        for row in rows {
            assert_eq!(row.key(), *key);
            assert!(row.tokens_per_second > 0.0 && !row.source.is_empty(), "{row:?}");
            assert!(!(row.teraflops.is_some() && row.mfu.is_some()), "{row:?}: as published");
            assert!(row.mfu.is_none_or(|mfu| (0.0..1.0).contains(&mfu)), "{row:?}");
            let is_stated = row.source.contains("dgxc") || row.convention == Convention::NotStated;
            let is_inferred =
                row.note.as_ref().is_some_and(|note| note.starts_with("convention inferred"));
            assert_eq!(is_stated, !is_inferred, "{row:?}");
            if row.teraflops.is_none() && row.mfu.is_none() {
                assert_eq!(row.convention, Convention::NotStated, "{row:?}");
            }
        }
        let compared = compare(&published, &run_of(&published)).unwrap();
        assert_eq!(compared.rows.len(), rows.len(), "the same work is comparable");
    }
}

#[test]
fn figures_are_compared_in_the_convention_of_their_row() {
    let figure = |convention, name: &str| {
        let mut published = h100();
        let row = &mut published.rows[0];
        (row.convention, row.teraflops) = (convention, Some(600.0));
        let compared = compare(&published, &run_of(&published)).unwrap();
        let figures = &compared.rows[0].figures;
        figures.iter().find(|figure| figure.name == name).unwrap().clone()
    };
    assert_eq!(figure(Convention::Full, "mfu").run, Some(0.585));
    assert_eq!(figure(Convention::Full, "mfu").ratio, Some(0.585 / 0.625));
    assert_eq!(figure(Convention::Causal, "mfu").run, Some(0.52));
    assert_eq!(figure(Convention::Full, "model_flops_per_second").ratio, Some(579.0 / 600.0));
    assert_eq!(figure(Convention::Causal, "model_flops_per_second").ratio, Some(515.0 / 600.0));
    for name in ["mfu", "model_flops_per_second"] {
        let unknown = figure(Convention::NotStated, name);
        assert_eq!((unknown.run, unknown.ratio), (None, None), "{name}: not compared");
    }
    let tokens = figure(Convention::NotStated, "tokens_per_second");
    assert_eq!((tokens.run, tokens.convention), (Some(10_000.0), None));
}

#[test]
fn ranks_that_share_a_gpu_count_as_one_device() {
    let mut record = run_of(&h100());
    for rank in &mut record.ranks {
        rank.host = "node-a".to_owned();
        rank.device.as_mut().unwrap().pci_bus_id = "0000:00:00.0".to_owned();
    }
    let mut published = h100();
    published.rows[0].teraflops = Some(600.0);
    let compared = compare(&published, &record).unwrap();
    let figures = &compared.rows[0].figures;
    assert_eq!(figures[0].run, Some(20_000.0));
    assert_eq!(figures[1].run, Some(2.0 * 579e12));
}

#[test]
fn a_page_has_both_figures_their_ratio_and_what_differs() {
    let mut record = run_of(&h100());
    record.workload.config["batch"]["sequence_tokens"] = json!(4096);
    let page = compare(&h100(), &record).unwrap().to_string();
    for text in [
        "beside published:h100/llama3.1-8b/bf16\n",
        "NVIDIA dgxc-benchmarking, commit 741c886, v25.04, 2025:",
        "|            tokens/s |    10,682 |   10,000 | 0.936 |",
        "| MFU, attention full |     62.5% |    58.5% | 0.936 |",
        "  tokens of a sequence: 8,192 -> 4,096\n",
        "  devices: 8 -> 2\n",
        "torchtitan, benchmarks/, 2024-12:",
        "  power limit: 500 W -> not stated\n",
        "  note: sequence length of its configuration; an H100 with 96 GB of HBM2e\n",
        "No verdict: ",
    ] {
        assert!(page.contains(text), "{text:?} in\n{page}");
    }
    assert!(!page.contains("  device: ") && !page.contains("precision"), "{page}");
    for note in Published::all().iter().flat_map(|published| &published.rows) {
        let note = note.note.as_deref().unwrap_or_default();
        assert!("  note: ".len() + note.len() <= 80, "{note}");
    }
}

#[test]
fn a_run_far_below_a_published_figure_is_no_regression() {
    let mut record = run_of(&h100());
    let rate = Rate { total: 2.0, per_rank: 1.0 };
    record.tokens_per_second = Some(Clocks { step: rate, wall: rate });
    let compared = compare(&h100(), &record).unwrap();
    assert_eq!(compared.exit_code, 0);
    assert!(json!(compared)["rows"][0]["figures"][0]["ratio"].as_f64().unwrap() < 1e-3);
    assert_eq!(json!(compared).get("verdict"), None);
}

/// Returns the sentence that refuses a run.
fn refusal(change: impl FnOnce(&mut Record)) -> String {
    let mut record = run_of(&h100());
    change(&mut record);
    let error = compare(&h100(), &record).unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::NotComparable);
    let text = error.to_string();
    let begin = "not comparable: runs/a with published:h100/llama3.1-8b/bf16: ";
    text.strip_prefix(begin).unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[test]
fn other_work_is_refused_with_the_difference() {
    let text = refusal(|record| {
        record.workload.config["model"]["layers"] = json!(31);
        record.workload.config["model"]["key_value_heads"] = json!(null);
    });
    assert_eq!(text, "expected a model of key_value_heads = 8 (found 32), layers = 32 (found 31)");
    let text = refusal(|record| record.workload.config["model"]["tied"] = json!(true));
    assert_eq!(text, "expected a model of tied = false (found true)");
    let text = refusal(|record| record.workload.config["precision"]["compute"] = json!("f32"));
    assert_eq!(text, "expected products in bf16, found f32");
    let text = refusal(|record| {
        record.ranks[1].device.as_mut().unwrap().name = "NVIDIA H100 NVL".to_owned();
    });
    assert_eq!(text, "expected NVIDIA H100 80GB HBM3, found NVIDIA H100 NVL on rank 1");
    let text = refusal(|record| record.ranks[0].device = None);
    assert_eq!(text, "expected NVIDIA H100 80GB HBM3, found a CPU on rank 0");
    let text = refusal(|record| {
        record.workload.config = comparable().workload.config;
        record.ranks[0].device = None;
    });
    for part in ["layers = 32 (found 2)", "; expected products in bf16", "; expected NVIDIA H100"] {
        assert!(text.contains(part), "all differences: {text}");
    }
}

#[test]
fn runs_without_a_result_are_refused() {
    let text = refusal(|record| record.status = Status::Void);
    assert_eq!(text, "expected a complete run, found void");
    let text = refusal(|record| record.status = Status::Failed);
    assert_eq!(text, "expected a complete run, found failed");
    let text = refusal(|record| record.attempts[0].injected = vec!["stop@step=3".to_owned()]);
    assert_eq!(text, "expected a run without faults, found --inject stop@step=3");
    let text = refusal(|record| record.steps.as_mut().unwrap().measured = 19);
    assert!(text.starts_with("expected at least 20 measured steps, found 19"), "{text}");
}

#[test]
fn an_unknown_key_lists_all_keys() {
    let error = PublishedComparison::of("h100/llama3.1-8b", &[]).unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::Usage);
    let Error::Usage(text) = error else { panic!("{error:?}") };
    assert!(text.starts_with("published:h100/llama3.1-8b: expected one of\n  h100/"), "{text}");
    for published in Published::all() {
        assert!(text.lines().any(|line| line.trim() == published.key), "{text}");
    }
}
