//! Times of ops on a CUDA device, by events in the order of the stream that computes.

use std::time::Duration;

use device::cuda::{Cuda, Error, Event};

use super::Op;

/// Ops that are measured before the host waits for their times.
const PAIRS: usize = 256;

/// Events around each op. The host waits only when all pairs are in use, and at the end.
#[derive(Debug)]
pub(super) struct EventClock {
    device: Cuda,
    /// Created when measuring starts.
    pairs: Vec<EventPair>,
    /// The ops of the pairs in use.
    ops: Vec<Op>,
    failure: Option<Error>,
}

#[derive(Debug)]
struct EventPair {
    start: Event,
    end: Event,
}

impl EventClock {
    pub(super) fn new(device: &Cuda) -> Self {
        Self { device: device.clone(), pairs: Vec::new(), ops: Vec::new(), failure: None }
    }

    pub(super) fn device(&self) -> &Cuda {
        &self.device
    }

    /// Creates the events, the first time.
    pub(super) fn prepare(&mut self) {
        let missing = PAIRS - self.pairs.len();
        let pair =
            |_| Ok(EventPair { start: Event::new(&self.device)?, end: Event::new(&self.device)? });
        match (0..missing).map(pair).collect::<Result<Vec<_>, Error>>() {
            Ok(pairs) => self.pairs.extend(pairs),
            Err(error) => self.fail(error),
        }
        self.ops.clear();
        self.ops.reserve(PAIRS);
    }

    /// Returns whether every pair is in use.
    pub(super) fn is_full(&self) -> bool {
        self.ops.len() == self.pairs.len()
    }

    /// Marks the start of an op.
    pub(super) fn begin(&mut self) {
        let started = self.pairs.get(self.ops.len());
        let recorded = started.map_or(Ok(()), |pair| pair.start.record(self.device.compute()));
        recorded.unwrap_or_else(|error| self.fail(error));
    }

    /// Marks the end of the op that was started last.
    pub(super) fn end(&mut self, op: Op) {
        let Some(pair) = self.pairs.get(self.ops.len()) else { return };
        let recorded = pair.end.record(self.device.compute());
        self.ops.push(op);
        recorded.unwrap_or_else(|error| self.fail(error));
    }

    /// Waits for the device, and hands out the time of each op since the last call.
    pub(super) fn drain(&mut self, mut add: impl FnMut(Op, Duration)) {
        let Self { pairs, ops, failure, .. } = self;
        for (op, pair) in ops.drain(..).zip(&*pairs) {
            match pair.start.elapsed_ns(&pair.end) {
                Ok(elapsed_ns) => add(op, Duration::from_nanos(elapsed_ns)),
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        }
    }

    /// The first failure of the driver since the last call.
    pub(super) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }
}
