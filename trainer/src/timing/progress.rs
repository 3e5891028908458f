//! Where a rank is in its step, for a thread that looks while it hangs.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use record::Position;

use record::phase::Phase;

/// What the training thread does now. It only stores; nothing waits.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    step: AtomicU64,
    phase: AtomicU32,
    bucket: AtomicU32,
    buckets: AtomicU32,
}

impl Progress {
    /// A step begins, counted from 1.
    pub(crate) fn begin(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
        self.waits_for(0, 0);
    }

    /// The rank enters a phase.
    pub(super) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u32, Ordering::Relaxed);
    }

    /// It waits for the reduction of a bucket, from 1; for none with 0.
    pub(crate) fn waits_for(&self, bucket: usize, buckets: usize) {
        self.bucket.store(bucket as u32, Ordering::Relaxed);
        self.buckets.store(buckets as u32, Ordering::Relaxed);
    }

    /// Where the rank is; while it goes on, parts of this may be of another moment.
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
