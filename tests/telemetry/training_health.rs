//! Reports of a run on its losses, weights and updates: a spike, also across a resume.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;
use support::{Folder, Running, StepLine, free_port, yardstick};

/// Data other than that of the golden losses, which would end the run.
const OTHER_DATA: [&str; 2] = ["--set", "data.seed=77"];

/// Settings of bf16, in which the update replaces the corrupted weights: the spike is of one step.
const BF16: [&str; 2] = ["--set", "precision.compute=bf16"];

fn train(folder: &Folder, flags: &[&str]) {
    folder.train(&[&OTHER_DATA[..], &BF16, flags].concat()).expect(0);
}

fn z_score(line: &StepLine) -> Option<f64> {
    line.0["loss_z"].as_f64()
}

/// Texts of the record's anomalies about spikes, with their steps.
fn spikes(folder: &Folder) -> Vec<(u64, String)> {
    let record = folder.record();
    let anomalies = record["anomalies"].as_array().unwrap().iter();
    let spikes = anomalies.filter_map(|anomaly| {
        let text = anomaly["text"].as_str()?;
        let is_spike = text.starts_with("the loss spikes in step ");
        is_spike.then(|| (anomaly["step"].as_u64().unwrap(), text.to_owned()))
    });
    spikes.collect()
}

#[test]
fn a_spike_is_told_once_and_is_in_the_record() {
    let folder = Folder::new();
    let flags = ["--steps", "100", "--inject", "corrupt@step=90,rank=0"];
    let finished = folder.train(&[&OTHER_DATA[..], &BF16, &flags].concat());
    assert!(finished.stderr.contains("warning: the loss spikes in step 90: "), "{finished:?}");
    finished.expect(0);
    let found = spikes(&folder);
    assert_eq!(found.iter().map(|it| it.0).collect::<Vec<_>>(), [90], "{found:?}");
    let steps = folder.steps(0);
    let above: Vec<u64> =
        steps.iter().filter(|line| z_score(line) > Some(8.0)).map(StepLine::step).collect();
    assert_eq!(above, [90]);
    assert!(steps[..72].iter().all(|line| z_score(line).is_none()));
    assert!(steps[72..].iter().all(|line| z_score(line).is_some()));
    let series = folder.record()["steps"]["series"].clone();
    let of_series = |key: &str| -> Vec<f64> {
        series.as_array().unwrap().iter().filter_map(|block| block[key].as_f64()).collect()
    };
    assert_eq!(
        of_series("loss_z_max").into_iter().fold(0.0, f64::max),
        z_score(&steps[89]).unwrap()
    );
    assert_eq!(of_series("parameter_norm").len(), 10, "every tenth step");
    assert!(of_series("update_ratio").iter().all(|ratio| (1e-5..0.5).contains(ratio)));
}

#[test]
fn a_limit_of_zero_tells_nothing() {
    let folder = Folder::new();
    let flags = ["--steps", "90", "--inject", "corrupt@step=85,rank=0"];
    train(&folder, &[&flags[..], &["--set", "telemetry.loss_spike_z=0"]].concat());
    assert_eq!(spikes(&folder), []);
    assert!(z_score(&folder.steps(0)[84]) > Some(8.0));
}

#[test]
fn a_resumed_run_tells_what_an_uninterrupted_one_does() {
    let flags = ["--steps", "90", "--checkpoint-every", "40steps"];
    let flags = [&flags[..], &["--set", "telemetry.health_every_steps=1"]].concat();
    let whole = Folder::new();
    train(&whole, &flags);
    let killed = Folder::new();
    let kill = ["--inject", "kill@step=84,rank=0"];
    let finished = killed.train(&[&OTHER_DATA[..], &BF16, &flags, &kill].concat());
    assert_ne!(finished.code, 0);
    train(&killed, &flags);
    let steps = killed.steps(0);
    assert!(steps.iter().any(|line| line.0["attempt"] == 2));
    let told = |line: &StepLine| -> [Value; 3] {
        ["loss_z", "parameter_norm", "update_ratio"].map(|key| line.0[key].clone())
    };
    for (line, expected) in steps.iter().zip(&whole.steps(0)) {
        assert_eq!(told(line), told(expected), "step {}", line.step());
        let is_told = line.0["update_ratio"].is_number();
        assert_eq!(is_told, line.step() > 1, "step {}", line.step());
    }
    assert_eq!(steps.len(), 90);
}

/// The body of the page of metrics; `None` if nobody answers.
fn metrics(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The value of a metric of rank 0.
fn value(page: &str, name: &str) -> Option<f64> {
    let start = format!("{name}{{rank=\"0\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok())
}

#[test]
fn the_metrics_have_the_last_values() {
    let port = free_port();
    let folder = Folder::new();
    let address = format!("127.0.0.1:{port}");
    let out = folder.text();
    let flags = ["train", "--workload", "smoke", "--out", &out, "--steps", "80"];
    let spike = ["--inject", "corrupt@step=80,rank=0", "--prometheus", &address];
    let linger = ["--set", "telemetry.prometheus_linger=\"60s\""];
    let flags = [&flags[..], &OTHER_DATA, &BF16, &spike, &linger].concat();
    let mut running = Running::start(yardstick(&flags));
    let mut last = None;
    running.poll_while(|| {
        last = metrics(port).filter(|page| value(page, "yardstick_step") == Some(80.0));
        last.is_none()
    });
    let page = last.expect("the last step is served");
    assert!(value(&page, "yardstick_loss_zscore") > Some(8.0), "{page}");
    assert!(value(&page, "yardstick_parameter_norm") > Some(1.0), "{page}");
    assert!(value(&page, "yardstick_update_ratio") > Some(1e-5), "{page}");
}
