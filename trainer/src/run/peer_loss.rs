//! Early notice of a lost node: a supervisor knows of it before the ranks. Its SIGUSR2 ends all
//! waits for that node's ranks, so that the run ends and is recorded long before its deadline.

use collectives::Collective;
use device::threads;
use launch::signals::PeerLossSignal;

use crate::failure::{Failure, Outcome};
use record::ExitCode;

/// Handles the signal from now on. Before ranks have joined each other, there is no wait to end.
pub(super) fn handle() -> Outcome<PeerLossSignal> {
    PeerLossSignal::install().map_err(|error| Failure::new(ExitCode::Internal, error))
}

/// Runs `body`, in which operations between ranks fail as soon as the signal arrives.
///
/// # Errors
/// Those of `body`, and one if no thread can wait for the signal.
pub(super) fn watched<T>(
    signal: PeerLossSignal,
    collective: &dyn Collective,
    body: impl FnOnce() -> Outcome<T>,
) -> Outcome<T> {
    std::thread::scope(|scope| {
        let handle = signal.handle();
        let watch = || {
            if signal.wait() {
                collective.abandon("the launcher has lost a peer (SIGUSR2)");
            }
        };
        threads::spawn_scoped(scope, "peer-loss", watch)?;
        let outcome = body();
        drop(handle);
        outcome
    })
}
