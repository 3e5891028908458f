//! Clock of the parts of a start, up to the end of the first step.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use launch::supervisor::LaunchTimes;

use record::text::unix_time::unix_ms_at;
use record::{LaunchParts, StartParts};

static PROCESS_START: OnceLock<Instant> = OnceLock::new();

/// Records when this process began. Earlier work of the system is not known.
pub fn begin_process() {
    PROCESS_START.get_or_init(Instant::now);
}

/// Stopwatch for the parts of a start, one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct StartClock {
    since: Instant,
    parts: StartParts,
}

impl StartClock {
    /// Starts at the beginning of the process.
    pub(super) fn new() -> Self {
        let since = *PROCESS_START.get_or_init(Instant::now);
        let launch = LaunchTimes::of_this_process();
        let began = SystemTime::now() - since.elapsed();
        let launch = launch.map(|times| launch_parts(times, unix_ms_at(began)));
        Self { since, parts: StartParts { launch, ..StartParts::default() } }
    }

    /// Starts now, for another run in the same process.
    pub(super) fn again() -> Self {
        Self { since: Instant::now(), parts: StartParts::default() }
    }

    /// Returns when the start began.
    pub(super) fn began(&self) -> SystemTime {
        SystemTime::now()
            - self.since.elapsed()
            - Duration::from_secs_f64(self.parts.total_seconds())
    }

    fn lap(&mut self) -> f64 {
        let now = Instant::now();
        let lap: Duration = now - self.since;
        self.since = now;
        lap.as_secs_f64()
    }

    /// Records that the ranks have found each other.
    pub(super) fn bootstrapped(&mut self) {
        self.parts.bootstrap_seconds = self.lap();
    }

    /// Records that the ranks are ready to restore a checkpoint.
    pub(super) fn wired_up(&mut self) {
        self.parts.wire_up_seconds = self.lap();
    }

    /// Records that the ranks have a state to train.
    pub(super) fn restored(&mut self) {
        self.parts.restore_seconds = self.lap();
    }

    /// Records that the first step is done, and returns all parts.
    pub(super) fn made_first_step(&mut self) -> StartParts {
        self.parts.first_step_seconds = self.lap();
        self.parts
    }
}

/// Returns the parts of the launch; none is negative, although clocks of two hosts may differ.
fn launch_parts(times: LaunchTimes, process_unix_ms: u64) -> LaunchParts {
    let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e3;
    let LaunchTimes { began_unix_ms, hosts_ready_unix_ms } = times;
    LaunchParts {
        hosts_seconds: seconds(began_unix_ms, hosts_ready_unix_ms),
        mpirun_seconds: seconds(hosts_ready_unix_ms, process_unix_ms),
    }
}
