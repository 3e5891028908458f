//! Checkpoints that retention leaves alone while something still reads them.

use std::sync::{Arc, MutexGuard, PoisonError};

use crate::format::name::CheckpointName;
use crate::store::Store;

/// Keeps this process from removing a checkpoint for its age, until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    store: Arc<Store>,
    name: CheckpointName,
}

impl Held {
    pub(crate) fn new(store: &Arc<Store>, name: CheckpointName) -> Self {
        store.held().push(name.clone());
        Self { store: Arc::clone(store), name }
    }

    pub(crate) fn name(&self) -> &CheckpointName {
        &self.name
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.store.held();
        if let Some(position) = held.iter().position(|name| *name == self.name) {
            held.swap_remove(position);
        }
    }
}

impl Store {
    /// Keeps this process from removing a checkpoint, for ever.
    pub(crate) fn hold(&self, name: &CheckpointName) {
        self.held().push(name.clone());
    }

    pub(super) fn is_held(&self, name: &CheckpointName) -> bool {
        self.held().contains(name)
    }

    fn held(&self) -> MutexGuard<'_, Vec<CheckpointName>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
