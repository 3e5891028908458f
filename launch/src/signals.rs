//! SIGTERM, SIGINT and SIGUSR1 as flags that the step loop polls, and SIGUSR2.
//!
//! A handler only sets a flag: ranks vote on flags between steps, so that all of them stop, or
//! save, at the same step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};

use crate::error::Error;

/// Signals that have arrived; clones share their state.
#[derive(Debug, Clone, Default)]
pub struct SignalFlags {
    stop: Arc<AtomicBool>,
    checkpoint: Arc<AtomicBool>,
}

impl SignalFlags {
    /// Handles SIGTERM and the first SIGINT as a request to stop and SIGUSR1 as a request for a
    /// checkpoint, from now on and for the whole process. A second SIGINT ends it.
    ///
    /// # Errors
    /// [`Error::System`] when a handler cannot be installed.
    pub fn install() -> Result<Self, Error> {
        let flags = Self::default();
        // Ends the process at the second Ctrl-C: registered first, it reads the flag before the
        // first one sets it. The flag is not that of SIGTERM: a Ctrl-C after a SIGTERM is the
        // first, and must not interrupt the last save.
        let interrupted = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register_conditional_shutdown(SIGINT, 130, Arc::clone(&interrupted))
            .map_err(|source| Error::System { action: "handle SIGINT".to_owned(), source })?;
        let signals = [
            (SIGTERM, &flags.stop),
            (SIGINT, &flags.stop),
            (SIGINT, &interrupted),
            (SIGUSR1, &flags.checkpoint),
        ];
        for (signal, flag) in signals {
            signal_hook::flag::register(signal, Arc::clone(flag)).map_err(|source| {
                Error::System { action: format!("handle signal {signal}"), source }
            })?;
        }
        Ok(flags)
    }

    /// Whether SIGTERM or SIGINT has arrived. It stays so.
    pub fn stop_requested(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether SIGUSR1 has arrived since the last call.
    pub fn take_checkpoint_request(&self) -> bool {
        self.checkpoint.swap(false, Ordering::Relaxed)
    }
}

/// SIGUSR2: a supervisor says that a peer is lost, and that nothing is to wait for it.
#[derive(Debug)]
pub struct PeerLossSignal(Signals);

/// Ends the wait for a signal.
#[derive(Debug)]
pub struct PeerLossHandle(Handle);

impl PeerLossSignal {
    /// Handles it from now on; without that it ends the process.
    ///
    /// # Errors
    /// [`Error::System`] when the handler cannot be installed.
    pub fn install() -> Result<Self, Error> {
        let signals = Signals::new([SIGUSR2]);
        let action = || "handle SIGUSR2".to_owned();
        signals.map(Self).map_err(|source| Error::System { action: action(), source })
    }

    /// What ends [`wait`](Self::wait).
    pub fn handle(&self) -> PeerLossHandle {
        PeerLossHandle(self.0.handle())
    }

    /// Waits for it, and returns whether it has arrived before the end of the wait.
    pub fn wait(mut self) -> bool {
        self.0.forever().next().is_some()
    }
}

impl Drop for PeerLossHandle {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Sends SIGTERM to this process, as a scheduler does that preempts it; handled on return.
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
        let end = Instant::now() + Duration::from_secs(5);
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
        let flags = SignalFlags::install().unwrap();
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
