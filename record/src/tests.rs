//! Tests of the whole record: its keys, its figures, and the result of a failed write.

use std::fs;
use std::path::Path;

use super::fixtures::*;
use super::*;

#[test]
fn the_record_has_exactly_the_documented_keys_in_order() {
    let folder = tempfile::tempdir().unwrap();
    finished().write(folder.path()).unwrap();
    let text = fs::read_to_string(Record::path(folder.path())).unwrap();
    let top_level = |line: &&str| line.starts_with("  \"");
    let keys: Vec<&str> =
        text.lines().filter(top_level).filter_map(|line| line.split('"').nth(1)).collect();
    let documented = [
        "schema",
        "status",
        "exit_code",
        "reason",
        "workload",
        "run",
        "job",
        "environment",
        "tuned_products",
        "nodes",
        "ranks",
        "attempts",
        "steps",
        "target_loss",
        "phases",
        "tokens_per_second",
        "rank_flops_per_second",
        "mfu_causal",
        "mfu_full",
        "mfu_measured",
        "profile",
        "collectives",
        "transports",
        "tiers",
        "checkpoints",
        "hosts",
        "energy",
        "cost",
        "goodput",
        "fingerprint",
        "sdc",
        "anomalies",
        "digest",
    ];
    assert_eq!(keys, documented);
}

/// Rewrite with `YARDSTICK_UPDATE_GOLDEN=1 cargo test --profile testing --workspace schema`.
#[test]
fn the_committed_schema_is_that_of_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/record.schema.json");
    let text = serde_json::to_string_pretty(&Record::json_schema()).unwrap() + "\n";
    if std::env::var_os("YARDSTICK_UPDATE_GOLDEN").is_some() {
        fs::write(&path, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(path).unwrap(), text, "the record's types have changed");
}

#[test]
fn unknown_values_are_null_and_not_omitted() {
    let record = Record { steps: None, phases: None, ..finished() };
    let json = serde_json::to_value(&record).unwrap();
    for key in ["reason", "steps", "phases", "mfu_causal", "mfu_full", "transports"] {
        assert_eq!(json.get(key), Some(&serde_json::Value::Null), "{key}");
    }
}

#[test]
fn a_record_is_read_back_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let mut record = finished();
    record.reason = Some(Reason {
        rank: Some(1),
        host: Some("node-b".to_owned()),
        step: Some(7),
        phase: Some(crate::phase::Phase::CommExposed),
        text: "rank 1 did not answer".to_owned(),
    });
    record.write(folder.path()).unwrap();
    assert_eq!(Record::read(folder.path()).unwrap(), record.sealed());
}

#[test]
fn figures_are_calculated_from_the_steps() {
    let record = finished();
    let steps = record.steps.unwrap();
    assert_eq!((steps.completed, steps.recorded, steps.measured), (12, 12, 4));
    assert_eq!((steps.step_ms.median, steps.step_ms.p95), (100.0, 100.0));
    assert_eq!(steps.wall_ms.mean, (2.0 * 100.0 + 200.0 + 300.0) / 4.0);
    assert_eq!((steps.loss_first, steps.entropy_floor), (Some(5.0 + 1.0 / 3.0), Some(2.5)));
    let rates = record.tokens_per_second.unwrap();
    let close =
        |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-12, "{found}");
    close(rates.step.total, 4.0 * 4096.0 / 0.4);
    close(rates.step.per_rank, 4.0 * 4096.0 / 0.4 / 2.0);
    close(rates.wall.total, 4.0 * 4096.0 / 0.7);
    let measured = record.mfu_measured.unwrap();
    close(measured.causal, 20_480.0 * 3e6 / 1e11);
    close(measured.full, 20_480.0 * 4e6 / 1e11);
    assert_eq!((record.mfu_causal, record.mfu_full), (None, None));
    close(record.phases.unwrap().checkpoint.share, 0.1 / 0.7);
    close(record.collectives.unwrap().hidden_share, 7.0 / 12.0);
    close(record.checkpoints.unwrap().bytes_per_second, 2e9);
    let goodput = record.goodput.unwrap();
    close(goodput.elapsed_seconds, 12.3); // from the start of the first process
    assert_eq!(goodput.lost_steps, 2);
    close(goodput.training_seconds, 12.0 * 0.099);
    close(goodput.data_seconds, 12.0 * 0.001);
    close(goodput.checkpoint_seconds, 0.1);
    close(goodput.evaluation_seconds, 0.2);
    close(goodput.start_seconds, 2.0 * 0.3);
    close(goodput.restore_seconds, 2.0 * 0.05);
    close(goodput.repeated_seconds, 0.2);
    close(goodput.down_seconds, 7.7);
    close(goodput.other_seconds, 12.3 - 1.2 - 0.3 - 0.6 - 0.1 - 0.2 - 7.7);
}

#[test]
fn rates_belong_to_the_attempt_that_made_the_steps() {
    let mut record = finished();
    let measured = record.attempts.len() as u32;
    let idle = Attempt { number: measured + 1, world: 8, ..record.attempts[0].clone() };
    record.attempts.push(idle);
    let mut series = series();
    series.world = 8;
    let reference = Reference { matmul_flops_per_second: Some(1e11), ..Reference::default() };
    record.mfu_measured = None;
    record.measure(&series, &reference, None);
    let rate = record.tokens_per_second.unwrap().step;
    assert!((rate.total / rate.per_rank - 2.0).abs() < 1e-12, "two ranks, not eight: {rate:?}");
    assert_eq!(record.mfu_measured, None, "the matmul rate was measured on other ranks");
}

#[test]
fn phases_add_up_to_wall_time() {
    let record = finished();
    let phases = record.phases.unwrap();
    let shares: f64 = crate::phase::Phase::ALL.iter().map(|&phase| phases.get(phase).share).sum();
    assert!((shares - 1.0).abs() < 1e-12, "{shares}");
}

#[test]
fn a_published_peak_gives_causal_and_full_mfu() {
    let mut record = finished();
    let reference = Reference { peak_flops_per_second: Some(2e11), ..reference() };
    record.measure(&series(), &reference, None);
    let causal = record.mfu_causal.unwrap();
    let full = record.mfu_full.unwrap();
    assert!((causal - 0.3072).abs() < 1e-9 && (full - 0.4096).abs() < 1e-9, "{causal} {full}");
}

#[test]
fn one_bit_of_one_loss_changes_the_fingerprint() {
    let mut record = finished();
    let before = record.fingerprint.clone().unwrap();
    let mut samples: Vec<_> = samples().collect();
    samples[3].loss = f64::from_bits(samples[3].loss.to_bits() ^ 1);
    record.measure(&of_samples(samples), &reference(), Some(WeightsDigest::new(1)));
    let after = record.fingerprint.unwrap();
    assert_ne!(after.losses, before.losses);
    assert_eq!(after.weights, before.weights);
}

#[test]
fn a_run_without_steps_has_no_figures() {
    let mut record = Record { steps: None, fingerprint: None, ..finished() };
    record.measure(&of_samples([]), &reference(), None);
    assert_eq!((record.steps, record.fingerprint), (None, None));
}

#[test]
fn a_failed_write_keeps_the_old_record() {
    let folder = tempfile::tempdir().unwrap();
    let old = finished();
    old.write(folder.path()).unwrap();
    fs::create_dir(folder.path().join("record.json.tmp")).unwrap();
    let new = Record { status: Status::Void, ..finished() };
    let error = new.write(folder.path()).unwrap_err().to_string();
    assert!(error.contains("record.json.tmp: cannot replace: expected a regular file"), "{error}");
    assert_eq!(Record::read(folder.path()).unwrap(), old.sealed());
}

#[test]
fn unreadable_records_are_described() {
    let folder = tempfile::tempdir().unwrap();
    let error = || Record::read(folder.path()).unwrap_err().to_string();
    assert!(error().contains("found no such file"), "{}", error());
    fs::write(folder.path().join("identity.json"), "{\"run\":\"0123456789abcdef\"}").unwrap();
    let early = Record::read_all(folder.path()).unwrap_err().to_string();
    assert!(early.contains("record.json: expected the record of a run"), "{early}");
    finished().write(folder.path()).unwrap();
    let good = fs::read_to_string(Record::path(folder.path())).unwrap();
    let write = |text: &str| fs::write(Record::path(folder.path()), text).unwrap();
    for other in [1, 7] {
        write(&good.replacen("\"schema\": 4", &format!("\"schema\": {other}"), 1));
        let expected = format!("expected a record of schema 4, found schema {other}");
        assert!(error().contains(&expected), "{}", error());
    }
    write(&good[..good.len() / 2]);
    assert!(error().contains("record.json, line "), "{}", error());
    write(&good.replacen("\"world\": 2", "\"world\": 3", 1));
    assert!(error().contains("was changed after it was written"), "{}", error());
    write(&good.replacen("\"complete\"", "\"perfect\"", 1));
    assert!(error().contains("line 3") && error().contains("perfect"), "{}", error());
}

#[test]
fn the_next_attempt_records_that_the_last_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    assert_eq!(Attempt::begin(dir, 1, 2, Vec::new()).unwrap().len(), 1);
    write_steps(dir, 1, 1..=8);
    let mut attempts = Attempt::begin(dir, 2, 2, Vec::new()).unwrap();
    attempts[1].resumed(dir, 6, None).unwrap();
    assert_eq!(Attempt::read_all(dir).unwrap()[1].resumed_after_step, Some(6), "recorded at once");
    let killed = &attempts[0];
    assert_eq!((killed.status, killed.exit_code, killed.last_step), (Status::Failed, None, 8));
    assert!(killed.ended_unix_ms.is_some_and(|ended| ended >= killed.started_unix_ms));
    assert!(killed.reason.as_ref().is_some_and(|reason| reason.text.contains("killed")));
    let mut record = Record { attempts, ..finished() };
    let ran = Some(std::time::Duration::from_millis(1500));
    let status = Status::Stopped;
    let end = AttemptEnd { status, exit_code: 75, reason: None, last_step: 12, ran };
    record.end(dir, end).unwrap();
    assert_eq!((record.status, record.exit_code), (Status::Stopped, Some(75)));
    assert_eq!(record.attempts[1].last_step, 12);
    assert_eq!(Attempt::read_all(dir).unwrap(), record.attempts);
    assert!(dir.join("attempts/002.json").is_file());
}

/// Rank 0 waits for the last rank before the attempt is recorded.
#[test]
fn a_late_rank_makes_no_goodput_disappear() {
    let mut record = finished();
    let punctual = record.goodput.unwrap();
    for attempt in &mut record.attempts {
        attempt.start.as_mut().unwrap().bootstrap_seconds += 6.0;
    }
    record.measure(&series(), &Reference::default(), None);
    let late = record.goodput.unwrap();
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{late:?}");
    close(late.start_seconds, punctual.start_seconds + 2.0 * 6.0);
    close(late.elapsed_seconds, punctual.elapsed_seconds + 6.0);
    close(late.down_seconds, punctual.down_seconds - 6.0);
    assert!(late.other_seconds >= 0.0, "{late:?}");
    close(late.other_seconds, punctual.other_seconds);
    let known = late.elapsed_seconds - late.other_seconds;
    let steps = late.training_seconds + late.data_seconds;
    let between = late.checkpoint_seconds + late.evaluation_seconds;
    let starts = late.start_seconds + late.restore_seconds;
    close(known, steps + between + starts + late.repeated_seconds + late.down_seconds);
}

/// Case of a second attempt on another host, or of a corrected clock.
#[test]
fn a_clock_that_went_back_hides_no_goodput() {
    let mut record = finished();
    let expected = record.goodput.unwrap();
    let earlier = &mut record.attempts[0];
    earlier.started_unix_ms += 60_000;
    earlier.ended_unix_ms = earlier.ended_unix_ms.map(|ended| ended + 60_000);
    record.measure(&series(), &Reference::default(), None);
    let goodput = record.goodput.unwrap();
    assert_eq!(goodput.down_seconds, 0.0, "it is not known");
    let attempts = expected.elapsed_seconds - expected.down_seconds;
    assert!((goodput.elapsed_seconds - attempts).abs() < 1e-9, "{goodput:?}");
    let texts: Vec<_> = record.anomalies.iter().map(|anomaly| anomaly.text.as_str()).collect();
    let [text] = texts.iter().filter(|text| text.contains("clock")).collect::<Vec<_>>()[..] else {
        panic!("{texts:?}")
    };
    assert!(text.contains("attempt 2 began 52.0 s before attempt 1 ended"), "{text}");
}

/// Figures that do not apply are not missing.
#[test]
fn missing_figures_are_listed_in_one_anomaly_with_reasons() {
    fn anomalies(mut record: Record) -> Vec<String> {
        record.note_missing();
        record.anomalies.into_iter().map(|anomaly| anomaly.text).collect()
    }
    let mut record = finished();
    assert_eq!((record.mfu_causal, &record.transports), (None, &None), "on a CPU");
    let cpu_model = "environment.cpu_model (not reported by the operating system)";
    let texts = [format!("null in the record: {cpu_model}")];
    assert_eq!(anomalies(record.clone()), texts);
    record.mfu_measured = None;
    let texts = anomalies(record.clone());
    assert!(texts.len() == 1 && texts[0].contains("record: mfu_measured ("), "{texts:?}");
    assert!(texts[0].ends_with(&format!("; {cpu_model}")), "{texts:?}");
    record.environment.machine.cpu_model = Some("a processor".to_owned());
    record.steps = None;
    assert!(anomalies(record).is_empty(), "without steps there is no rate");
}

/// Sparse files take no disk space, but would take all memory.
#[test]
fn files_that_are_too_large_are_refused_unread() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("attempts")).unwrap();
    let huge = |name: &str| {
        let file = fs::File::create(folder.path().join(name)).unwrap();
        file.set_len(3 << 30).unwrap();
    };
    let refused = |error: Error, name: &str| {
        let text = error.to_string();
        let is_named = text.contains(&format!("{name}: cannot read: expected at most "));
        assert!(is_named && text.ends_with("bytes, found 3221225472"), "{text}");
    };
    huge("record.json");
    refused(Record::read(folder.path()).unwrap_err(), "record.json");
    refused(Record::read_all(folder.path()).unwrap_err(), "record.json");
    refused(Record::read_all(&Record::path(folder.path())).unwrap_err(), "record.json");
    huge("attempts/001.json");
    refused(Attempt::read_all(folder.path()).unwrap_err(), "001.json");
    huge("attempts/001.r000001.failed");
    assert_eq!(ErrorFile::of_attempt(folder.path(), 1), None);
    huge("attempts/001.r000001.stalled");
    assert!(StallFile::new(folder.path(), 1, 1).read().is_none());
}

#[test]
fn a_supervisor_knows_the_host_and_a_rank_the_step() {
    let host = Some("b".to_owned());
    let known = Reason { rank: Some(1), host, text: "b was lost".into(), ..Reason::default() };
    let said = Reason { step: Some(7), text: "no answer".into(), ..Reason::default() };
    let text = "b was lost; no answer".to_owned();
    assert_eq!(known.clone().merged_with(said), Reason { step: Some(7), text, ..known.clone() });
    assert_eq!(known.clone().merged_with(Reason::default()), known);
}
