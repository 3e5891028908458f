//! Tests of telemetry as a whole: the files it writes and the lines it prints.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::*;
use crate::options::LogFormat;
use record::fixtures::sample;
use record::{StepSeries, read_steps, steps_path};

/// An output that can be inspected.
#[derive(Clone, Default)]
struct Screen(Arc<Mutex<Vec<u8>>>);

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Screen {
    fn lines(&self) -> Vec<String> {
        let bytes = self.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
    }
}

fn options(dir: &Path) -> TelemetryOptions {
    TelemetryOptions {
        dir: dir.to_owned(),
        rank: 0,
        host: "node-a".to_owned(),
        world: 2,
        log_format: LogFormat::Text,
        total_steps: 12,
        log_every_steps: 5,
        tensorboard: None,
        prometheus: None,
        otlp: None,
    }
}

fn started(options: TelemetryOptions, screen: &Screen, is_terminal: bool) -> Telemetry {
    Telemetry::start_on(options, Box::new(screen.clone()), is_terminal).unwrap()
}

fn begin(telemetry: &Telemetry, completed_steps: u64) -> u64 {
    let loss_spike_z = 8.0;
    let options = StepLogOptions {
        completed_steps,
        target_loss: None,
        golden: record::golden::Found::Nothing,
        loss_spike_z,
    };
    telemetry.begin_steps(&options).unwrap().removed_ns
}

fn finish(telemetry: &Telemetry) -> RankSummary {
    telemetry.finish_steps(SummaryOptions { attempt: 1, blocks_max: 8, has_series: false })
}

/// Runs the steps of an attempt after the completed ones; returns their series and output.
fn train(
    options: TelemetryOptions,
    attempt: u32,
    steps: RangeInclusive<u64>,
) -> (StepSeries, Screen) {
    let screen = Screen::default();
    let dir = options.dir.clone();
    let telemetry = started(options, &screen, false);
    begin(&telemetry, steps.start() - 1);
    for step in steps {
        let evaluation_loss = (step == 7).then_some(4.5);
        telemetry.events().step(StepSample { evaluation_loss, ..sample(attempt, step) });
    }
    finish(&telemetry);
    (StepSeries::read(&dir, 2, None).unwrap(), screen)
}

fn steps_on_file(dir: &Path, rank: usize) -> Vec<StepLine> {
    read_steps(&steps_path(dir, rank)).unwrap().map(Result::unwrap).collect()
}

#[test]
fn text_has_aligned_columns() {
    let folder = tempfile::tempdir().unwrap();
    let (_, screen) = train(options(folder.path()), 1, 1..=12);
    let expected = "
 step     loss    norm     rate tokens/s       ms dat fwd bwd com opt ckp evl oth %
 1/12   5.3333   0.333  6.00e-4    40960    100.0   1  30  55   4   9   0   0   1
 5/12   5.1429   0.333  6.00e-4    40960    100.0   1  30  55   4   9   0   0   1
 7/12   5.1111   0.333  6.00e-4    40960    100.0   1  30  55   4   9   0   0   1  held out 4.5000
10/12   5.0833   0.333  6.00e-4    40960    100.0   1  30  55   4   9   0   0   1
12/12   5.0714   0.333  6.00e-4    40960    100.0   1  30  55   4   9   0   0   1";
    assert_eq!(screen.lines(), expected.lines().skip(1).collect::<Vec<_>>());
}

#[test]
fn a_terminal_gets_the_same_lines_above_the_progress_bar() {
    let folder = tempfile::tempdir().unwrap();
    let screen = Screen::default();
    let telemetry = started(options(folder.path()), &screen, true);
    begin(&telemetry, 0);
    (1..=12).for_each(|step| telemetry.events().step(sample(1, step)));
    finish(&telemetry).steps.unwrap();
    let steps: Vec<_> = screen.lines()[1..].iter().map(|line| line[..5].to_owned()).collect();
    assert_eq!(steps, [" 1/12", " 5/12", "10/12", "12/12"]);
}

#[test]
fn json_has_every_step_with_every_bit() {
    let folder = tempfile::tempdir().unwrap();
    let json = TelemetryOptions { log_format: LogFormat::Json, ..options(folder.path()) };
    let (series, screen) = train(json, 1, 1..=12);
    let read: Vec<StepLine> =
        screen.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, steps_on_file(folder.path(), 0));
    assert_eq!(series.recorded, read.len() as u64);
}

#[test]
fn other_ranks_write_steps_and_print_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (_, screen) = train(TelemetryOptions { rank: 1, ..options(folder.path()) }, 1, 1..=3);
    assert!(screen.lines().is_empty());
    assert_eq!(steps_on_file(folder.path(), 1).len(), 3);
}

#[test]
fn a_resumed_run_has_one_series_of_steps() {
    let folder = tempfile::tempdir().unwrap();
    train(options(folder.path()), 1, 1..=9);
    let (series, screen) = train(options(folder.path()), 2, 7..=12);
    let lines = steps_on_file(folder.path(), 0);
    let attempts: Vec<_> = lines.iter().map(|line| line.sample.attempt).collect();
    assert_eq!(attempts, [[1; 6], [2; 6]].concat());
    assert_eq!((series.recorded, series.wall_ns), (12, 1_200_000_000));
    assert!(screen.lines()[1].starts_with(" 7/12"));
}

#[test]
fn the_time_of_repeated_steps_is_known() {
    let folder = tempfile::tempdir().unwrap();
    train(options(folder.path()), 1, 1..=9);
    let telemetry = started(options(folder.path()), &Screen::default(), false);
    assert_eq!(begin(&telemetry, 6), 300_000_000);
    assert_eq!(begin(&telemetry, 6), 0);
}

#[test]
fn messages_appear_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let warn = |telemetry: &Telemetry| {
        let text = "a link is slow".to_owned();
        telemetry.events().warn(Anomaly { step: Some(3), rank: Some(1), text });
    };
    let screen = Screen::default();
    let telemetry = started(options(folder.path()), &screen, false);
    telemetry.events().start("begins");
    warn(&telemetry);
    telemetry.events().note("noted");
    drop(telemetry);
    assert_eq!(screen.lines(), ["begins", "warning: a link is slow", "noted"]);
    let (json, quiet) = (Screen::default(), Screen::default());
    let options = TelemetryOptions { log_format: LogFormat::Json, ..options(folder.path()) };
    for (rank, screen) in [(0, &json), (1, &quiet)] {
        let telemetry = started(TelemetryOptions { rank, ..options.clone() }, screen, false);
        telemetry.events().note("noted");
        warn(&telemetry);
    }
    assert_eq!((json.lines().len(), quiet.lines().len()), (2, 1));
    let warning: serde_json::Value = serde_json::from_str(&quiet.lines()[0]).unwrap();
    let found = ["event", "text", "step", "of_rank", "rank", "host"].map(|key| &warning[key]);
    let expected = serde_json::json!(["warning", "a link is slow", 3, 1, 1, "node-a"]);
    assert_eq!(serde_json::json!(found), expected);
}

/// Both are printed after the last step.
#[test]
fn a_line_has_the_step_that_was_made_when_it_was_told() {
    let folder = tempfile::tempdir().unwrap();
    let screen = Screen::default();
    let json = TelemetryOptions { log_format: LogFormat::Json, ..options(folder.path()) };
    let console = Console::new(json, Box::new(screen.clone()), false);
    let (queue, receiver) = mpsc::sync_channel(2);
    for step in [Some(4), None] {
        let text = "a library was slow".to_owned();
        let event = Event::Warning(Anomaly { step: None, rank: None, text });
        queue.send(Message::Event { event, step }).unwrap();
    }
    drop(queue);
    let record = RunRecord::new(folder.path(), 0);
    Sinks { record, others: vec![Box::new(console)] }.serve(&receiver);
    let step =
        |line: &String| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64();
    assert_eq!(screen.lines().iter().map(step).collect::<Vec<_>>(), [Some(4), None]);
}

#[test]
fn dropping_telemetry_writes_all_steps() {
    let folder = tempfile::tempdir().unwrap();
    let telemetry = started(options(folder.path()), &Screen::default(), false);
    begin(&telemetry, 0);
    (1..=100).for_each(|step| telemetry.events().step(sample(1, step)));
    drop(telemetry);
    assert_eq!(steps_on_file(folder.path(), 0).len(), 100);
}

#[test]
fn a_full_queue_loses_no_step() {
    let folder = tempfile::tempdir().unwrap();
    let steps = 3 * QUEUE_EVENTS as u64;
    let (series, _) = train(options(folder.path()), 1, 1..=steps);
    assert_eq!(series.recorded, steps);
}

#[test]
#[should_panic(expected = "phases do not add up")]
fn phases_that_do_not_add_up_panic() {
    let folder = tempfile::tempdir().unwrap();
    let telemetry = started(options(folder.path()), &Screen::default(), false);
    telemetry.events().step(StepSample { wall_ns: 1, ..sample(1, 1) });
}
