//! Weights as forward needs them: what is still going round between ranks is waited for where it
//! is read, and no earlier.

use std::ops::Range;
use std::time::{Duration, Instant};

use models::{WeightSource, Weights};

use crate::communication::Tally;
use crate::failure::Outcome;
use crate::phase::{Phase, PhaseClock};
use crate::state::Stored;
use crate::step::Trainer;

/// The weights of one rank. Waiting for them is exposed communication, whoever reads them.
#[derive(Debug)]
pub(crate) struct Arriving<'step, 'world> {
    pub(crate) weights: &'step mut Stored<'world>,
    pub(crate) gathers: &'step mut Tally,
    pub(crate) clock: &'step PhaseClock,
    pub(crate) deadline: Duration,
}

impl Arriving<'_, '_> {
    /// Waits for what is under way of a range.
    fn wait(&mut self, range: &Range<usize>) -> Result<(), collectives::Error> {
        if !self.weights.is_under_way(range) {
            return Ok(());
        }
        let (phase, computed) = (self.clock.phase(), Instant::now());
        self.clock.enter(Phase::CommExposed);
        let tell = |timing| self.gathers.add(timing, computed);
        self.weights.wait(range, computed + self.deadline, tell)?;
        self.clock.enter(phase);
        Ok(())
    }
}

impl WeightSource for Arriving<'_, '_> {
    fn flat_len(&self) -> usize {
        self.weights.len()
    }

    fn segment(&mut self, range: &Range<usize>) -> Result<Weights<'_>, models::Error> {
        self.wait(range).map_err(|error| models::Error::Weights(Box::new(error)))?;
        Ok(self.weights.get(range.clone()))
    }
}

impl Trainer<'_> {
    /// Waits until all weights are here. Whoever reads them outside of a step calls this before.
    pub(crate) fn settle(&mut self) -> Outcome<()> {
        let Self { state, gathers, clock, deadline, .. } = self;
        let (weights, deadline) = (&mut state.weights, *deadline);
        let all = 0..weights.len();
        Ok(Arriving { weights, gathers, clock, deadline }.wait(&all)?)
    }
}
