//! Ring of staging memory between the thread that copies a rank's state and the one that writes it.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use device::{Allocator, DeviceBuffer};

use super::bytes::ByteSource;
use super::snapshot::{Frozen, Progress};
use crate::error::{Error, Result};

/// Name of [`Staging`] in a memory plan.
pub const STAGING: &str = "checkpoint staging";

/// Size of a piece: large enough for a disk, small enough that its digest finds it in a cache.
pub(super) const PIECE_BYTES: usize = 4 << 20;

/// Interval at which a copier that waits for a free piece checks whether the snapshot was aborted.
const ABORT_POLL: Duration = Duration::from_millis(5);

/// Memory of a fixed size, lent to one save at a time. Nothing is allocated by a save.
#[derive(Debug)]
pub struct Staging {
    ring: Arc<Ring>,
}

/// The memory on loan. Returned when this and all [pieces](Piece) are dropped, also by a thread
/// that ends late, panics or cannot be started.
#[derive(Debug)]
pub(super) struct Loan {
    ring: Arc<Ring>,
}

/// A piece of the memory with bytes in it. Dropped, it is free again.
#[derive(Debug)]
pub(super) struct Piece {
    /// `None` only while it is dropped.
    memory: Option<DeviceBuffer<u8>>,
    len: usize,
    ring: Arc<Ring>,
}

#[derive(Debug)]
struct Ring {
    pieces: usize,
    free: Mutex<Vec<DeviceBuffer<u8>>>,
    returned: Condvar,
}

impl Staging {
    /// Memory for `bytes`, in whole pieces; at least two. State that fits is copied without waiting
    /// for storage.
    pub fn new(bytes: u64, allocator: &Allocator) -> Self {
        let pieces = bytes.div_ceil(PIECE_BYTES as u64).max(2) as usize;
        let allocate = |_| {
            let piece = allocator.for_purpose(STAGING).zeros::<u8>(PIECE_BYTES);
            // Written at once: its pages would otherwise be made during a save.
            piece.filled(|bytes| bytes.fill(0))
        };
        let free = Mutex::new((0..pieces).map(allocate).collect());
        Self { ring: Arc::new(Ring { pieces, free, returned: Condvar::new() }) }
    }

    /// Lends the memory; `None` while an earlier loan, or a piece of it, is in use.
    pub(super) fn lend(&mut self) -> Option<Loan> {
        Arc::get_mut(&mut self.ring)?;
        Some(Loan { ring: Arc::clone(&self.ring) })
    }
}

impl Loan {
    /// Number of pieces.
    pub(super) fn pieces(&self) -> usize {
        self.ring.pieces
    }

    /// Takes a piece for `len` bytes.
    ///
    /// # Panics
    /// When no piece is free.
    pub(super) fn take_piece(&self, len: usize) -> Piece {
        let memory = self.ring.lock().pop();
        self.piece(memory.expect("as many pieces as the ring has"), len)
    }

    /// Returns both ends of the ring: the state is copied into one, and written from the other.
    pub(super) fn ring(&self) -> (Copier<'_>, Staged) {
        let (filled, received) = sync_channel(self.ring.pieces);
        (Copier { loan: self, filled, current: None }, Staged { received, current: None })
    }

    /// Waits for a free piece; `None` when the snapshot was aborted.
    fn await_piece(&self, progress: &Progress) -> Option<Piece> {
        let mut free = self.ring.lock();
        while !progress.is_aborted() {
            if let Some(memory) = free.pop() {
                return Some(self.piece(memory, 0));
            }
            let waited = self.ring.returned.wait_timeout(free, ABORT_POLL);
            free = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }

    fn piece(&self, memory: DeviceBuffer<u8>, len: usize) -> Piece {
        Piece { memory: Some(memory), len, ring: Arc::clone(&self.ring) }
    }
}

impl Piece {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory.as_ref().expect("not dropped").host()[..self.len]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory.as_mut().expect("not dropped").host_mut()[..self.len]
    }

    /// Returns the memory after its bytes, for so many more at most.
    fn spare(&mut self, bytes: usize) -> &mut [u8] {
        let end = PIECE_BYTES.min(self.len + bytes);
        &mut self.memory.as_mut().expect("not dropped").host_mut()[self.len..end]
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.ring.lock().extend(self.memory.take());
        self.ring.returned.notify_one();
    }
}

impl Ring {
    fn lock(&self) -> MutexGuard<'_, Vec<DeviceBuffer<u8>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Copies bytes into free pieces.
#[derive(Debug)]
pub(super) struct Copier<'a> {
    loan: &'a Loan,
    filled: SyncSender<Piece>,
    current: Option<Piece>,
}

impl Copier<'_> {
    /// Copies a box of a state; `false` when the snapshot was aborted.
    pub(super) fn copy(
        &mut self,
        state: &mut dyn Frozen,
        index: usize,
        progress: &Progress,
    ) -> io::Result<bool> {
        let size_bytes = state.size_bytes(index);
        let mut start = 0;
        while start < size_bytes {
            let piece = match self.current.take() {
                Some(piece) => piece,
                None => match self.loan.await_piece(progress) {
                    Some(piece) => piece,
                    None => return Ok(false),
                },
            };
            let piece = self.current.insert(piece);
            let spare = piece.spare(size_bytes - start);
            let len = spare.len();
            state.read(index, start, spare)?;
            piece.len += len;
            start += len;
            if piece.len == PIECE_BYTES {
                self.flush();
            }
        }
        Ok(true)
    }

    /// Hands over the piece that is partly filled; it is not needed where the receiver is gone.
    fn flush(&mut self) {
        drop(self.current.take().map(|piece| self.filled.send(piece)));
    }
}

impl Drop for Copier<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// The pieces in the order in which they were filled. Each is free again when its bytes were taken.
#[derive(Debug)]
pub(super) struct Staged {
    received: Receiver<Piece>,
    current: Option<Reading>,
}

#[derive(Debug)]
struct Reading {
    piece: Piece,
    position: usize,
}

impl ByteSource for Staged {
    fn take(&mut self, mut bytes: usize, write: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        while bytes > 0 {
            let mut reading = match self.current.take() {
                Some(reading) => reading,
                None => {
                    let piece = self.received.recv().map_err(|_| Error::SnapshotAborted)?;
                    Reading { piece, position: 0 }
                }
            };
            let Reading { piece, position } = &mut reading;
            let end = (*position + bytes).min(piece.len);
            write(&piece.bytes()[*position..end])?;
            bytes -= end - *position;
            *position = end;
            if end < piece.len {
                self.current = Some(reading);
            }
        }
        Ok(())
    }
}
