//! Gate at which one rank waits before it sends weights, until the engine of another rank opens it.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use device::ViewMut;
use models::{Batch, Layout, Model, StepSink, Sums, WeightSource, Weights};

/// Gate between two ranks. Opening an unarmed gate has no effect.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_armed: bool,
    is_open: bool,
}

impl Gate {
    pub(super) fn arm(&self) {
        self.state.lock().unwrap().is_armed = true;
    }

    pub(super) fn open(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_open = state.is_armed;
        self.changed.notify_all();
    }

    /// Waits until the gate is open; fails the test after a timeout.
    pub(super) fn wait(&self) {
        let waited = self.changed.wait_timeout_while(
            self.state.lock().unwrap(),
            Duration::from_secs(30),
            |state| !state.is_open,
        );
        assert!(!waited.unwrap().1.timed_out(), "the gate was never opened");
    }
}

/// Engine that opens a gate when it has received the weights of one segment.
#[derive(Debug)]
pub(super) struct GateOpener {
    pub(super) engine: Box<dyn Model>,
    pub(super) segment: Range<usize>,
    pub(super) gate: Arc<Gate>,
}

impl Model for GateOpener {
    fn layout(&self) -> &Layout {
        self.engine.layout()
    }

    fn train(
        &mut self,
        weights: &mut dyn WeightSource,
        batch: Batch<'_>,
        scale: f32,
        sums: Sums,
        loss: ViewMut<'_, f64>,
        sink: &mut dyn StepSink,
    ) -> Result<(), models::Error> {
        let Self { engine, segment, gate } = self;
        let mut weights = ObservedWeights { weights, segment, gate };
        engine.train(&mut weights, batch, scale, sums, loss, sink)
    }

    fn evaluate(
        &mut self,
        weights: &mut dyn WeightSource,
        batch: Batch<'_>,
    ) -> Result<f64, models::Error> {
        self.engine.evaluate(weights, batch)
    }
}

struct ObservedWeights<'a> {
    weights: &'a mut dyn WeightSource,
    segment: &'a Range<usize>,
    gate: &'a Gate,
}

impl WeightSource for ObservedWeights<'_> {
    fn flat_len(&self) -> usize {
        self.weights.flat_len()
    }

    fn segment(&mut self, range: &Range<usize>) -> Result<Weights<'_>, models::Error> {
        let weights = self.weights.segment(range)?;
        if range == self.segment {
            self.gate.open();
        }
        Ok(weights)
    }
}
