//! Waits for data of other ranks: exposed communication.

use std::cell::RefCell;
use std::ops::Range;
use std::time::Instant;

use collectives::{Element, Incoming, Interval};

use crate::mesh::Dimensions;
use crate::timing::phase::PhaseClock;
use crate::timing::tallies::{Moved, Tallies};
use record::phase::Phase;

/// Resources of waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waits<'step, 'world> {
    pub(crate) tallies: &'step RefCell<Tallies>,
    pub(crate) clock: &'step PhaseClock,
    pub(crate) dimensions: Dimensions<'world>,
}

impl Waits<'_, '_> {
    /// Stops computing: enters the phase of a wait, and returns the phase before it. Those of an
    /// evaluation are a part of it, as an evaluation is no part of a step.
    pub(super) fn stop(self) -> Phase {
        let phase = self.clock.phase();
        if ![Phase::Eval, Phase::CommExposed].contains(&phase) {
            self.clock.enter(Phase::CommExposed);
        }
        phase
    }

    /// Waits until no part of a range is in flight. The time since computation has stopped is that
    /// of the operation which is waited for. Where a device computes, the device waits.
    pub(super) fn wait<E: Element>(
        self,
        moved: Moved,
        buffer: &mut Incoming<'_, E>,
        range: &Range<usize>,
    ) -> Result<(), collectives::Error> {
        if !buffer.is_in_flight(range) {
            return Ok(());
        }
        let phase = self.stop();
        let has_stopped = phase == Phase::CommExposed;
        let mut started = if has_stopped { self.clock.since() } else { Instant::now() };
        let mut last_ended = None;
        let report = |timing| {
            let ended = Instant::now();
            self.tallies.borrow_mut().add(moved, timing, Interval { started, ended });
            started = ended;
            last_ended = Some(ended);
        };
        buffer.wait(range, self.dimensions.owners.deadline(), report)?;
        // The next wait of a rank that has stopped begins where this one has ended: what is in
        // flight in a gap between them would be hidden.
        self.clock.enter_at(phase, last_ended.unwrap_or_else(Instant::now));
        Ok(())
    }

    /// Waits until the device, if one computes, has received all data that was waited for: with a
    /// deadline, unlike later waits for the device.
    pub(super) fn settle(self) -> Result<(), collectives::Error> {
        let phase = self.stop();
        let report = &mut |settled| self.tallies.borrow_mut().add_settled(settled);
        self.dimensions.settle(report)?;
        self.clock.enter(phase);
        Ok(())
    }
}
