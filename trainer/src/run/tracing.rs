//! Trace of chosen steps, in the format of Chrome's and Perfetto's viewers: all ranks on one
//! timeline.
//!
//! While steps are traced, the phase clock keeps each phase and the tallies of communication keep
//! each bucket. Then rank 0 gathers and writes them (`telemetry::trace`). Clocks of different
//! machines are aligned by barriers before the first of these steps: all ranks leave a barrier at
//! about the same time.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Instant;

use telemetry::trace::{self, RankTrace, TracedBucket, TracedPhase};

use crate::failure::Outcome;
use crate::ranks::Ranks;
use crate::step::Trainer;
use crate::timing::communication::BucketSpan;
use crate::timing::phase::PhaseSpan;

/// Number of barriers that align the clocks; the median counts.
const BARRIERS: usize = 15;

/// Traces a range of steps.
#[derive(Debug)]
pub(crate) struct Tracing {
    steps: RangeInclusive<u64>,
    /// Clock, while steps are traced.
    clock: Option<AlignedClock>,
}

/// Clock with a zero that all ranks agree on.
#[derive(Debug, Clone, Copy)]
struct AlignedClock {
    /// Instant of this rank.
    epoch: Instant,
    /// Nanoseconds from the common zero to that instant.
    offset_ns: i64,
}

impl Tracing {
    pub(crate) fn new(steps: RangeInclusive<u64>) -> Self {
        Self { steps, clock: None }
    }

    /// Prepares a step: starts with the first traced step, and is collective then.
    pub(crate) fn before(&mut self, step: u64, trainer: &mut Trainer<'_>) -> Outcome<()> {
        if self.clock.is_some() || !self.steps.contains(&step) {
            return Ok(());
        }
        self.clock = Some(AlignedClock::align(&trainer.ranks())?);
        trainer.start_trace();
        Ok(())
    }

    /// Finishes a step: writes the trace after the last traced step, or if training ends here, and
    /// is collective then. Returns why there is no file, on rank 0.
    pub(crate) fn after(
        &mut self,
        step: u64,
        is_end: bool,
        trainer: &mut Trainer<'_>,
        dir: &Path,
        hosts: &[String],
    ) -> Outcome<Result<(), String>> {
        let is_last = step == *self.steps.end() || is_end;
        let Some(clock) = self.clock.take_if(|_| is_last) else { return Ok(Ok(())) };
        trainer.pause_clock();
        let own = clock.rank_trace(&self.steps, trainer);
        let ranks = trainer.ranks();
        let all = ranks.gather(&own)?;
        if ranks.rank() != 0 {
            return Ok(Ok(()));
        }
        let path = dir.join("trace").join(format!("steps-{}-{step}.json", self.steps.start()));
        let written = trace::write(&path, &all, hosts);
        Ok(written.map_err(|error| format!("{}: {error}", path.display())))
    }
}

impl AlignedClock {
    fn align(ranks: &Ranks<'_>) -> Outcome<Self> {
        let epoch = Instant::now();
        let mut stamps_ns = Vec::with_capacity(BARRIERS);
        for _ in 0..BARRIERS {
            ranks.collective.barrier(ranks.deadline())?;
            stamps_ns.push(epoch.elapsed().as_nanos() as i64);
        }
        let of_rank_0 = ranks.gather(&stamps_ns)?.swap_remove(0);
        Ok(Self { epoch, offset_ns: offset_ns(&of_rank_0, &stamps_ns) })
    }

    fn ns(&self, instant: Instant) -> i64 {
        let since = instant.checked_duration_since(self.epoch).map(|it| it.as_nanos() as i64);
        let before = || -(self.epoch.duration_since(instant).as_nanos() as i64);
        since.unwrap_or_else(before) + self.offset_ns
    }

    fn rank_trace(&self, steps: &RangeInclusive<u64>, trainer: &mut Trainer<'_>) -> RankTrace {
        let mut trace = trainer.take_trace();
        // The step before them ended after the trace had begun.
        trace.phases.retain(|span| steps.contains(&span.step));
        let duration_ns =
            |start: Instant, end: Instant| end.duration_since(start).as_nanos() as u64;
        let phase = |span: &PhaseSpan| TracedPhase {
            step: span.step,
            phase: span.phase,
            start_ns: self.ns(span.start),
            duration_ns: duration_ns(span.start, span.end),
        };
        let bucket = |span: &BucketSpan, is_gather| TracedBucket {
            is_gather,
            bucket: span.bucket,
            bytes: span.timing.bytes as u64,
            start_ns: self.ns(span.timing.started),
            duration_ns: duration_ns(span.timing.started, span.timing.ended),
        };
        let reductions = trace.reductions.iter().map(|span| bucket(span, false));
        let gathers = trace.gathers.iter().map(|span| bucket(span, true));
        RankTrace {
            phases: trace.phases.iter().map(phase).collect(),
            buckets: reductions.chain(gathers).collect(),
        }
    }
}

/// Returns the offset to add to a rank's clock, so that it reads as rank 0's.
fn offset_ns(of_rank_0: &[i64], own: &[i64]) -> i64 {
    let mut differences: Vec<i64> =
        of_rank_0.iter().zip(own).map(|(zero, own)| zero - own).collect();
    differences.sort_unstable();
    differences[differences.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_aligned_by_most_barriers() {
        let of_rank_0 = [100, 200, 300, 400, 500];
        // Clock 5,000 behind, and late out of one barrier.
        let own = [-4_899, -4_801, -4_700, -1_000, -4_500];
        assert_eq!(offset_ns(&of_rank_0, &own), 5_000);
        let epoch = Instant::now();
        let clock = AlignedClock { epoch, offset_ns: 5_000 };
        assert_eq!(clock.ns(epoch + std::time::Duration::from_nanos(70)), 5_070);
        assert_eq!(clock.ns(epoch), 5_000);
    }
}
