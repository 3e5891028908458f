//! `yardstick train`: from the options to the record and the exit code.

mod attempt;
mod beginning;
mod calibration;
mod environment;
mod evidence;
mod folder;
mod nccl_log;
mod options;
mod peer_loss;
mod peers;
mod process;
mod rank_backend;
mod rendezvous;
mod session;
pub mod start_clock;
mod stop;
mod stop_request;
mod together;
mod tracing;
mod transports;
mod tuning;
mod watchdog;

use std::mem::ManuallyDrop;

use collectives::Collective;
use device::Device;
use launch::bootstrap::World;
use launch::signals::SignalFlags;

pub use evidence::RunEvidence;
pub use folder::{Folder, dated};
pub(crate) use nccl_log::NcclLog;
pub use options::RunOptions;
pub(crate) use peer_loss::WatchedBackends;
use rank_backend::RankBackend;
pub(crate) use rendezvous::identity_with_libraries;
use rendezvous::with_chosen_recompute;
use session::{Session, open_device};
use start_clock::StartClock;
use stop_request::StopPoint;
pub(crate) use transports::{Connected, Evidence, connect};

use crate::config::Config;
use crate::failure::{Failure, Outcome};
use record::ExitCode;
use telemetry::log_lines;

/// Exit of a process after a run that did not fail.
#[derive(Debug)]
pub struct Exit {
    /// Exit code of the process.
    pub code: ExitCode,
    /// Rank of the process.
    pub rank: usize,
    /// True if communication was closed; otherwise a thread may be blocked in it.
    pub is_orderly: bool,
}

/// Trains, as a single process or as one of several ranks. Several runs follow each other until a
/// run does not succeed; the options that they share are those of the first.
///
/// # Errors
/// The failure that ended the run, which rank 0 has recorded.
///
/// # Panics
/// If there is no run.
pub fn run(runs: &[RunOptions]) -> Outcome<Exit> {
    for options in runs {
        options.check_profile_step(options.last_step()?)?;
        options.check_trace_steps(options.last_step()?)?;
    }
    // First, while there is no other thread.
    let nccl_log = NcclLog::prepare(&runs[0].config);
    let exit = run_ranks(runs, &nccl_log);
    nccl_log.finish(exit.as_ref().err());
    exit
}

/// Joins the other ranks, runs `body` with them instead of training, and leaves them.
///
/// # Errors
/// Exit code 3 if something is missing here, 5 if a rank is; and those of `body`.
pub fn in_world(
    config: &Config,
    body: impl FnOnce(&World, &Device, &dyn Collective) -> Outcome<()> + Send,
) -> Outcome<Exit> {
    joined(config, |world, peer_loss| {
        let device = open_device(config, &world.placement)?;
        // Not dropped after a failure, as in a run.
        let backend = ManuallyDrop::new(RankBackend::open(config, world, &device, peer_loss)?);
        body(world, &device, backend.collective())?;
        let closed = ManuallyDrop::into_inner(backend).close(process::close_timeout(config));
        Ok(process::warn_unless_closed(closed))
    })
}

/// Joins and leaves the other ranks without a device. `body` returns whether everything that it
/// opened is closed.
///
/// # Errors
/// Those of [`in_world`].
pub(crate) fn joined(
    config: &Config,
    body: impl FnOnce(&World, &WatchedBackends) -> Outcome<bool> + Send,
) -> Outcome<Exit> {
    let signal = peer_loss::handle()?;
    let backends = WatchedBackends::default();
    let world = process::open_world(config)?;
    let rank = world.placement.rank;
    let worked = peer_loss::watched(signal, &*world.collective, &backends, || {
        let pool = process::thread_pool(&world.threads)?;
        pool.install(|| body(&world, &backends))
    });
    match worked {
        Ok(is_closed) => {
            let is_orderly = process::close(world) && is_closed;
            Ok(Exit { code: ExitCode::Done, rank, is_orderly })
        }
        Err(failure) => Err(left(&world, failure)),
    }
}

/// Leaves the other ranks after a failure.
fn left(world: &World, failure: Failure) -> Failure {
    process::abandon(world, &failure);
    let rank = world.placement.rank;
    Failure { rank: failure.failed_rank(rank), reported_by: Some(rank), ..failure }
}

/// Joins the other ranks, trains with them, and leaves them.
fn run_ranks(runs: &[RunOptions], nccl_log: &NcclLog) -> Outcome<Exit> {
    let stop_point = StopPoint::new();
    let reported = stop_point.clone();
    let signals = SignalFlags::install(move |signal| reported.report(signal))
        .map_err(|error| Failure::new(ExitCode::Internal, error))?;
    let peer_loss = peer_loss::handle()?;
    let backends = WatchedBackends::default();
    let mut start = StartClock::new();
    let world = process::open_world(&runs[0].config)?;
    log_lines::set_rank(world.placement.rank);
    start.bootstrapped();
    let mut train = || {
        let mut trained = (ExitCode::Done, true);
        for (number, options) in runs.iter().enumerate() {
            let options = &with_chosen_recompute(options, &world)?;
            // Not dropped after a failure: freeing memory that a device or a network still uses may
            // hang, and the process ends now.
            let session =
                Session::new(options, &world, &backends, &signals, &stop_point, nccl_log)?;
            let session = ManuallyDrop::new(session);
            let follows = number + 1 < runs.len();
            let mut code = session.train(start, follows)?;
            if follows && session.is_asked_to_stop()? {
                code = ExitCode::Stopped;
            }
            start = StartClock::again();
            let is_closed = ManuallyDrop::into_inner(session).close();
            trained = (code, trained.1 && is_closed);
            if code != ExitCode::Done {
                break;
            }
        }
        Ok(trained)
    };
    let trained = peer_loss::watched(peer_loss, &*world.collective, &backends, || {
        process::thread_pool(&world.threads).and_then(|pool| pool.install(&mut train))
    });
    match trained {
        Ok((code, is_closed)) => {
            let rank = world.placement.rank;
            Ok(Exit { code, rank, is_orderly: process::close(world) && is_closed })
        }
        Err(failure) => Err(left(&world, failure)),
    }
}
