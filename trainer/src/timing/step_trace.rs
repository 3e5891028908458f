//! Phases and buckets of traced steps.

use super::communication::BucketSpan;
use super::phase::PhaseSpan;

/// Trace of steps, as kept by a trainer.
#[derive(Debug, Default)]
pub(crate) struct StepTrace {
    pub(crate) phases: Vec<PhaseSpan>,
    pub(crate) reductions: Vec<BucketSpan>,
    pub(crate) gathers: Vec<BucketSpan>,
}
