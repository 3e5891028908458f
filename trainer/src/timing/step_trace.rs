//! Phases and buckets of traced steps.

use super::communication::BucketSpan;
use super::phase::PhaseSpan;

/// What a trainer has kept of the traced steps.
#[derive(Debug, Default)]
pub(crate) struct StepTrace {
    pub(crate) phases: Vec<PhaseSpan>,
    pub(crate) reductions: Vec<BucketSpan>,
    pub(crate) gathers: Vec<BucketSpan>,
}
