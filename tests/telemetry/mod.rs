//! Telemetry of a run, live and in its record: metrics, spans, traces, log lines and hardware.

mod hardware;
mod log_lines;
mod otlp;
mod profile;
#[cfg(feature = "mpi")]
mod prometheus;
mod tensorboard;
#[cfg(feature = "mpi")]
mod trace;
mod training_health;
