//! Thread of a route: code that leaders and followers have in common.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::announcement::{Announcement, Stage};
use super::bandwidth::Bandwidth;
use super::state::{Pauses, Shared};
use super::{PromoterOptions, Route, Share};
use crate::error::Error;
use crate::failpoints::Failpoints;
use crate::format::manifest::{MANIFEST, Manifest};
use crate::format::name::CheckpointName;
use crate::restore::retry_while_absent;
use crate::retention::Held;
use crate::store::Store;

pub(super) struct Worker {
    pub(super) route: Route,
    pub(super) share: Share,
    pub(super) options: PromoterOptions,
    pub(super) shared: Arc<Shared>,
    pub(super) bandwidth: Arc<Bandwidth>,
    pub(super) failpoints: Arc<dyn Failpoints + Send + Sync>,
    /// Keys on the target of what this process has written or verified there, of the checkpoint
    /// that is being promoted.
    pub(super) intact: RefCell<BTreeSet<String>>,
}

/// A committed checkpoint on the source.
pub(super) struct Source {
    pub(super) name: CheckpointName,
    pub(super) manifest: Manifest,
    /// The manifest as it was published.
    pub(super) text: String,
}

/// Result of a part of a promotion.
pub(super) type Outcome<T = ()> = Result<T, CopyError>;

/// Reason why a promotion does not continue.
#[derive(Debug)]
pub(super) enum CopyError {
    /// The promoter is being dropped.
    Stopped,
    /// Another checkpoint is promoted now.
    Superseded,
    /// The checkpoint can never be promoted.
    Final(Error),
    /// The promotion may continue later.
    Retry(Error),
}

impl CopyError {
    /// Classifies an error of reading: damaged or missing files stay so.
    pub(super) fn of_read(error: impl Into<Error>) -> Self {
        match error.into() {
            error @ Error::Io(_) if !error.is_damage() => Self::Retry(error),
            error => Self::Final(error),
        }
    }

    /// Classifies an error of the target, which may recover.
    pub(super) fn of_target(error: impl Into<Error>) -> Self {
        Self::Retry(error.into())
    }
}

impl Worker {
    pub(super) fn run(self) {
        if self.share.is_leader() { self.lead() } else { self.follow() }
    }

    pub(super) fn from(&self) -> &Store {
        &self.route.from
    }

    pub(super) fn to(&self) -> &Store {
        &self.route.to
    }

    /// Reads the source's manifest; another node's view of a shared file system may lag the commit.
    pub(super) fn source(&self, name: &CheckpointName) -> Outcome<Source> {
        let from = self.from();
        let read = || from.read_manifest(name, MANIFEST);
        let found = retry_while_absent(from.visible_until(), read).map_err(CopyError::of_read)?;
        Ok(Source { name: name.clone(), manifest: found.value, text: found.text })
    }

    /// Starts with a checkpoint, of which nothing on the target is verified yet.
    pub(super) fn begin(&self, name: &CheckpointName) {
        self.intact.borrow_mut().clear();
        self.shared.begin(Held::new(&self.route.from, name.clone()));
    }

    pub(super) fn announcement(&self, name: &CheckpointName, stage: Stage) -> Announcement {
        Announcement { attempt: self.share.attempt, checkpoint: name.to_string(), stage }
    }

    /// Removes the files of a checkpoint that is given up, on a best-effort basis: the next commit
    /// removes what stays. One that may be committed after all is not touched.
    pub(super) fn discard(&self, name: &CheckpointName) {
        if !self.to().is_committed(name) {
            drop(self.to().discard(name));
        }
    }

    pub(super) fn pause(&self, duration: Duration) -> Outcome {
        if self.shared.pause(duration) { Ok(()) } else { Err(CopyError::Stopped) }
    }

    pub(super) fn retry_pauses(&self) -> Pauses {
        Pauses::new(self.options.retry_pause_min, self.options.retry_pause_max)
    }

    /// Waits until so many bytes may be sent.
    pub(super) fn throttle(&self, bytes: u64) -> Outcome {
        self.pause(self.bandwidth.take(bytes, Instant::now()))
    }

    pub(super) fn note_durable(&self, step: u64) {
        self.shared.update(|status| status.durable_step = status.durable_step.max(Some(step)));
    }

    pub(super) fn note_success(&self) {
        self.shared.succeeded();
    }
}
