//! SIGTERM, SIGINT and SIGUSR1 as flags that the step loop polls, and SIGUSR2.
//!
//! A handler only sets a flag: ranks vote on flags in each step, so that all of them stop, or save,
//! at the same step. A thread reports a request to stop at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::{Handle, Signals};

use device::threads;

use crate::error::Error;

/// Signals that have arrived; clones share their state.
#[derive(Debug, Clone, Default)]
pub struct SignalFlags {
    stop: Arc<AtomicBool>,
    checkpoint: Arc<AtomicBool>,
}

/// A signal that asks the process to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopSignal {
    /// Name, such as `SIGTERM`.
    pub name: &'static str,
    /// Effect of the signal.
    pub effect: StopEffect,
}

/// Effect of a signal that asks to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopEffect {
    /// The stop flag is set, by the first signal.
    Stops,
    /// No further effect. Launchers forward one request in several ways: after SIGTERM, another one
    /// or the first Ctrl-C must not interrupt the last save.
    None,
    /// The process ends with [`INTERRUPTED`], by the second SIGINT.
    Ends,
}

/// Exit code after a second SIGINT.
pub const INTERRUPTED: i32 = 130;

impl SignalFlags {
    /// Handles SIGTERM and the first SIGINT as a request to stop and SIGUSR1 as a request for a
    /// checkpoint, from now on and for the whole process. The second SIGINT ends it. `report` is
    /// called with each request to stop, on a separate thread, after its flag is set and before the
    /// process ends; the next SIGINT cuts a blocking call short.
    ///
    /// # Errors
    /// [`Error::System`] when a handler cannot be installed.
    pub fn install(report: impl FnMut(StopSignal) + Send + 'static) -> Result<Self, Error> {
        let refused = |source| Error::System { action: "handle signals".to_owned(), source };
        let flags = Self::default();
        let is_ending = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&is_ending);
        signal_hook::flag::register_conditional_shutdown(SIGINT, INTERRUPTED, ending)
            .map_err(refused)?;
        for (signal, flag) in
            [(SIGTERM, &flags.stop), (SIGINT, &flags.stop), (SIGUSR1, &flags.checkpoint)]
        {
            signal_hook::flag::register(signal, Arc::clone(flag)).map_err(refused)?;
        }
        let signals = Signals::new([SIGTERM, SIGINT]).map_err(refused)?;
        threads::spawn("signals", move || report_stops(signals, &is_ending, report))?;
        Ok(flags)
    }

    /// Returns whether SIGTERM or SIGINT has arrived, which is never reset.
    pub fn stop_requested(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns whether SIGUSR1 has arrived since the last call.
    pub fn take_checkpoint_request(&self) -> bool {
        self.checkpoint.swap(false, Ordering::Relaxed)
    }
}

/// Reports requests to stop until the second SIGINT, which ends the process.
fn report_stops(mut signals: Signals, is_ending: &AtomicBool, mut report: impl FnMut(StopSignal)) {
    let mut is_requested = false;
    let mut is_interrupted = false;
    for signal in signals.forever() {
        let is_interrupt = signal == SIGINT;
        let name = if is_interrupt { "SIGINT" } else { "SIGTERM" };
        let effect = match (is_interrupt && is_interrupted, is_requested) {
            (true, _) => StopEffect::Ends,
            (false, true) => StopEffect::None,
            (false, false) => StopEffect::Stops,
        };
        is_requested = true;
        is_interrupted |= is_interrupt;
        // The next SIGINT must be able to end a report that blocks.
        is_ending.store(is_interrupt, Ordering::Relaxed);
        report(StopSignal { name, effect });
        if effect == StopEffect::Ends {
            exit_immediately(INTERRUPTED);
        }
        is_ending.store(false, Ordering::Relaxed);
    }
}

/// SIGUSR2: a supervisor reports that a peer is lost, and that nothing must wait for it.
#[derive(Debug)]
pub struct PeerLossSignal(Signals);

/// Handle that ends the wait for a signal.
#[derive(Debug)]
pub struct PeerLossHandle(Handle);

impl PeerLossSignal {
    /// Handles the signal from now on; otherwise it ends the process.
    ///
    /// # Errors
    /// [`Error::System`] when the handler cannot be installed.
    pub fn install() -> Result<Self, Error> {
        let signals = Signals::new([SIGUSR2]);
        let action = || "handle SIGUSR2".to_owned();
        signals.map(Self).map_err(|source| Error::System { action: action(), source })
    }

    /// Returns the handle that ends [`wait`](Self::wait).
    pub fn handle(&self) -> PeerLossHandle {
        PeerLossHandle(self.0.handle())
    }

    /// Waits for the signal, and returns whether it has arrived before the end of the wait.
    pub fn wait(mut self) -> bool {
        self.0.forever().next().is_some()
    }
}

impl Drop for PeerLossHandle {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Makes a write beyond the file size limit (SIGXFSZ) fail with an error, instead of ending the
/// process.
///
/// # Errors
/// [`Error::System`] when the handler cannot be installed.
pub fn survive_file_size_limit() -> Result<(), Error> {
    let action = || "handle SIGXFSZ".to_owned();
    let registered = signal_hook::flag::register(SIGXFSZ, Arc::default());
    registered.map(drop).map_err(|source| Error::System { action: action(), source })
}

/// Sends SIGTERM to this process, as a preempting scheduler does; it is handled on return.
///
/// # Errors
/// [`Error::System`] when the operating system refuses.
pub fn raise_sigterm() -> Result<(), Error> {
    signal_hook::low_level::raise(SIGTERM).map_err(|source| {
        let action = "send SIGTERM to this process".to_owned();
        Error::System { action, source }
    })
}

/// Ends the process by `_exit(2)`, without exit handlers: those of an MPI library may wait for a
/// thread that is stuck.
pub fn exit_immediately(code: i32) -> ! {
    signal_hook::low_level::exit(code)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    fn eventually(condition: impl Fn() -> bool) -> bool {
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            if condition() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    #[test]
    fn real_signals_set_their_flag_and_no_other() {
        let flags = SignalFlags::install(|_| ()).unwrap();
        assert!(!flags.stop_requested() && !flags.take_checkpoint_request());
        kill_process(getpid(), Signal::USR1).unwrap();
        assert!(eventually(|| flags.checkpoint.load(Ordering::Relaxed)), "no SIGUSR1");
        assert!(flags.take_checkpoint_request());
        assert!(!flags.take_checkpoint_request(), "one signal, one checkpoint");
        assert!(!flags.stop_requested());
        let clone = flags.clone();
        raise_sigterm().unwrap();
        assert!(clone.stop_requested(), "no SIGTERM");
        assert!(flags.stop_requested(), "the request stays");
    }
}
