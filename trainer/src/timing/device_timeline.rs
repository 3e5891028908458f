//! Timeline of the phases of a step on its device: work is started long before it is done, so the
//! host's clock at the start does not show its time.
//!
//! Nothing waits for the device to be timed. The time of a step is read at the end of the next one,
//! which has waited for the device in its vote.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use device::cuda::{Cuda, Error, Event};

use super::phase::StepTime;
use record::phase::{Phase, PhaseTimes};

/// Timeout of the wait for the time of the last step. A stuck device must not keep a failed run
/// from its end.
const LAST_STEP_TIMEOUT: Duration = Duration::from_secs(2);

/// Points on the compute stream where phases begin.
#[derive(Debug)]
pub(super) struct DeviceTimeline {
    device: Cuda,
    /// Marks from the start of the oldest step that was not read.
    marks: VecDeque<Mark>,
    /// Events that were read, and can be recorded again.
    spare: Vec<Event>,
    /// Last finished step, until it is read.
    finished: Option<FinishedStep>,
}

/// Point on the stream.
#[derive(Debug)]
struct Mark {
    event: Event,
    /// Phase that begins here; `None` for a pause, whose time is in no step.
    begins: Option<Phase>,
}

/// Step whose end was marked.
#[derive(Debug)]
struct FinishedStep {
    /// Index of the mark at its end, where the next step begins.
    end: Option<usize>,
    /// Time of the step on the host, for a device that fails before it can be read.
    host: StepTime,
}

impl DeviceTimeline {
    pub(super) fn new(device: &Cuda) -> Self {
        let marks = VecDeque::new();
        Self { device: device.clone(), marks, spare: Vec::new(), finished: None }
    }

    /// Begins a phase, or a pause, behind all work that was started so far.
    pub(super) fn enter(&mut self, phase: Option<Phase>) {
        if self.marks.back().is_none_or(|mark| mark.begins != phase) {
            self.mark(phase);
        }
    }

    /// Marks a point and returns its index; `None` after an error of the work before it, which
    /// readers of its results receive.
    fn mark(&mut self, begins: Option<Phase>) -> Option<usize> {
        let event = self.record().ok()?;
        self.marks.push_back(Mark { event, begins });
        Some(self.marks.len() - 1)
    }

    fn record(&mut self) -> Result<Event, Error> {
        let event = self.spare.pop().map_or_else(|| Event::new(&self.device), Ok)?;
        event.record(self.device.compute())?;
        Ok(event)
    }

    /// Ends a step, whose time on the host is `host`, and returns that of the step before unless it
    /// was read. That step's device time is complete: this step has waited for the device.
    pub(super) fn finish(&mut self, host: StepTime) -> Option<StepTime> {
        let before = self.read_finished();
        let end = self.mark(Some(Phase::Other));
        self.finished = Some(FinishedStep { end, host });
        before
    }

    /// Returns the time of the last finished step, unless it was read. Waits for the device.
    pub(super) fn last(&mut self) -> Option<StepTime> {
        let end = self.finished.as_ref()?.end;
        let deadline = Instant::now() + LAST_STEP_TIMEOUT;
        while end.is_some_and(|end| matches!(self.marks[end].event.is_complete(), Ok(false))) {
            if Instant::now() > deadline {
                let FinishedStep { end, host } = self.finished.take()?;
                self.forget_until(end?);
                return Some(host);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        self.read_finished()
    }

    fn read_finished(&mut self) -> Option<StepTime> {
        let FinishedStep { end, host } = self.finished.take()?;
        let Some(end) = end else { return Some(host) };
        let phases = self.phases_until(end);
        self.forget_until(end);
        let phases = phases.unwrap_or(host.phases);
        Some(StepTime { phases, wall_ns: phases.wall_ns() })
    }

    /// Drops the marks before an index, at which the next step begins.
    fn forget_until(&mut self, end: usize) {
        self.spare.extend(self.marks.drain(..end).map(|mark| mark.event));
    }

    /// Returns the time in each phase from the first mark to that of this index.
    fn phases_until(&self, end: usize) -> Result<PhaseTimes, Error> {
        let mut times = PhaseTimes::default();
        for index in 0..end {
            let Mark { event, begins } = &self.marks[index];
            if let Some(phase) = *begins {
                *times.get_mut(phase) += event.elapsed_ns(&self.marks[index + 1].event)?;
            }
        }
        Ok(times)
    }
}

#[cfg(test)]
mod cuda_tests {
    use device::Device;

    use super::*;
    use crate::timing::phase::PhaseClock;

    fn clock() -> (Cuda, PhaseClock) {
        let cuda = Cuda::open(0).unwrap();
        let clock = PhaseClock::on(&Device::Cuda(cuda.clone()));
        (cuda, clock)
    }

    /// Least duration of a phase.
    const PHASE: Duration = Duration::from_millis(50);
    const LEAST_NS: u64 = 10_000_000;

    /// Waits until the device has reached what was started, which it may do late on a busy machine,
    /// and then for this time.
    fn reach_and_wait(cuda: &Cuda, time: Duration) {
        cuda.synchronize().unwrap();
        std::thread::sleep(time);
    }

    /// Runs a step of one phase.
    fn step(cuda: &Cuda, clock: &mut PhaseClock, phase: Phase) -> Option<StepTime> {
        clock.start_step();
        clock.enter(phase);
        reach_and_wait(cuda, PHASE);
        clock.finish_step()
    }

    #[test]
    fn the_time_of_a_step_is_known_when_the_next_one_ends() {
        let (cuda, mut clock) = clock();
        assert_eq!(step(&cuda, &mut clock, Phase::Forward), None, "no step before");
        let first = step(&cuda, &mut clock, Phase::Backward).unwrap();
        assert!(first.phases.forward >= LEAST_NS, "{first:?}");
        assert_eq!((first.phases.backward, first.phases.wall_ns()), (0, first.wall_ns));
        let second = clock.last_step().unwrap();
        assert!(second.phases.backward >= LEAST_NS, "{second:?}");
        assert_eq!(second.phases.forward, 0);
        assert_eq!(clock.last_step(), None, "it was returned");
        assert_eq!(step(&cuda, &mut clock, Phase::Data), None, "so was the step before");
        assert!(clock.last_step().unwrap().phases.data >= LEAST_NS);
    }

    #[test]
    fn time_in_a_pause_is_in_no_step_and_time_before_it_is_in_the_next() {
        let (cuda, mut clock) = clock();
        let pause = Duration::from_secs(1);
        let started = Instant::now();
        step(&cuda, &mut clock, Phase::Forward);
        clock.enter(Phase::Checkpoint);
        reach_and_wait(&cuda, PHASE);
        clock.pause();
        reach_and_wait(&cuda, pause);
        let first = step(&cuda, &mut clock, Phase::Backward).unwrap();
        assert!(first.phases.forward > 0 && first.phases.checkpoint == 0, "{first:?}");
        let second = clock.last_step().unwrap();
        assert!(second.phases.checkpoint >= LEAST_NS, "{second:?}");
        let wall = Duration::from_nanos(second.wall_ns);
        assert!(wall + pause <= started.elapsed(), "{second:?}");
    }
}
