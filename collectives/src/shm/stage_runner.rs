//! Runs stages on a node, one after another, in step with the other ranks of the node.
//!
//! A stage has two rounds. In the first each rank publishes where its buffer lies; when all have,
//! each works on its part of all buffers. In the second each rank announces that it has finished;
//! when all have, nobody touches its buffer any more. A rank finishes a round by counting it, and
//! waits until the other ranks have counted as many.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::counters::{Sequence, SequenceCounters};
use super::in_place;
use super::node::{Location, Node};
use crate::stages::chunks::Chunks;
use crate::stages::stage::{Stage, StageKind};

/// Bytes of all ranks' buffers that are worked on at a time: few enough to stay in a core's own
/// cache, and for the communication thread to return often to its other operations.
const CHUNK_BYTES: usize = 256 << 10;

/// Minimum of a chunk: one page of each buffer.
const CHUNK_BYTES_MIN: usize = 4 << 10;

/// The result of an attempt to make progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Other ranks are behind.
    Blocked,
    /// Some work is done.
    Progressed,
    /// The stage is complete: its buffer is not touched any more.
    Complete,
}

/// A rank of the node, given by its rank in the world, passed another range of the shared buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocationMismatch {
    pub(crate) rank: usize,
}

/// One sequence of stages.
#[derive(Debug)]
pub(crate) struct StageRunner {
    node: Arc<Node>,
    sequence: Sequence,
    /// Rounds that this rank has finished.
    rounds: u64,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    chunks: Chunks,
    location: Location,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Publish where this rank's buffer lies.
    Publish,
    /// Wait until the other ranks have published theirs.
    AwaitStart,
    /// Work on the buffers, from this step on.
    Work(usize),
    /// Wait until the other ranks no longer touch this rank's buffer.
    AwaitEnd,
}

impl StageRunner {
    pub(crate) fn new(node: Arc<Node>, sequence: Sequence) -> Self {
        Self { node, sequence, rounds: 0, running: None }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    /// Returns whether there is a stage, and no other rank is behind.
    pub(crate) fn can_progress(&self) -> bool {
        !self.is_idle() && self.peers_have_caught_up()
    }

    /// Begins a stage, whose buffer lies at `location`, on an idle runner.
    pub(crate) fn begin(&mut self, stage: Stage, location: Location) {
        debug_assert!(self.is_idle(), "one stage at a time");
        let ranks = self.node.ranks().len();
        let bytes_max = match stage.kind {
            StageKind::AllGather => CHUNK_BYTES,
            StageKind::ReduceScatter | StageKind::AllReduce => CHUNK_BYTES / ranks,
        };
        let chunks = Chunks::new(stage, ranks, bytes_max.max(CHUNK_BYTES_MIN), usize::MAX);
        self.running = Some(Running { chunks, location, state: State::Publish });
    }

    /// Returns whether other ranks may write to the buffer of the stage.
    pub(crate) fn is_exposed(&self) -> bool {
        self.running.as_ref().is_some_and(|running| {
            let is_published = !matches!(running.state, State::Publish);
            is_published && running.chunks.stage.kind == StageKind::AllReduce
        })
    }

    /// Advances the stage by one state or one chunk, if no other rank is behind.
    ///
    /// # Errors
    /// Fails if the ranks' buffers do not lie at one location. The runner must then not be used
    /// again.
    ///
    /// # Safety
    /// The stage's buffer is valid and nobody else's until this returns [`Step::Complete`], or is
    /// never called again; other ranks may then still write to it if [`is_exposed`].
    ///
    /// [`is_exposed`]: Self::is_exposed
    pub(crate) unsafe fn step(&mut self) -> Result<Step, LocationMismatch> {
        let Some(mut running) = self.running.take() else { return Ok(Step::Complete) };
        // SAFETY: the caller's promise.
        let step = unsafe { self.advance(&mut running)? };
        if step != Step::Complete {
            self.running = Some(running);
        }
        Ok(step)
    }

    unsafe fn advance(&mut self, running: &mut Running) -> Result<Step, LocationMismatch> {
        match running.state {
            State::Publish => {
                let location = &self.own_counters().location.0;
                location.store(running.location.code, Ordering::Relaxed);
                self.finish_round();
                running.state = State::AwaitStart;
            }
            State::AwaitStart => {
                if !self.peers_have_caught_up() {
                    return Ok(Step::Blocked);
                }
                self.compare_locations(running.location.code)?;
                running.state = State::Work(0);
            }
            State::Work(index) => {
                // SAFETY: the caller's promise, and the same promise of all other ranks, which have
                // begun the stage; every rank writes its own part of all buffers, or its own
                // buffer.
                if unsafe { self.work(running, index) } {
                    running.state = State::Work(index + 1);
                } else {
                    self.finish_round();
                    running.state = State::AwaitEnd;
                }
            }
            State::AwaitEnd => {
                let is_over = self.peers_have_caught_up();
                return Ok(if is_over { Step::Complete } else { Step::Blocked });
            }
        }
        Ok(Step::Progressed)
    }

    /// Works on one chunk; `false` when there is none of that index.
    unsafe fn work(&self, running: &Running, index: usize) -> bool {
        let chunks = &running.chunks;
        let Location { buffer, offset, .. } = &running.location;
        if chunks.stage.kind != StageKind::AllGather {
            let is_left = index < chunks.count;
            if is_left {
                // SAFETY: the caller's promise.
                unsafe { in_place::reduce(buffer, *offset, chunks, index) };
            }
            return is_left;
        }
        let owner_index = index.checked_div(chunks.count);
        let Some(owner) = owner_index.and_then(|nth| self.node.others().nth(nth)) else {
            return false;
        };
        // SAFETY: the caller's promise.
        unsafe { in_place::gather(buffer, *offset, chunks, owner, index % chunks.count) };
        true
    }

    /// Checks that all ranks passed the same range of the same shared buffer.
    fn compare_locations(&self, own: u64) -> Result<(), LocationMismatch> {
        let differs = |&local: &usize| {
            let counters = self.node.sequence_counters(local, self.sequence);
            counters.location.0.load(Ordering::Relaxed) != own
        };
        let other = self.node.others().find(differs).map(|local| self.node.ranks()[local]);
        other.map_or(Ok(()), |rank| Err(LocationMismatch { rank }))
    }

    fn own_counters(&self) -> &SequenceCounters {
        self.node.sequence_counters(self.node.local(), self.sequence)
    }

    fn peers_have_caught_up(&self) -> bool {
        self.node.others().all(|local| {
            let counters = self.node.sequence_counters(local, self.sequence);
            counters.rounds.0.load(Ordering::Acquire) >= self.rounds
        })
    }

    fn finish_round(&mut self) {
        self.rounds += 1;
        self.own_counters().rounds.0.store(self.rounds, Ordering::Release);
        self.node.others().for_each(|local| self.node.counters(local).wakeup.notify());
    }
}
