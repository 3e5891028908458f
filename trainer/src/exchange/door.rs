//! What a rank waits for that is slow to send weights, until an engine lets it on.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use models::{Batch, Layout, Model, StepSink, Sums, WeightSource, Weights};

/// What stands before a door has to wait until somebody opens it; and nobody can before it is
/// unlocked.
#[derive(Debug, Default)]
pub(super) struct Door {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Door {
    pub(super) fn unlock(&self) {
        self.state.lock().unwrap().0 = true;
    }

    pub(super) fn open(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 = state.0;
        self.changed.notify_all();
    }

    /// Never waits for ever, so that what nobody opens is a failure of the test.
    pub(super) fn pass(&self) {
        let closed = |state: &mut (bool, bool)| !state.1;
        let waited = self.changed.wait_timeout_while(
            self.state.lock().unwrap(),
            Duration::from_secs(30),
            closed,
        );
        assert!(!waited.unwrap().1.timed_out(), "nobody opened the door");
    }
}

/// An engine that opens the door when it has been given the weights of one segment.
#[derive(Debug)]
pub(super) struct Opens {
    pub(super) engine: Box<dyn Model>,
    pub(super) segment: Range<usize>,
    pub(super) door: Arc<Door>,
}

impl Model for Opens {
    fn layout(&self) -> &Layout {
        self.engine.layout()
    }

    fn weights_changed(&mut self) {
        self.engine.weights_changed();
    }

    fn train(
        &mut self,
        weights: &mut dyn WeightSource,
        batch: Batch<'_>,
        scale: f32,
        sums: Sums,
        sink: &mut dyn StepSink,
    ) -> Result<f64, models::Error> {
        let Self { engine, segment, door } = self;
        engine.train(&mut Seen { weights, segment, door }, batch, scale, sums, sink)
    }

    fn evaluate(
        &mut self,
        weights: &mut dyn WeightSource,
        batch: Batch<'_>,
    ) -> Result<f64, models::Error> {
        self.engine.evaluate(weights, batch)
    }
}

struct Seen<'a> {
    weights: &'a mut dyn WeightSource,
    segment: &'a Range<usize>,
    door: &'a Door,
}

impl WeightSource for Seen<'_> {
    fn flat_len(&self) -> usize {
        self.weights.flat_len()
    }

    fn segment(&mut self, range: &Range<usize>) -> Result<Weights<'_>, models::Error> {
        let weights = self.weights.segment(range)?;
        if range == self.segment {
            self.door.open();
        }
        Ok(weights)
    }
}
