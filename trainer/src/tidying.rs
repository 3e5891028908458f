//! Old checkpoints are removed on a thread of rank 0's own: no step waits for a file system that
//! is slow to forget.

use std::sync::Arc;
use std::thread::JoinHandle;

use checkpoint::{Store, Tidied};

use crate::inject::Injector;

/// The removal that goes on, if any.
#[derive(Debug, Default)]
pub(crate) struct Tidying {
    thread: Option<JoinHandle<Tidied>>,
}

impl Tidying {
    /// Starts to remove what is older than the newest `keep` checkpoints. After [`Self::finish`].
    pub(crate) fn start(&mut self, store: &Arc<Store>, epoch: u64, keep: usize, faults: &Injector) {
        let (store, faults) = (Arc::clone(store), faults.clone());
        let tidy = move || store.tidy(epoch, keep, &faults);
        match std::thread::Builder::new().name("tidying".to_owned()).spawn(tidy) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => tracing::warn!("old checkpoints stay until the next save: {error}"),
        }
    }

    /// Nobody waits for the removal that goes on.
    pub(crate) fn leave(&mut self) {
        self.thread = None;
    }

    /// Waits for the removal and returns what went wrong in it.
    pub(crate) fn finish(&mut self) -> Vec<String> {
        // A panic in any thread has ended the process already.
        let tidied = self.thread.take().and_then(|thread| thread.join().ok());
        tidied.unwrap_or_default().warnings
    }
}
