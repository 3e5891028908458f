//! Joining and leaving the other ranks, and the start of compute threads.

use std::io;
use std::time::Duration;

use device::{cuda, threads};
use launch::bootstrap::{self, World};
use launch::{NumaNode, Placement, ThreadPlan};

use crate::config::{self, Config};
use crate::failure::{Failure, Outcome};
use record::ExitCode;

/// Aborts communication after a failure. A rank that fails by itself must not wait for the other
/// ranks, which learn of it from the launcher or by their deadline. A numerical failure is one of
/// all ranks, which then end in order.
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

/// Returns whether communication was closed; if not, it logs a warning.
pub(super) fn warn_unless_closed(closed: Result<(), collectives::Error>) -> bool {
    if let Err(error) = &closed {
        tracing::warn!(
            "the run is over, but communication could not be closed: {error}; the result is valid, \
             although the launcher may report a failure"
        );
    }
    closed.is_ok()
}

/// Joins the other ranks, and chooses the cores of compute threads: near the GPU if one computes.
pub(super) fn open_world(config: &Config) -> Outcome<World> {
    let settings = &config.settings;
    let timeout = settings.collectives.deadline;
    let options = bootstrap::Options {
        backend: settings.collectives.backend,
        timeout,
        close_timeout: close_timeout(config),
        threads: Some(settings.run.threads).filter(|&threads| threads > 0),
    };
    let open = || {
        let mut world = bootstrap::open(&options)?;
        // On every rank, also if the configurations of ranks differ, which is checked later.
        let has_gpu = settings.run.device == config::Device::Cuda;
        let node = has_gpu.then(|| gpu_node(&world.placement)).flatten();
        world.choose_cores_near(node.as_ref(), &options)?;
        Ok(world)
    };
    open().map_err(|error: launch::Error| {
        let is_peer = error.is_peer_failure();
        let code = if is_peer { ExitCode::PeerLost } else { ExitCode::Environment };
        Failure::new(code, error)
    })
}

/// Returns the NUMA node of this rank's GPU; `None` if it is not known, or there is no GPU, which
/// is reported when the GPU is opened.
fn gpu_node(placement: &Placement) -> Option<NumaNode> {
    let devices = cuda::devices().ok()?;
    let gpu = &devices[gpu_ordinal(placement, devices.len())];
    NumaNode::of_pci_device(&gpu.pci_bus_id)
}

/// Returns which of the visible GPUs is this rank's: each rank of a node takes the next one.
pub(super) fn gpu_ordinal(placement: &Placement, gpus: usize) -> usize {
    placement.local_rank % gpus
}

/// Returns how long leaving waits for ranks that still write their files.
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
        .map_err(|error| {
            let purpose = format!("computing, one of {}", plan.threads);
            threads::Error::new(purpose, io::Error::other(error)).into()
        })
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
            let plan = ThreadPlan { threads: 1, cores, exclusive, numa_node: None };
            let pool = thread_pool(&plan).unwrap();
            let expected = if exclusive { &allowed[..1] } else { &allowed };
            assert_eq!(pool.install(allowed_cores), expected, "exclusive: {exclusive}");
        }
    }
}
