//! Failures of operations on a device: their cause, the operation to blame, and the error.

use std::sync::MutexGuard;
use std::time::Duration;

use device::cuda;
use device::cuda::nccl::Status;

use super::queue::{DeviceQueue, State};
use super::route::{LineIndex, Route};
use super::{NAME, roll_call};
use crate::core::outstanding::Job;
use crate::{Error, Position};

/// Cause of a failed operation.
#[derive(Debug)]
pub(super) enum Cause {
    Deadline {
        /// The line that did not take it, if it was not even launched.
        line: Option<LineIndex>,
        waited: Duration,
    },
    Status {
        line: LineIndex,
        status: Status,
    },
    Device(cuda::Error),
}

impl From<cuda::Error> for Cause {
    fn from(error: cuda::Error) -> Self {
        Self::Device(error)
    }
}

/// An operation that fails.
pub(super) struct Failing {
    job: Job,
    position: Option<Position>,
    /// The line in which it fails, if that is known.
    line: Option<LineIndex>,
    cause: Cause,
}

impl Failing {
    pub(super) fn new(job: Job, cause: impl Into<Cause>) -> Self {
        let cause = cause.into();
        let line = match cause {
            Cause::Deadline { line, .. } => line,
            Cause::Status { line, .. } => Some(line),
            Cause::Device(_) => None,
        };
        Self { job, position: None, line, cause }
    }

    /// The operation that keeps an awaited one: the first in the stream that is not over.
    pub(super) fn behind(state: &State, awaited: Job, cause: Cause) -> Self {
        let failing = Self::new(awaited, cause);
        let operations = &state.operations;
        let Some(slot) = operations.oldest_unfinished() else { return failing };
        let entry = operations.entry(slot);
        let job = entry.job();
        let dimension = state.group(job).membership.plan.dimension;
        let stages = || state.group(job).route.stages(job.operation, job.buffer);
        let line = failing.line.or_else(|| Some(stages().nth(entry.stages_over())?.line));
        Self { job, position: operations.position(slot, dimension), line, ..failing }
    }
}

impl DeviceQueue {
    /// Kills the backend, and returns the error to report: that of a stop, if one is the cause.
    pub(super) fn fail(&self, mut state: MutexGuard<'_, State>, failing: Failing) -> Error {
        if let Some(stopped) = self.stopped() {
            state.die(&stopped.to_string());
            state.abort();
            return stopped;
        }
        let Failing { job, position, line, cause } = failing;
        let group = state.group(job).clone();
        let line = line.and_then(|line| state.lines.get(line));
        let name = match (group.route, line) {
            (Route::Grid { .. }, Some(line)) => line.name.clone(),
            _ => group.membership.named(),
        };
        let text = match (&cause, line) {
            (Cause::Deadline { .. }, _) => "it was not over in time".to_owned(),
            (Cause::Device(error), _) => error.to_string(),
            (Cause::Status { status, .. }, Some(line)) => line.communicator.failure(*status),
            (Cause::Status { status, .. }, None) => format!("{status:?}"),
        };
        let operation = job.operation.in_world(&group.membership.plan.ranks);
        let rank = self.rank;
        let place = name.as_ref().map_or_else(String::new, |name| format!(" in {name}"));
        state.die(&format!("{operation}{place}: {text}"));
        let all = state.groups[0].clone();
        drop(state);
        if let Cause::Device(error) = cause {
            self.lock().abort();
            return Error::Device { operation, group: name, rank, source: Box::new(error) };
        }
        // Before the abort, which takes a second on some ranks and nothing on others.
        // Over all ranks, as others may wait in other groups.
        let peers = roll_call::silent_peers(&*all.control);
        let peers = peers.into_iter().map(|peer| all.membership.plan.ranks[peer]).collect();
        self.lock().abort();
        match cause {
            Cause::Deadline { waited, .. } => Error::Deadline {
                operation,
                group: name,
                position,
                rank,
                waited,
                bytes: job.bytes,
                backend: NAME,
                peers,
            },
            Cause::Status { status: Status::REMOTE_ERROR, .. } => {
                Error::PeerLost { operation, group: name, position, rank, text, peers }
            }
            _ => {
                let operation = operation.to_string();
                Error::Nccl { operation, group: name, position, rank, text, peers }
            }
        }
    }
}
