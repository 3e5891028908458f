//! Waits for data of other ranks: exposed communication.

use std::ops::Range;
use std::time::{Duration, Instant};

use collectives::{Element, Incoming};

use crate::timing::communication::CommunicationTally;
use crate::timing::phase::PhaseClock;
use record::phase::Phase;

/// Resources of waits.
#[derive(Debug)]
pub(super) struct Waits<'step> {
    pub(super) tally: &'step mut CommunicationTally,
    pub(super) clock: &'step PhaseClock,
    /// Timeout of one operation.
    pub(super) timeout: Duration,
}

impl Waits<'_> {
    /// Waits until no part of a range is in flight. Where a device computes, the device waits.
    pub(super) fn wait<E: Element>(
        &mut self,
        buffer: &mut Incoming<'_, E>,
        range: &Range<usize>,
    ) -> Result<(), collectives::Error> {
        if !buffer.is_in_flight(range) {
            return Ok(());
        }
        let phase = self.clock.phase();
        let wait_start = Instant::now();
        self.clock.enter(Phase::CommExposed);
        let report = |timing| self.tally.add(timing, wait_start);
        buffer.wait(range, wait_start + self.timeout, report)?;
        self.clock.enter(phase);
        Ok(())
    }
}
