//! Events of a run and their sinks, without slowing training down.
//!
//! The training thread copies an [`Event`] into a queue that was allocated at the start. The
//! telemetry thread (`stream/`) passes it to every sink, one file each in `sinks/`:
//!
//! - `console.rs`: stderr, as text or JSON.
//! - `run_record.rs`: the record, a fold over all events, with three parts of its own:
//!   `step_log.rs` (the rank's file of steps, and their sums), `anomalies.rs` (warnings) and
//!   `hardware.rs`. Events that only the record needs are in `fact.rs`.
//! - `prometheus/`: an endpoint of metrics on each node.
//! - `otlp/`: metrics and spans for an OpenTelemetry collector.
//! - `tensorboard.rs`: event files of TensorBoard.
//!
//! A new sink implements `Sink` (`sink.rs`) and is made in [`Telemetry::start_on`]; its settings go
//! into [`TelemetryOptions`]. Messages before the run has a folder, and from libraries, are logged
//! by `tracing` (`log_lines.rs`).

mod event;
pub mod fact;
pub mod hardware;
pub mod log_lines;
mod loss_watch;
mod options;
mod sampler;
mod sink;
mod sinks;
mod stream;
pub mod trace;

pub use event::{Event, RunEnd, StopRequest, Verdict, WrongValues};
pub use loss_watch::{LossSpike, LossWatch, Observed};
pub use options::{LogFormat, OtlpOptions, PrometheusOptions, TelemetryOptions};
pub use sampler::{Sampled, Sampler};
pub use sinks::{
    Ended, RankSteps, RankSummary, StepLogOptions, StepsBefore, SummaryOptions, report_failure,
    report_silence, report_stop, say,
};
pub use stream::{Events, Telemetry};
