//! Removes old checkpoints on a background thread of rank 0, so that no step waits for a file
//! system that is slow to delete.

use std::sync::Arc;
use std::thread::JoinHandle;

use checkpoint::{RetentionReport, Store};

use crate::fault_injection::Injector;

/// The background thread, if it is running.
#[derive(Debug, Default)]
pub(crate) struct Retention {
    thread: Option<JoinHandle<RetentionReport>>,
}

impl Retention {
    /// Starts removing all but the newest `keep` checkpoints. An earlier removal must have
    /// finished.
    pub(super) fn start(
        &mut self,
        store: &Arc<Store>,
        attempt: u64,
        keep: usize,
        injector: &Injector,
    ) {
        let store = Arc::clone(store);
        let injector = injector.clone();
        let remove = move || store.apply_retention(attempt, keep, &injector);
        match std::thread::Builder::new().name("retention".to_owned()).spawn(remove) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => {
                tracing::warn!("old checkpoints are not removed before the next save: {error}");
            }
        }
    }

    /// Lets the thread run without waiting for it.
    pub(super) fn detach(&mut self) {
        self.thread = None;
    }

    /// Waits for the thread and returns its warnings.
    pub(super) fn finish(&mut self) -> Vec<String> {
        // A panic would have ended the process.
        let report = self.thread.take().and_then(|thread| thread.join().ok());
        report.unwrap_or_default().warnings
    }
}
