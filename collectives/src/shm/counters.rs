//! Progress that a rank publishes to the other ranks of its node, in memory that all of them map.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;

use super::futex_event::FutexEvent;
use super::shared_buffer::SharedBuffer;

/// The stages of an operation that involve other nodes are between those of the first sequence and
/// those of the second. A node works on both sequences at the same time, each in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sequence {
    /// Stages before data is exchanged with other nodes.
    BeforeExchange,
    /// Stages after that.
    AfterExchange,
}

/// One rank's counters; all zeros at first. Counters are monotonic.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RankCounters {
    /// Wakes the rank's communication thread.
    pub(crate) wakeup: FutexEvent,
    /// Collective operations that the rank has started, by channel.
    pub(crate) started: Padded<[AtomicU64; 2]>,
    /// Progress by sequence.
    pub(crate) sequences: [SequenceCounters; 2],
}

/// A rank's progress in one sequence of stages.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SequenceCounters {
    /// Rounds that the rank has finished: two per stage.
    pub(crate) rounds: Padded<AtomicU64>,
    /// Code of the current stage's buffer.
    pub(crate) location: Padded<AtomicU64>,
}

/// A value in a pair of cache lines of its own, because processors prefetch them in pairs.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// The counters of all ranks of a node.
#[derive(Debug)]
pub(super) struct Counters(SharedBuffer);

impl Counters {
    /// Size of one rank's counters.
    pub(super) const BYTES: usize = size_of::<RankCounters>();

    /// Places the counters in a shared buffer of [`Self::BYTES`] zeros that has no other use.
    pub(super) fn new(buffer: SharedBuffer) -> Self {
        assert!(buffer.bytes() >= Self::BYTES, "{} bytes", buffer.bytes());
        Self(buffer)
    }

    /// Number of ranks.
    pub(super) fn ranks(&self) -> usize {
        self.0.ranks()
    }

    /// This rank's index on the node.
    pub(super) fn local(&self) -> usize {
        self.0.local()
    }

    /// The counters of a rank.
    pub(super) fn of(&self, local: usize) -> &RankCounters {
        // SAFETY: inside the mapping, which is aligned to a page and stays as long as this; all
        // processes access it as atomics only, for which every bit pattern is valid.
        unsafe { &*self.0.start(local).cast::<RankCounters>() }
    }
}
