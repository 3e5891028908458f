//! The sinks of events, one file each.

mod anomalies;
mod console;
mod hardware;
mod otlp;
mod prometheus;
mod run_record;
mod step_log;
mod step_printer;
mod tensorboard;

pub(crate) use anomalies::Anomalies;
pub(crate) use console::Console;
pub use console::{Ended, report_failure, report_silence, report_stop, say};
pub(crate) use hardware::Hardware;
pub(crate) use otlp::Otlp;
pub(crate) use prometheus::Prometheus;
pub(crate) use run_record::RunRecord;
pub use run_record::{RankSteps, RankSummary, SummaryOptions};
pub(crate) use step_log::StepLog;
pub use step_log::{StepLogOptions, StepsBefore};
pub(crate) use tensorboard::TensorBoard;
