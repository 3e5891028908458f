//! Early notice of a lost node: a supervisor knows of it before the ranks. Its SIGUSR2 ends all
//! waits for that node's ranks, so that the run ends and is recorded long before its deadline.
//!
//! Waits are those of the world's backend, and of backends that are registered beside it: NCCL
//! polls devices and not the world. Until NCCL has opened its first communicator there is nothing
//! to register, and that wait ends by its own deadline.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use collectives::Collective;
use device::threads;
use launch::signals::PeerLossSignal;

use crate::failure::{Failure, Outcome};
use record::ExitCode;

/// Reason for which operations fail.
const REASON: &str = "the launcher has lost a peer (SIGUSR2)";

/// Handles the signal from now on. Before ranks have joined each other, there is no wait to end.
pub(super) fn handle() -> Outcome<PeerLossSignal> {
    PeerLossSignal::install().map_err(|error| Failure::new(ExitCode::Internal, error))
}

/// WatchedBackends beside the world's, whose waits the signal ends as well.
#[derive(Debug, Default)]
pub(crate) struct WatchedBackends(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_peer_lost: bool,
    registered: Vec<Arc<dyn Collective>>,
}

impl WatchedBackends {
    /// Registers a backend, until the registration is dropped. If the signal has arrived, its
    /// operations fail from now on.
    pub(super) fn register(&self, backend: Arc<dyn Collective>) -> Registration<'_> {
        let mut state = self.lock();
        if state.is_peer_lost {
            backend.abandon(REASON);
        }
        state.registered.push(backend.clone());
        Registration { backends: self, backend }
    }

    /// Ends all waits for other ranks.
    fn abandon(&self) {
        let mut state = self.lock();
        state.is_peer_lost = true;
        state.registered.iter().for_each(|backend| backend.abandon(REASON));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registration of a backend. Once it is dropped, the signal does not end the backend's waits, and
/// only its owner has it.
#[derive(Debug)]
pub(super) struct Registration<'a> {
    backends: &'a WatchedBackends,
    backend: Arc<dyn Collective>,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let is_other = |other: &Arc<dyn Collective>| !Arc::ptr_eq(other, &self.backend);
        self.backends.lock().registered.retain(is_other);
    }
}

/// Runs `body`, in which operations between ranks fail as soon as the signal arrives: those of
/// `world`, and of the backends that `body` registers.
///
/// # Errors
/// Those of `body`, and one if no thread can wait for the signal.
pub(super) fn watched<T>(
    signal: PeerLossSignal,
    world: &dyn Collective,
    backends: &WatchedBackends,
    body: impl FnOnce() -> Outcome<T>,
) -> Outcome<T> {
    std::thread::scope(|scope| {
        let handle = signal.handle();
        let watch = || {
            if signal.wait() {
                // First those that exchange messages over the world when an operation fails.
                backends.abandon();
                world.abandon(REASON);
            }
        };
        threads::spawn_scoped(scope, "peer-loss", watch)?;
        let outcome = body();
        drop(handle);
        outcome
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use collectives::{Error, Single, Threads};
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    /// Waits, for much longer than the test may take, for a rank that does not come.
    fn wait(backend: &dyn Collective) -> String {
        let start = Instant::now();
        let error = backend.barrier(start + Duration::from_secs(30)).unwrap_err();
        assert!(matches!(error, Error::Dead { .. }), "{error}");
        error.to_string()
    }

    #[test]
    fn the_signal_ends_the_waits_of_every_registered_backend() {
        let mut ranks = Threads::group(2);
        let _absent = ranks.pop();
        let backend: Arc<dyn Collective> = Arc::new(ranks.remove(0));
        let single = Single::new();
        let backends = WatchedBackends::default();
        let body = || {
            let _registration = backends.register(backend.clone());
            kill_process(getpid(), Signal::USR2).unwrap();
            assert!(wait(&*backend).contains(REASON));
            let mut later = Threads::group(2);
            let late: Arc<dyn Collective> = Arc::new(later.remove(0));
            let _registration = backends.register(late.clone());
            assert!(wait(&*late).contains(REASON), "the signal has arrived before");
            Ok(())
        };
        watched(handle().unwrap(), &single, &backends, body).unwrap();
    }

    #[test]
    fn a_backend_is_its_owners_after_its_registration() {
        let backends = WatchedBackends::default();
        let backend = Arc::new(Single::new());
        let registration = backends.register(backend.clone());
        assert!(Arc::into_inner(backend.clone()).is_none());
        drop(registration);
        backends.abandon();
        let backend = Arc::into_inner(backend).unwrap();
        let collective: &dyn Collective = &backend;
        collective.barrier(Instant::now()).unwrap();
    }
}
