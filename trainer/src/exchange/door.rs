//! A rank that is slow to send weights, until it is let on.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use collectives::{Channel, Collective, Error, Memory, Operation, Threads, Ticket, Timing};
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
    fn pass(&self) {
        let closed = |state: &mut (bool, bool)| !state.1;
        let waited = self.changed.wait_timeout_while(
            self.state.lock().unwrap(),
            Duration::from_secs(30),
            closed,
        );
        assert!(!waited.unwrap().1.timed_out(), "nobody opened the door");
    }
}

/// What a rank does instead of sending one bucket at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Instead {
    Wait,
    Leave,
}

/// A rank whose all-gather of one number, counted from 1, does not go out at once.
#[derive(Debug)]
pub(super) struct Slow {
    pub(super) rank: Threads,
    pub(super) door: Arc<Door>,
    pub(super) gather: usize,
    pub(super) instead: Instead,
    pub(super) gathers: AtomicUsize,
}

// SAFETY: everything is done by the rank inside, which keeps the promises.
unsafe impl Collective for Slow {
    fn rank(&self) -> usize {
        self.rank.rank()
    }

    fn world(&self) -> usize {
        self.rank.world()
    }

    fn backend(&self) -> &'static str {
        self.rank.backend()
    }

    fn timeout(&self) -> Duration {
        self.rank.timeout()
    }

    unsafe fn submit(
        &self,
        channel: Channel,
        operation: Operation,
        memory: Memory,
    ) -> Result<Ticket, Error> {
        let is_gather = channel == Channel::Data && operation == Operation::AllGather;
        if is_gather && self.gathers.fetch_add(1, Ordering::SeqCst) + 1 == self.gather {
            match self.instead {
                Instead::Wait => self.door.pass(),
                Instead::Leave => self.rank.abandon("its power failed"),
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.rank.submit(channel, operation, memory) }
    }

    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<Timing, Error> {
        self.rank.wait(ticket, deadline)
    }

    fn abandon(&self, reason: &str) {
        self.rank.abandon(reason);
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
