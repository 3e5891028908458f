//! Joining and leaving the other ranks, and starting compute threads.

use std::time::Duration;

use launch::ThreadPlan;
use launch::bootstrap::{self, World};

use crate::config::Config;
use crate::failure::{ExitCode, Failure, Outcome};

/// Aborts communication after a failure. A rank that fails by itself must not wait for the others,
/// which learn of it from the launcher or by their deadline. A numerical failure is one of all
/// ranks, which then end in order.
pub(super) fn abandon(world: &World, failure: &Failure) {
    if failure.code != ExitCode::Numerical {
        world.collective.abandon(&failure.to_string());
    }
}

/// Closes communication after the run, and returns whether that succeeded; if not, it logs a
/// warning. The result of the run is already recorded and reported, so the exit code does not
/// change.
pub(super) fn close(world: World) -> bool {
    warn_unless_closed(world.collective.close())
}

/// Whether communication was closed; if not, it logs a warning.
pub(super) fn warn_unless_closed(closed: Result<(), collectives::Error>) -> bool {
    if let Err(error) = &closed {
        tracing::warn!(
            "the run is over, but communication could not be closed: {error}; the result is valid, \
             although the launcher may report a failure"
        );
    }
    closed.is_ok()
}

/// Joins the other ranks.
pub(super) fn open_world(config: &Config) -> Outcome<World> {
    let settings = &config.settings;
    let timeout = settings.collectives.deadline;
    let options = bootstrap::Options {
        backend: settings.collectives.backend,
        timeout,
        close_timeout: close_timeout(config),
        threads: Some(settings.run.threads).filter(|&threads| threads > 0),
    };
    bootstrap::open(&options).map_err(|error| {
        let is_peer = error.is_peer_failure();
        let code = if is_peer { ExitCode::PeerLost } else { ExitCode::Environment };
        Failure::new(code, error)
    })
}

/// How long leaving waits for ranks that still write their files.
pub(super) fn close_timeout(config: &Config) -> Duration {
    let settings = &config.settings;
    settings.collectives.deadline.max(settings.checkpoint.deadline)
}

/// Starts the compute threads of this rank; the training thread is one of them.
pub(super) fn thread_pool(plan: &ThreadPlan) -> Outcome<rayon::ThreadPool> {
    let bound = plan.clone();
    rayon::ThreadPoolBuilder::new()
        .num_threads(plan.threads)
        .thread_name(|index| format!("compute-{index}"))
        .start_handler(move |_| {
            if let Err(error) = bound.bind() {
                tracing::warn!("threads are not bound to cores: {error}");
            }
        })
        .build()
        .map_err(|error| Failure::new(ExitCode::Internal, error))
}

#[cfg(test)]
mod tests {
    use launch::allowed_cores;

    use super::*;

    #[test]
    fn compute_threads_are_bound_only_to_exclusive_cores() {
        let allowed = allowed_cores();
        for exclusive in [false, true] {
            let cores = vec![allowed[0]];
            let pool = thread_pool(&ThreadPlan { threads: 1, cores, exclusive }).unwrap();
            let expected = if exclusive { &allowed[..1] } else { &allowed };
            assert_eq!(pool.install(allowed_cores), expected, "exclusive: {exclusive}");
        }
    }
}
