//! How this process joins the other ranks and leaves them, and gets its compute threads.

use std::time::Duration;

use launch::bootstrap::{self, World};
use launch::threads::ThreadPlan;

use crate::config::Config;
use crate::failure::{ExitCode, Failure, Outcome};

/// A rank that fails for a reason of its own must not wait for the others on its way out; they
/// learn of it by the launcher or their deadline. A numerical failure is everybody's.
pub(crate) fn leave(world: &World, failure: &Failure) {
    if failure.code != ExitCode::Numerical {
        world.collective.abandon(&failure.to_string());
    }
}

/// A rank whose run is over parts from the others in order, or warns. Says which. What the run came
/// to is on disk and told, so that this changes no exit code.
pub(crate) fn part(world: World) -> bool {
    let parted = world.collective.close();
    if let Err(error) = &parted {
        let rest = "its end stands, though the launcher may call it failed";
        tracing::warn!("the run is over, but ranks did not part in order: {error}; {rest}");
    }
    parted.is_ok()
}

pub(crate) fn open_world(config: &Config) -> Outcome<World> {
    let settings = &config.settings.collectives;
    let backend = settings.backend;
    let deadline = Duration::from_secs_f64(settings.deadline_s);
    let closing = deadline.max(Duration::from_secs_f64(config.settings.checkpoint.deadline_s));
    let threads = Some(config.settings.run.threads).filter(|&threads| threads > 0);
    let options = bootstrap::Options { backend, deadline, closing, threads };
    bootstrap::open(&options).map_err(|error| {
        let peers = error.is_peer_failure();
        let code = if peers { ExitCode::PeerLost } else { ExitCode::Environment };
        Failure::new(code, error)
    })
}

/// The compute threads of this rank; the training thread is one of them.
pub(crate) fn thread_pool(plan: &ThreadPlan) -> Outcome<rayon::ThreadPool> {
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
    use launch::threads::allowed_cores;

    use super::*;

    #[test]
    fn compute_threads_are_bound_only_to_cores_of_their_own() {
        let allowed = allowed_cores();
        for exclusive in [false, true] {
            let cores = vec![allowed[0]];
            let pool = thread_pool(&ThreadPlan { threads: 1, cores, exclusive }).unwrap();
            let expected = if exclusive { &allowed[..1] } else { &allowed };
            assert_eq!(pool.install(allowed_cores), expected, "exclusive: {exclusive}");
        }
    }
}
