//! Recording a step in telemetry must not allocate on the training thread.

use std::time::Duration;

use record::phase::Phase;
use record::{StepSample, StepSeries};
use support::counting::{Counting, own_calls};
use telemetry::{Events, LogFormat, StepLogOptions, SummaryOptions, Telemetry, TelemetryOptions};
use trainer::timing::phase::PhaseClock;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn step(clock: &mut PhaseClock, events: &Events, step: u64) {
    clock.start_step();
    for phase in Phase::ALL {
        clock.enter(phase);
    }
    let time = clock.finish_step().expect("a host's time is known");
    events.step(StepSample {
        attempt: 1,
        step,
        loss: 1.0 / step as f64,
        gradient_norm: 1.0,
        parameter_norm: Some(60.0),
        update_ratio: Some(1e-3),
        loss_z: Some(0.5),
        learning_rate: 1e-3,
        tokens: 1024,
        evaluation_loss: None,
        phases: time.phases,
        comm_total_ns: 0,
        comm_hidden_ns: 0,
        first_bucket_lead_ns: 0,
        comm_bytes: 0,
        wall_ns: time.wall_ns,
    });
}

/// An output that blocks once, so that the queue becomes full.
struct BlockingOutput {
    once: Option<Duration>,
}

impl std::io::Write for BlockingOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if let Some(duration) = self.once.take() {
            std::thread::sleep(duration);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn recording_a_step_allocates_nothing_on_the_calling_thread() {
    let folder = tempfile::tempdir().expect("a folder");
    let steps = 20_000; // more than the queue holds: waiting must not allocate either
    let options = TelemetryOptions {
        dir: folder.path().to_owned(),
        rank: 0,
        host: "node-a".to_owned(),
        world: 1,
        log_format: LogFormat::Json,
        total_steps: steps,
        log_every_steps: 1,
        tensorboard: None,
        prometheus: None,
        otlp: None,
    };
    let out = BlockingOutput { once: Some(Duration::from_millis(300)) };
    let telemetry = Telemetry::start_on(options, Box::new(out), false).expect("telemetry");
    let log = StepLogOptions {
        completed_steps: 0,
        target_loss: None,
        golden: record::golden::Found::Nothing,
        loss_spike_z: 8.0,
    };
    telemetry.begin_steps(&log).expect("a file of steps");
    let mut clock = PhaseClock::new();

    let counted = own_calls(|| drop(std::hint::black_box(Box::new(1_u64))));
    assert_eq!(counted, 1, "the counter counts");

    let record_steps =
        || (1..=steps).for_each(|number| step(&mut clock, telemetry.events(), number));
    assert_eq!(own_calls(record_steps), 0);

    let options = SummaryOptions { attempt: 1, blocks_max: 1, has_series: false };
    telemetry.finish_steps(options).steps.expect("every step written");
    let series = StepSeries::read(folder.path(), 1, None).expect("a file of steps");
    assert_eq!(series.recorded, steps);
    let delayed = telemetry.events().delayed_steps();
    assert!(delayed > 0, "the queue was never full, which the test requires");
}
