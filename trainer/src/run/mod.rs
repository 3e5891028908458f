//! `yardstick train`: from the options to the record and the exit code.

mod attempt;
mod folder;
mod nccl_log;
mod options;
mod process;
mod rank_backend;
mod recorder;
mod rendezvous;
mod session;
mod stop;
mod transports;

use std::mem::ManuallyDrop;

use launch::signals::SignalFlags;

pub(crate) use folder::Folder;
use nccl_log::NcclLog;
pub(crate) use options::RunOptions;
use session::Session;

use crate::failure::{ExitCode, Failure, Outcome};

/// How a process exits after a run that did not fail.
#[derive(Debug)]
pub(crate) struct Exit {
    /// Its exit code.
    pub(crate) code: ExitCode,
    /// Whether communication was closed; if not, a thread may be blocked in it.
    pub(crate) is_orderly: bool,
}

/// Trains, as a single process or as one of several ranks.
///
/// # Errors
/// The failure that ended the run, which rank 0 has recorded.
pub(crate) fn run(options: &RunOptions) -> Outcome<Exit> {
    let config = &options.config;
    let last_step = options.last_step()?;
    options.check_profile_step(last_step)?;
    // First, while this is the only thread.
    let nccl_log = NcclLog::prepare(config);
    let exit = run_ranks(options, &nccl_log, last_step);
    nccl_log.finish(exit.as_ref().err());
    exit
}

/// Joins the other ranks, trains with them, and leaves them.
fn run_ranks(options: &RunOptions, nccl_log: &NcclLog, last_step: u64) -> Outcome<Exit> {
    let signals =
        SignalFlags::install().map_err(|error| Failure::new(ExitCode::Internal, error))?;
    let world = process::open_world(&options.config)?;
    let train = || {
        // Not dropped after a failure: to free what a device or a network still uses may hang, and
        // the process ends now.
        let session =
            ManuallyDrop::new(Session::new(options, &world, &signals, nccl_log, last_step)?);
        let code = session.train()?;
        Ok((code, ManuallyDrop::into_inner(session).close()))
    };
    let trained = process::thread_pool(&world.threads).and_then(|pool| pool.install(train));
    match trained {
        Ok((code, is_closed)) => Ok(Exit { code, is_orderly: process::close(world) && is_closed }),
        Err(failure) => {
            process::abandon(&world, &failure);
            let rank = world.placement.rank;
            Err(Failure { rank: failure.failed_rank(rank), reported_by: Some(rank), ..failure })
        }
    }
}
