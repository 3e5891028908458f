//! Monitoring of the hardware: GPUs through NVML, the host through procfs and sysfs, and ports of
//! RDMA adapters.
//!
//! A thread of each rank reads at an interval (`../sampler.rs`) and emits `Readings` as events. The
//! quantities of each kind of source are in one table (`gpu.rs`, `host.rs`, `port.rs`), from which
//! metrics, record, charts and documentation are made. Alarms reach the other ranks with their
//! votes (`alert.rs`), so that rank 0 can name the rank.

pub(crate) mod alert;
mod anomalies;
pub(crate) mod gpu;
mod gpu_health;
pub(crate) mod host;
pub(crate) mod port;
pub(crate) mod quantity;
pub(crate) mod summary;
mod xid;

pub use alert::{ALERT_FIELDS, Alert, AlertWatch, Finding, SharedAlert};
pub use anomalies::hardware_anomalies;
pub use gpu_health::{GpuHealth, GpuMemoryUse, XidWatch, lost_gpus};
pub use quantity::{Kind, MetricDesc, Readings, Source};
pub use summary::{Missing, Summaries};
