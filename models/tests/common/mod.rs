//! Helpers shared by the integration tests.

use std::ops::Range;

use device::ViewMut;
use yardstick_models::{Error, Layout, Pass, StepSink};

/// A flat gradient that insists on the order of segments.
pub(crate) struct Flat {
    /// The gradient, laid out as the weights.
    pub(crate) values: Vec<f32>,
    segments: Vec<Range<usize>>,
    complete: usize,
}

impl Flat {
    /// All zero.
    pub(crate) fn new(layout: &Layout) -> Self {
        let segments = layout.segments().iter().map(|segment| segment.range.clone()).collect();
        Self { values: vec![0.0; layout.len()], segments, complete: 0 }
    }

    /// Before the next step.
    #[allow(dead_code, reason = "each test binary uses its own part")]
    pub(crate) fn begin(&mut self) {
        self.complete = 0;
    }
}

impl StepSink for Flat {
    fn gradient(&mut self, segment: usize) -> Result<ViewMut<'_, f32>, Error> {
        assert!(segment >= self.complete, "segment {segment} was complete");
        Ok((&mut self.values[self.segments[segment].clone()]).into())
    }

    fn complete(&mut self, segment: usize) -> Result<(), Error> {
        assert_eq!(segment, self.complete, "segments complete in order");
        self.complete += 1;
        Ok(())
    }

    fn enter(&mut self, _pass: Pass) {}
}
