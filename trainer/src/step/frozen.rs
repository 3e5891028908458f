//! State of a rank that a checkpoint copies: training continues, but may not change it.
#![allow(unsafe_code)] // a thread reads what the next update, which waits for it, will write

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use checkpoint::{Frozen, Snapshot};
use device::View;
use device::cuda::Downloads;

use super::state::StateBuffer;

/// Box of a checkpoint, as a range of one of a state's buffers.
#[derive(Debug, Clone)]
pub(crate) struct SavedRange {
    /// Position of the buffer among those of the state.
    pub(crate) buffer: usize,
    /// Range of elements in the buffer.
    pub(crate) elements: Range<usize>,
}

/// Copies of a state that is on a device.
pub(super) type SharedDownloads = Arc<Mutex<Downloads>>;

/// State that a checkpoint saves, which does not change while this exists.
#[derive(Debug)]
pub(super) struct FrozenState {
    buffers: [View<'static, f32>; 3],
    ranges: Arc<[SavedRange]>,
    downloads: Option<SharedDownloads>,
    _gate: Gate,
}

/// Gate of a lent state, which is lent as long as a clone of the gate exists.
type Gate = Arc<()>;

/// State that was lent.
#[derive(Debug)]
pub(super) struct Lent {
    gate: Gate,
    snapshot: Option<Snapshot>,
}

impl Lent {
    /// Lends the ranges of a state. `downloads`, which has begun, copies a state that is on a
    /// device.
    pub(super) fn new(
        buffers: [StateBuffer<View<'_, f32>>; 3],
        ranges: Arc<[SavedRange]>,
        downloads: Option<SharedDownloads>,
    ) -> (Self, FrozenState) {
        let gate = Gate::default();
        // SAFETY: only used by the frozen state, which holds the gate: `State` waits for the gate
        // before it changes or frees its buffers.
        let buffers = buffers.map(|buffer| unsafe { buffer.elements.without_owner() });
        let frozen = FrozenState { buffers, ranges, downloads, _gate: Arc::clone(&gate) };
        (Self { gate, snapshot: None }, frozen)
    }

    /// Sets the snapshot that copies the state.
    pub(super) fn to(mut self, snapshot: Snapshot) -> Self {
        self.snapshot = Some(snapshot);
        self
    }

    /// Waits until the state is no longer lent. After the timeout the copy is aborted, which fails
    /// the save.
    pub(super) fn take_back(mut self, timeout: Duration) {
        if let Some(snapshot) = &self.snapshot {
            snapshot.wait(Instant::now() + timeout);
        }
        // The copy has dropped its state before it reported its end.
        while Arc::get_mut(&mut self.gate).is_none() {
            std::thread::yield_now();
        }
    }
}

impl Frozen for FrozenState {
    fn size_bytes(&self, index: usize) -> usize {
        self.ranges[index].elements.len() * size_of::<f32>()
    }

    fn read(&mut self, index: usize, start: usize, bytes: &mut [u8]) -> io::Result<()> {
        let SavedRange { buffer, elements } = &self.ranges[index];
        let first = elements.start + start / size_of::<f32>();
        let len = bytes.len() / size_of::<f32>();
        let elements = self.buffers[*buffer].slice(first..first + len);
        match &self.downloads {
            None => {
                bytes.copy_from_slice(bytemuck::cast_slice(elements.host()));
                Ok(())
            }
            Some(downloads) => {
                let mut downloads = downloads.lock().unwrap_or_else(PoisonError::into_inner);
                downloads.read(elements, bytes).map_err(io::Error::other)
            }
        }
    }
}
