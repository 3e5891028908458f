//! The phases of a step as its device passes them: work is started long before it is done, so the
//! host's clock at the start says nothing about its time.

use device::cuda::{Cuda, Error, Event};

use super::phase::{Phase, PhaseTimes};

/// The points on the stream that computes where phases begin.
#[derive(Debug)]
pub(super) struct DeviceTimeline {
    device: Cuda,
    /// Recorded in this order; more are made when a step has more phases than any before.
    events: Vec<Event>,
    /// What begins at each recorded event.
    phases: Vec<Phase>,
}

impl DeviceTimeline {
    pub(super) fn new(device: &Cuda) -> Self {
        Self { device: device.clone(), events: Vec::new(), phases: Vec::new() }
    }

    /// Forgets what was recorded: time before this point is in no step.
    pub(super) fn restart(&mut self, phase: Phase) {
        self.phases.clear();
        self.enter(phase);
    }

    /// A phase begins behind all work that was started so far. An error is one of that work, which
    /// whoever reads its results is told.
    pub(super) fn enter(&mut self, phase: Phase) {
        if self.phases.last() != Some(&phase) && self.record().is_ok() {
            self.phases.push(phase);
        }
    }

    fn record(&mut self) -> Result<(), Error> {
        if self.events.len() == self.phases.len() {
            self.events.push(Event::new(&self.device)?);
        }
        self.events[self.phases.len()].record(self.device.compute())
    }

    /// Waits for the device, and returns the time in each phase since the last call or restart. The
    /// next step begins here.
    pub(super) fn finish(&mut self) -> PhaseTimes {
        // The end of the last phase.
        let end = self.record().and_then(|()| self.events[self.phases.len()].wait());
        let mut times = PhaseTimes::default();
        if end.is_ok() {
            for (index, &phase) in self.phases.iter().enumerate() {
                let elapsed = self.events[index].elapsed_ns(&self.events[index + 1]);
                *times.get_mut(phase) += elapsed.unwrap_or(0);
            }
            self.events.swap(0, self.phases.len());
        }
        self.phases.clear();
        self.phases.push(Phase::Other);
        times
    }
}
