//! Division of a step's time into phases: every instant belongs to exactly one.

use record::phase::{Phase, PhaseTimes};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Instant;

use device::Device;

use super::device_timeline::DeviceTimeline;
use super::progress::Progress;
use super::virtual_clock::VirtualClock;

/// Time of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepTime {
    /// Nanoseconds in each phase.
    pub phases: PhaseTimes,
    /// Nanoseconds since the end of the last step: the sum of the phases, which the host measures
    /// independently.
    pub wall_ns: u64,
}

/// Stopwatch that is always in exactly one phase, so that phases add up to wall time.
///
/// Steps follow each other without gaps: the time between [`finish_step`](Self::finish_step) and
/// the next [`start_step`](Self::start_step) is `other` of the next step, except after
/// [`pause`](Self::pause). The clock never allocates. Phases are entered through shared references,
/// because the sink of gradients and the source of weights both enter phases.
#[derive(Debug)]
pub struct PhaseClock {
    phase: Cell<Phase>,
    /// Start of the current phase.
    since: Cell<Instant>,
    /// End of the last step, from which wall time is measured independently of the phases.
    step_since: Instant,
    /// Nanoseconds in each phase since the last step was finished, by the order of [`Phase::ALL`].
    spent_ns: Cell<[u64; Phase::ALL.len()]>,
    /// True if time is counted: false before the first step and in a pause.
    running: bool,
    /// Phases on the device, where a device other than the host computes.
    device: Option<RefCell<DeviceTimeline>>,
    /// Source of the times of steps, in virtual time.
    virtual_clock: Option<VirtualClock>,
    progress: Arc<Progress>,
    /// Every phase, while steps are traced.
    trace: RefCell<Option<Vec<PhaseSpan>>>,
}

/// Time in a phase, in a traced step; with a device, that of the host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PhaseSpan {
    pub(crate) step: u64,
    pub(crate) phase: Phase,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

impl Default for PhaseClock {
    fn default() -> Self {
        Self::new()
    }
}

impl PhaseClock {
    /// Creates a clock that starts with the first step.
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            phase: Cell::new(Phase::Other),
            since: Cell::new(now),
            step_since: now,
            spent_ns: Cell::new([0; Phase::ALL.len()]),
            running: false,
            device: None,
            virtual_clock: None,
            progress: Arc::default(),
            trace: RefCell::default(),
        }
    }

    /// Creates a clock for the steps of a device. The time of a CUDA device counts, and is known
    /// once the device has reached the end of the step.
    pub(crate) fn on(device: &Device) -> Self {
        let timeline = match device {
            Device::Host => None,
            Device::Cuda(device) => Some(RefCell::new(DeviceTimeline::new(device))),
        };
        Self { device: timeline, ..Self::new() }
    }

    /// Creates a clock whose steps take virtual time, on any device.
    pub(crate) fn in_virtual_time(clock: VirtualClock) -> Self {
        Self { virtual_clock: Some(clock), ..Self::new() }
    }

    /// Returns the source of virtual times, if the steps have them.
    pub(crate) fn virtual_clock(&self) -> Option<&VirtualClock> {
        self.virtual_clock.as_ref()
    }

    /// Starts a step, in the phase `other`.
    pub fn start_step(&mut self) {
        self.start_at(Instant::now());
    }

    fn start_at(&mut self, now: Instant) {
        if !self.running {
            self.running = true;
            let since = self.since.get();
            self.step_since += now.saturating_duration_since(since);
            self.since.set(since.max(now));
            self.on_device(|device| device.enter(Some(Phase::Other)));
        }
        self.enter_at(Phase::Other, now);
    }

    fn on_device(&self, action: impl FnOnce(&mut DeviceTimeline)) {
        if let Some(device) = &self.device {
            action(&mut device.borrow_mut());
        }
    }

    /// Stops until the next step is started: the time until then is in no step.
    pub fn pause(&mut self) {
        self.pause_at(Instant::now());
    }

    fn pause_at(&mut self, now: Instant) {
        self.enter_at(Phase::Other, now);
        self.on_device(|device| device.enter(None));
        self.running = false;
    }

    /// Enters a phase. Entering the current phase only moves the time since which it lasts.
    pub fn enter(&self, phase: Phase) {
        self.enter_at(phase, Instant::now());
    }

    /// Returns the progress of the rank, for other threads.
    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Returns the current phase.
    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// Returns the time at which the current phase was entered.
    pub(crate) fn since(&self) -> Instant {
        self.since.get()
    }

    /// Ends the step. Returns its times on the host, or with a device those of the step before,
    /// unless there is none or they were returned: nothing waits for the device.
    pub fn finish_step(&mut self) -> Option<StepTime> {
        let host = self.finish_at(Instant::now());
        if let Some(clock) = &self.virtual_clock {
            return Some(clock.step_time(self.progress.position().step, &host.phases));
        }
        match &mut self.device {
            None => Some(host),
            Some(device) => device.get_mut().finish(host),
        }
    }

    /// Returns the times of the last step, unless they were returned. Waits for the device.
    pub fn last_step(&mut self) -> Option<StepTime> {
        self.device.as_mut()?.get_mut().last()
    }

    /// Enters a phase at an instant that is not before the last one.
    pub(crate) fn enter_at(&self, phase: Phase, now: Instant) {
        let since = self.since.get();
        if self.running {
            let mut spent_ns = self.spent_ns.get();
            let passed = now.saturating_duration_since(since);
            spent_ns[self.phase.get() as usize] += passed.as_nanos() as u64;
            self.spent_ns.set(spent_ns);
            self.trace_until(now);
            // Never decreases: each nanosecond is counted once.
            self.since.set(since.max(now));
            self.on_device(|device| device.enter(Some(phase)));
        }
        self.phase.set(phase);
        self.progress.enter(phase);
    }

    /// Keeps every phase from now on, until the trace is taken.
    pub(crate) fn start_trace(&mut self) {
        self.trace = RefCell::new(Some(Vec::new()));
    }

    /// Returns the phases that were kept, and stops tracing.
    pub(crate) fn take_trace(&mut self) -> Vec<PhaseSpan> {
        self.trace.take().unwrap_or_default()
    }

    fn trace_until(&self, end: Instant) {
        let Some(trace) = &mut *self.trace.borrow_mut() else { return };
        let start = self.since.get();
        let step = self.progress.position().step;
        if end > start {
            trace.push(PhaseSpan { step, phase: self.phase.get(), start, end });
        }
    }

    fn finish_at(&mut self, now: Instant) -> StepTime {
        self.enter_at(Phase::Other, now);
        let spent_ns = self.spent_ns.take();
        let since = self.since.get();
        let wall = since.saturating_duration_since(self.step_since);
        self.step_since = since;
        StepTime {
            phases: PhaseTimes::from_fn(|phase| spent_ns[phase as usize]),
            wall_ns: wall.as_nanos() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use record::phase::ByPhase;

    use super::*;

    #[test]
    fn time_between_two_entries_is_in_the_first_phase() {
        let mut clock = PhaseClock::new();
        clock.start_step();
        let start = clock.since.get();
        let at = |ms| start + Duration::from_millis(ms);
        clock.enter_at(Phase::Data, at(1));
        clock.enter_at(Phase::Forward, at(3));
        clock.enter_at(Phase::Backward, at(7));
        clock.enter_at(Phase::Data, at(15)); // the next micro-batch
        clock.enter_at(Phase::Forward, at(16));
        clock.enter_at(Phase::CommExposed, at(32));
        let time = clock.finish_at(at(64));
        let ms = ByPhase::from_fn(|phase| time.phases.get(phase) / 1_000_000);
        let expected = ByPhase {
            other: 1,
            data: 3,
            forward: 20,
            backward: 8,
            comm_exposed: 32,
            ..ByPhase::default()
        };
        assert_eq!(ms, expected);
        assert_eq!((time.phases.wall_ns(), time.wall_ns), (64_000_000, 64_000_000));
    }

    #[test]
    fn steps_follow_each_other_without_gaps() {
        let mut clock = PhaseClock::new();
        std::thread::sleep(Duration::from_millis(20)); // before the first step: not counted
        clock.start_step();
        let started = clock.since.get();
        let mut total_ns = 0;
        for step in 0..50_usize {
            clock.start_step();
            for phase in Phase::ALL {
                clock.enter(phase);
                std::hint::black_box((0..step * 10).sum::<usize>());
            }
            let time = clock.finish_step().unwrap();
            assert_eq!(time.phases.wall_ns(), time.wall_ns);
            total_ns += time.wall_ns;
            std::hint::black_box((0..1000_usize).sum::<usize>()); // between steps: counted
        }
        let elapsed_ns = clock.since.get().duration_since(started).as_nanos() as u64;
        assert_eq!(total_ns, elapsed_ns);
    }

    #[test]
    fn time_in_a_pause_is_in_no_step_and_time_before_it_is_in_the_next() {
        let mut clock = PhaseClock::new();
        let start = clock.since.get();
        let at = |ms| start + Duration::from_millis(ms);
        clock.enter_at(Phase::Data, at(2)); // while a checkpoint is read
        clock.start_at(at(5));
        clock.enter_at(Phase::Forward, at(6));
        let time = clock.finish_at(at(16));
        assert_eq!((time.phases.wall_ns(), time.wall_ns), (11_000_000, 11_000_000));
        clock.enter_at(Phase::Checkpoint, at(17));
        clock.pause_at(at(20));
        clock.enter_at(Phase::CommExposed, at(500)); // in no step
        clock.start_at(at(1000));
        let time = clock.finish_at(at(1007));
        assert_eq!((time.phases.wall_ns(), time.wall_ns), (11_000_000, 11_000_000));
        assert_eq!((time.phases.other, time.phases.checkpoint), (8_000_000, 3_000_000));
    }

    #[test]
    fn an_earlier_instant_is_not_counted_twice() {
        let mut clock = PhaseClock::new();
        clock.start_step();
        let start = clock.since.get();
        clock.enter_at(Phase::Data, start + Duration::from_millis(10));
        clock.enter_at(Phase::Forward, start + Duration::from_millis(5));
        let time = clock.finish_at(start + Duration::from_millis(20));
        assert_eq!((time.phases.wall_ns(), time.wall_ns), (20_000_000, 20_000_000));
        assert_eq!(time.phases.forward, 10_000_000);
    }
}
