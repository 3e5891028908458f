//! The report of a fixed record, against golden files, and of runs in every state.

use std::time::Duration;

use super::*;
use record::fixtures::write_steps;
use record::hardware::{HardwareSummary, Spread};
use record::machine::{ComputeCapability, DeviceProperties};
use record::{
    Anomaly, DimensionTraffic, MeshPlace, RankRecord, Reason, TargetRecord, fixtures, steps_path,
};

/// Rewrite with `YARDSTICK_UPDATE_GOLDEN=1 cargo test --profile testing --workspace report`.
fn assert_golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report/golden").join(name);
    if std::env::var_os("YARDSTICK_UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, golden, "{name} differs; new text:\n{text}");
}

#[test]
fn the_report_of_a_finished_run() {
    let mut record = fixtures::finished();
    let text = "kernel 0 was slow".to_owned();
    record.anomalies.push(Anomaly { step: Some(7), rank: Some(1), text });
    let reached = TargetRecord { nats: 5.1, held_out: false, step: Some(8), seconds: Some(0.8) };
    record.target_loss = Some(reached);
    assert_golden("finished.txt", &ReportData::new(record).to_string());
}

#[test]
fn the_report_of_a_failed_run() {
    let mut record = fixtures::finished();
    record.status = Status::Failed;
    record.exit_code = Some(5);
    record.reason = Some(Reason {
        rank: Some(1),
        host: Some("node-b".to_owned()),
        step: Some(13),
        phase: Some(record::phase::Phase::CommExposed),
        text: "rank 1 on node-b did not answer within 120 s; expected its part of bucket 3"
            .to_owned(),
    });
    record.mfu_measured = None;
    record.checkpoints = None;
    record.collectives = None;
    assert_golden("failed.txt", &ReportData::new(record).to_string());
}

/// Ranks in two dimensions, with what the fixture's two ranks would send over them.
fn in_two_dimensions() -> Record {
    let mut record = fixtures::finished();
    let rank = record.ranks[0].clone();
    let place = |number| MeshPlace { data: number / 4, shard: number % 4 };
    let rank = |number| RankRecord { rank: number, mesh: Some(place(number)), ..rank.clone() };
    record.ranks = (0..8).map(rank).collect();
    let row = |dimension: &str, ranks, operation: &str, bytes_per_step, total_ms| {
        let traffic = DimensionTraffic {
            dimension: dimension.to_owned(),
            ranks,
            operation: operation.to_owned(),
            operations_per_step: 13.0,
            bytes_per_step,
            total_ms,
            hidden_ms: total_ms * 0.75,
            exposed_ms: total_ms * 0.25,
            busbw_bytes_per_second: 0.0,
        };
        traffic.with_bandwidth()
    };
    record.collectives.as_mut().unwrap().traffic = vec![
        row("shard", 4, "reduce_scatter", 1_337_856.0, 2.0),
        row("data", 2, "reduce_scatter", 222_976.0, 0.5),
        row("data", 2, "all_gather", 222_976.0, 1.0),
        row("shard", 4, "all_gather", 1_337_856.0, 4.0),
    ];
    record
}

#[test]
fn traffic_over_several_dimensions_is_a_table_in_all_formats() {
    let record = in_two_dimensions();
    let report = ReportData::new(record.clone());
    assert_golden("dimensions.txt", &report.to_string());
    assert!(report.to_string().lines().all(|line| line.len() <= 80));
    let markdown = report.to_markdown();
    let row = "| shard 4 | reduce_scatter | 13 | 1.34 MB | 75.0% | 0.500 ms | 669 MB/s |";
    assert!(markdown.contains(row), "{markdown}");
    let page = html(&[report]);
    assert!(page.contains("<td>data 2</td><td>all_gather</td><td class=\"number\">13</td>"));
    let mut flat = record;
    let traffic = &mut flat.collectives.as_mut().unwrap().traffic;
    traffic.retain(|row| row.dimension == "shard");
    let mut sharded = flat.clone();
    let texts = |record: Record| {
        let report = ReportData::new(record);
        [report.to_string(), report.to_markdown(), html(&[report])]
    };
    for text in texts(flat) {
        assert!(!text.contains("reduce_scatter"), "{text}");
    }
    sharded.run["parallel"] = serde_json::json!({ "sharded": "weights" });
    for text in texts(sharded) {
        assert!(text.contains("reduce_scatter"), "{text}");
    }
}

/// Readings of a GPU with this power limit in force.
fn with_power_limit(watts: f64) -> HardwareSummary {
    let steady = |value| Spread { mean: value, min: value, max: value };
    let gauges = [("power_limit_watts", watts), ("power_limit_default_watts", 700.0)];
    let gauges = gauges.map(|(name, watts)| (name.to_owned(), steady(watts))).into();
    HardwareSummary { gauges, ..HardwareSummary::default() }
}

fn gpu_at(bus: &str) -> DeviceProperties {
    DeviceProperties {
        ordinal: 0,
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        memory_bytes: 80 << 30,
        compute_capability: ComputeCapability { major: 9, minor: 0 },
        multiprocessors: 132,
        pci_bus_id: format!("0000:{bus}:00.0"),
    }
}

#[test]
fn a_power_cap_is_named_beside_the_mfu_and_the_rate() {
    let mut record = fixtures::finished();
    record.mfu_causal = Some(0.42);
    record.mfu_full = Some(0.45);
    record.ranks[0].gpu = Some(with_power_limit(700.0));
    record.ranks[1].gpu = Some(with_power_limit(500.0));
    let report = ReportData::new(record.clone());
    let cap = "(1 of 2 GPUs power capped at 500 W of 700 W)";
    let text = report.to_string();
    let text: Vec<_> = text.split_whitespace().collect();
    assert!(text.join(" ").contains(&format!("45.0% full, of the published peak {cap}")));
    assert!(report.to_markdown().contains(&format!("| 42.0% {cap} |")), "{}", report.to_markdown());
    let row = overview(std::slice::from_ref(&report));
    assert!(row.contains(&format!("42.0% of the published peak {cap}")), "{row}");
    assert!(row.contains("FLOP/s per rank") && row.contains("GFLOP/s |"), "{row}");
    let page = html(std::slice::from_ref(&report));
    assert!(page.contains(cap) && page.contains("FLOP/s per rank"), "{page}");

    // Three ranks on two GPUs.
    let mut shared = record.clone();
    shared.ranks.push(shared.ranks[1].clone());
    for (rank, bus) in shared.ranks.iter_mut().zip(["01", "02", "02"]) {
        rank.host = "node-a".to_owned();
        rank.device = Some(gpu_at(bus));
    }
    let markdown = ReportData::new(shared).to_markdown();
    assert!(markdown.contains(&format!("| 42.0% {cap} |")), "{markdown}");

    record.ranks[0].gpu = Some(with_power_limit(600.0));
    let markdown = ReportData::new(record.clone()).to_markdown();
    assert!(markdown.contains("| 42.0% (power capped at 500 W of 700 W) |"), "{markdown}");
    record.ranks.iter_mut().for_each(|rank| rank.gpu = Some(with_power_limit(700.0)));
    assert!(!ReportData::new(record).to_markdown().contains("capped"));
}

#[test]
fn no_line_is_longer_than_a_terminal() {
    let mut record = fixtures::finished();
    record.environment.machine.cpu_model = Some("A Processor With A Long Name ".repeat(5));
    let text = ReportData::new(record).to_string();
    let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(longest <= 80, "{longest} columns:\n{text}");
}

fn report(dir: &Path) -> Result<ReportData, Error> {
    let mut found = reports(dir)?;
    assert_eq!(found.len(), 1);
    Ok(found.remove(0))
}

#[test]
fn a_killed_run_is_reported_from_its_steps() {
    let folder = tempfile::tempdir().unwrap();
    let done = fixtures::finished();
    let running = Record::running(
        done.workload,
        done.run,
        done.environment,
        done.ranks,
        done.attempts[..1].to_vec(),
    );
    running.write(folder.path()).unwrap();
    assert!(report(folder.path()).unwrap().to_string().contains("running"));
    write_steps(folder.path(), 1, 1..=30);
    let found = report(folder.path()).unwrap();
    assert_eq!(found.record.steps.as_ref().unwrap().completed, 30);
    assert_eq!(found.record.tokens_per_second.unwrap().step.per_rank.round(), 20_480.0);
    assert!(found.warnings[0].contains("still running, or was killed"), "{:?}", found.warnings);
    let lock = std::fs::File::create(folder.path().join("lock")).unwrap();
    lock.lock().unwrap();
    assert_eq!(report(folder.path()).unwrap().state, "running");
    lock.unlock().unwrap();
    let steps = std::fs::File::open(steps_path(folder.path(), 0)).unwrap();
    let state = |age| {
        steps.set_modified(std::time::SystemTime::now() - Duration::from_secs(age)).unwrap();
        report(folder.path()).unwrap().state
    };
    assert_eq!(state(10), "running", "of another host, whose lock may not be seen here");
    assert_eq!(state(1000), "dead");
    let missing = found.warnings.iter().filter(|warning| warning.contains("mfu_measured"));
    assert_eq!(missing.count(), 1, "{:?}", found.warnings);
}

/// The attempt failed before it had read the steps of earlier attempts.
#[test]
fn missing_figures_of_recorded_steps_are_listed_after_a_failed_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let mut failed = fixtures::finished();
    failed.steps = None;
    failed.mfu_measured = None;
    failed.status = Status::Failed;
    failed.exit_code = Some(6);
    failed.note_missing();
    failed.write(folder.path()).unwrap();
    assert!(!report(folder.path()).unwrap().warnings.join("\n").contains("mfu"));
    write_steps(folder.path(), 1, 1..=30);
    let warnings = report(folder.path()).unwrap().warnings;
    let missing: Vec<_> = warnings.iter().filter(|text| text.starts_with("null in")).collect();
    assert!(missing.len() == 1 && missing[0].contains("mfu_measured ("), "{warnings:?}");
}

#[test]
fn missing_steps_and_time_in_no_phase_are_warned_about() {
    let mut record = fixtures::finished();
    record.steps.as_mut().unwrap().recorded = 11;
    record.phases.as_mut().unwrap().other.share = 0.2;
    let warnings = ReportData::new(record).warnings.join("\n");
    assert!(warnings.contains("1 step missing in the file"), "{warnings}");
    assert!(warnings.contains("20.0% of the time is in no phase"), "{warnings}");
}

#[test]
fn json_holds_the_whole_record() {
    let json = ReportData::new(fixtures::finished()).to_json();
    assert_eq!(json["record"]["status"], "complete");
    assert_eq!(json["world"], 2);
    assert_eq!(json["hosts"][1], "node-b");
}

#[test]
fn a_folder_without_a_run_is_an_error_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let error = report(folder.path()).unwrap_err().to_string();
    assert!(error.contains("record.json: expected the record of a run"), "{error}");
    assert!(error.contains("hint: name the folder of --out"), "{error}");
}
