//! Position of a rank in its step, for a thread that checks whether it hangs.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use record::Position;

use record::phase::Phase;

/// Current activity of the training thread. Updates only store; nothing waits.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    step: AtomicU64,
    phase: AtomicU32,
    bucket: AtomicU32,
    buckets: AtomicU32,
}

impl Progress {
    /// Begins a step, counted from 1.
    pub(crate) fn begin(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
        self.waits_for(0, 0);
    }

    /// Enters a phase.
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u32, Ordering::Relaxed);
    }

    /// Records the bucket, from 1, whose reduction the rank waits for; 0 for none.
    pub(crate) fn waits_for(&self, bucket: usize, buckets: usize) {
        self.bucket.store(bucket as u32, Ordering::Relaxed);
        self.buckets.store(buckets as u32, Ordering::Relaxed);
    }

    /// Returns the position of the rank; while it moves, parts may be of different moments.
    pub(crate) fn position(&self) -> Position {
        let phase = self.phase.load(Ordering::Relaxed) as usize;
        Position {
            step: self.step.load(Ordering::Relaxed),
            phase: Phase::ALL[phase],
            bucket: self.bucket.load(Ordering::Relaxed),
            buckets: self.buckets.load(Ordering::Relaxed),
        }
    }
}
