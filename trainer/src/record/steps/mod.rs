//! `steps/rRRRRRR.jsonl`: the measurements of every step, one file per rank.

pub(crate) mod file;
pub(crate) mod sample;
mod series;

pub use file::{read_steps, read_undamaged_steps, steps_path, truncate_after};
pub use sample::{StepLine, StepSample};
pub use series::StepSeries;
