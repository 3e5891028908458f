//! The state of a rank while a checkpoint copies it: training goes on, but may not change it.
#![allow(unsafe_code)] // a thread reads what the next update, which waits for it, will write

use std::borrow::Cow;
use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use checkpoint::{Frozen, Snapshot};

use super::state::StateBuffers;

/// A box of a checkpoint, as a range of one of a state's buffers.
#[derive(Debug, Clone)]
pub(crate) struct SavedRange {
    /// Position of the buffer in [`StateBuffers::buffers`].
    pub(crate) buffer: usize,
    /// Elements of it.
    pub(crate) elements: Range<usize>,
}

/// What a checkpoint saves of a state, which does not change while this exists.
#[derive(Debug)]
pub(super) struct FrozenState {
    buffers: [Buffer; 3],
    ranges: Arc<[SavedRange]>,
    _gate: Gate,
}

#[derive(Debug)]
enum Buffer {
    /// In the state itself.
    Lent(*const f32),
    /// A copy of a device's memory.
    Copied(Vec<f32>),
}

// SAFETY: a lent buffer is only read, and its owner waits for the gate before it changes or frees
// what the ranges cover.
unsafe impl Send for FrozenState {}

/// As long as a clone of it exists, the state is lent.
type Gate = Arc<()>;

/// A state that was lent.
#[derive(Debug)]
pub(super) struct Lent {
    gate: Gate,
    snapshot: Option<Snapshot>,
}

impl Lent {
    /// Lends the ranges of a state.
    pub(super) fn new(state: StateBuffers<'_>, ranges: Arc<[SavedRange]>) -> (Self, FrozenState) {
        let gate = Gate::default();
        let buffers = state.buffers.map(|buffer| match buffer.elements {
            Cow::Borrowed(elements) => Buffer::Lent(elements.as_ptr()),
            Cow::Owned(elements) => Buffer::Copied(elements),
        });
        let frozen = FrozenState { buffers, ranges, _gate: Arc::clone(&gate) };
        (Self { gate, snapshot: None }, frozen)
    }

    /// Who copies it.
    pub(super) fn to(mut self, snapshot: Snapshot) -> Self {
        self.snapshot = Some(snapshot);
        self
    }

    /// Waits until the state is not lent any more. After the timeout the copy is aborted, which
    /// fails the save.
    pub(super) fn take_back(mut self, timeout: Duration) {
        if let Some(snapshot) = &self.snapshot {
            snapshot.wait(Instant::now() + timeout);
        }
        // The copy has dropped its state before it told that it has ended.
        while Arc::get_mut(&mut self.gate).is_none() {
            std::thread::yield_now();
        }
    }
}

impl Frozen for FrozenState {
    fn part(&self, index: usize) -> &[u8] {
        let SavedRange { buffer, elements } = &self.ranges[index];
        let elements = match &self.buffers[*buffer] {
            Buffer::Copied(buffer) => &buffer[elements.clone()],
            // SAFETY: a range of the buffer, which is neither written nor freed while the gate is
            // held: `State` takes it back before both.
            Buffer::Lent(start) => unsafe {
                slice::from_raw_parts(start.add(elements.start), elements.len())
            },
        };
        bytemuck::cast_slice(elements)
    }
}
