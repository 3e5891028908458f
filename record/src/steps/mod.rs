//! `steps/rRRRRRR.jsonl`: the measurements of every step, one file per rank.

mod block;
pub mod file;
pub mod sample;
mod series;
mod steady;
mod steady_watch;
mod target;

pub use block::SampledStep;
pub use block::StepBlock;
pub use file::{StepReader, read_steps, steps_path, truncate_after};
pub use sample::{StepLine, StepSample};
pub use series::{MeasuredSteps, OwnTimes, StepSeries, TargetReached};
pub use steady_watch::SteadyWatch;
pub use target::TargetLoss;
