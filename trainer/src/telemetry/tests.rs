//! Telemetry as a whole: the files it writes and the lines it prints.

use std::path::Path;
use std::sync::{Arc, Mutex};

use super::*;
use crate::record::read_steps;
use crate::record::steps::sample::tests::sample;

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
        world: 2,
        log_format: LogFormat::Text,
        total_steps: 12,
        completed_steps: 0,
        log_every_steps: 5,
    }
}

fn train(options: TelemetryOptions, attempt: u32, last_step: u64) -> (StepSeries, Screen) {
    let screen = Screen::default();
    let first_step = options.completed_steps + 1;
    let telemetry = Telemetry::start_on(options, Box::new(screen.clone()), false).unwrap();
    for step in first_step..=last_step {
        let evaluation_loss = (step == 7).then_some(4.5);
        telemetry.step(StepSample { evaluation_loss, ..sample(attempt, step) });
    }
    (telemetry.finish().unwrap(), screen)
}

#[test]
fn text_has_aligned_columns() {
    let folder = tempfile::tempdir().unwrap();
    let (_, screen) = train(options(folder.path()), 1, 12);
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
    let telemetry =
        Telemetry::start_on(options(folder.path()), Box::new(screen.clone()), true).unwrap();
    (1..=12).for_each(|step| telemetry.step(sample(1, step)));
    telemetry.finish().unwrap();
    let steps: Vec<_> = screen.lines()[1..].iter().map(|line| line[..5].to_owned()).collect();
    assert_eq!(steps, [" 1/12", " 5/12", "10/12", "12/12"]);
}

#[test]
fn json_has_every_step_with_every_bit() {
    let folder = tempfile::tempdir().unwrap();
    let json = TelemetryOptions { log_format: LogFormat::Json, ..options(folder.path()) };
    let (series, screen) = train(json, 1, 12);
    let read: Vec<StepLine> =
        screen.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, read_steps(&steps_path(folder.path(), 0)).unwrap());
    assert_eq!(read.iter().map(|line| line.sample).collect::<Vec<_>>(), series.samples);
}

#[test]
fn other_ranks_write_steps_and_print_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (_, screen) = train(TelemetryOptions { rank: 1, ..options(folder.path()) }, 1, 3);
    assert!(screen.lines().is_empty());
    assert_eq!(read_steps(&steps_path(folder.path(), 1)).unwrap().len(), 3);
}

#[test]
fn a_resumed_run_has_one_series_of_steps() {
    let folder = tempfile::tempdir().unwrap();
    train(options(folder.path()), 1, 9);
    let resumed = TelemetryOptions { completed_steps: 6, ..options(folder.path()) };
    let (series, screen) = train(resumed, 2, 12);
    let steps: Vec<_> = series.samples.iter().map(|sample| sample.step).collect();
    assert_eq!(steps, (1..=12).collect::<Vec<_>>());
    assert_eq!(series.samples.iter().filter(|sample| sample.attempt == 1).count(), 6);
    assert_eq!(series, StepSeries::read(folder.path(), 2).unwrap());
    assert!(screen.lines()[1].starts_with(" 7/12"));
}

#[test]
fn dropping_telemetry_writes_all_steps() {
    let folder = tempfile::tempdir().unwrap();
    let telemetry =
        Telemetry::start_on(options(folder.path()), Box::new(Screen::default()), false).unwrap();
    (1..=100).for_each(|step| telemetry.step(sample(1, step)));
    drop(telemetry);
    assert_eq!(read_steps(&steps_path(folder.path(), 0)).unwrap().len(), 100);
}

#[test]
fn a_full_queue_loses_no_step() {
    let folder = tempfile::tempdir().unwrap();
    let steps = 3 * QUEUE_STEPS as u64;
    let (series, _) = train(options(folder.path()), 1, steps);
    assert_eq!(series.samples.len() as u64, steps);
}

#[test]
fn finish_returns_a_failed_write() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("steps")).unwrap();
    let path = steps_path(folder.path(), 0);
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let file = StepFile::open(folder.path(), 0).unwrap();
    let (queue, receiver) = mpsc::sync_channel(8);
    (1..=3).for_each(|step| queue.send(Message::Step(sample(1, step))).unwrap());
    drop(queue);
    let error = run(0, &receiver, file, None, Vec::new()).unwrap_err().to_string();
    assert!(error.contains("r000000.jsonl"), "{error}");
}

#[test]
#[should_panic(expected = "phases do not add up")]
fn phases_that_do_not_add_up_panic() {
    let folder = tempfile::tempdir().unwrap();
    let telemetry =
        Telemetry::start_on(options(folder.path()), Box::new(Screen::default()), false).unwrap();
    telemetry.step(StepSample { wall_ns: 1, ..sample(1, 1) });
}
