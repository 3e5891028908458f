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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use collectives::{Collective, Incoming, Operation, Threads};

    use super::*;

    /// Gathers the last four of eight weights, of which each rank gives two.
    fn gather(rank: &Threads) -> Incoming<'_, f32> {
        let own = 1.0 + rank.rank() as f32;
        let mut weights = Incoming::new(rank, vec![own; 8].into());
        weights.start(Operation::AllGather, 4..8).unwrap();
        weights
    }

    /// The other rank sends its part a while after this one has begun to wait.
    #[test]
    fn forward_waits_for_what_it_reads_and_the_wait_is_exposed() {
        let (group, patience) = (Threads::group(2), Duration::from_secs(20));
        let (begins, begun) = mpsc::channel();
        std::thread::scope(|scope| {
            let peer = &group[1];
            scope.spawn(move || {
                begun.recv().unwrap();
                std::thread::sleep(Duration::from_millis(200));
                gather(peer).wait(&(0..8), Instant::now() + patience, |_| ()).unwrap();
            });
            let weights = &mut Stored::F32(gather(&group[0]));
            let begins = begins; // gone before the weights wait where this closure fails
            let (gathers, clock) = (&mut Tally::default(), &mut PhaseClock::new());
            clock.start_step();
            clock.enter(Phase::Forward);
            let mut arriving = Arriving { weights, gathers, clock, deadline: patience };
            let Weights::F32(here) = arriving.segment(&(0..4)).unwrap() else { panic!("f32") };
            assert_eq!(here, [1.0; 4], "nothing of these is under way");
            begins.send(()).unwrap();
            let begun = Instant::now();
            let Weights::F32(came) = arriving.segment(&(2..8)).unwrap() else { panic!("f32") };
            let waited_ns = begun.elapsed().as_nanos() as u64;
            assert_eq!(came, [1.0, 1.0, 1.0, 1.0, 2.0, 2.0]);
            assert_eq!(clock.phase(), Phase::Forward, "it goes on");
            let (phases, _) = clock.finish_step();
            assert!(phases.comm_exposed >= waited_ns / 2, "{phases:?}, waited {waited_ns} ns");
            let told = gathers.take();
            assert!(told.total_ns > 0 && told.hidden_ns == 0, "while it waited: {told:?}");
            assert_eq!(told.bytes, 16);
        });
    }
}
