//! Ring of staging memory between the thread that copies a rank's state and the one that writes it.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
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

/// Memory of a fixed size. Nothing is allocated by a save.
#[derive(Debug)]
pub struct Staging {
    free: Receiver<DeviceBuffer<u8>>,
    returned: SyncSender<DeviceBuffer<u8>>,
    pieces: usize,
}

/// A piece with the next bytes of the state.
#[derive(Debug)]
pub(super) struct Filled {
    piece: DeviceBuffer<u8>,
    len: usize,
}

impl Staging {
    /// Memory for `bytes`, in whole pieces; at least two. State that fits is copied without waiting
    /// for storage.
    #[allow(clippy::missing_panics_doc, reason = "the receiver is in this function")]
    pub fn new(bytes: u64, allocator: &Allocator) -> Self {
        let pieces = bytes.div_ceil(PIECE_BYTES as u64).max(2) as usize;
        let (returned, free) = sync_channel(pieces);
        for _ in 0..pieces {
            let piece = allocator.for_purpose(STAGING).zeros::<u8>(PIECE_BYTES);
            // Written at once: its pages would otherwise be made during a save.
            let piece = piece.filled(|bytes| bytes.fill(0));
            returned.send(piece).expect("the receiver is here");
        }
        Self { free, returned, pieces }
    }

    /// Number of pieces.
    pub(super) fn pieces(&self) -> usize {
        self.pieces
    }

    /// Takes a piece out, for other bytes than the state's, while no ring uses them.
    ///
    /// # Panics
    /// When all pieces are taken.
    pub(super) fn take_piece(&mut self) -> DeviceBuffer<u8> {
        self.free.try_recv().expect("as many pieces as the ring has")
    }

    /// Puts a piece back that was taken out.
    pub(super) fn put_back(&self, piece: DeviceBuffer<u8>) {
        self.returned.try_send(piece).expect("the ring has room for all of its pieces");
    }

    /// Returns both ends of the ring for one save.
    pub(super) fn ring(&mut self) -> (Copier<'_>, Staged<'_>) {
        let (filled, received) = sync_channel(self.pieces);
        let copier = Copier { free: &mut self.free, filled, current: None };
        (copier, Staged { received, returned: &self.returned, current: None })
    }
}

/// Copies bytes into free pieces.
#[derive(Debug)]
pub(super) struct Copier<'a> {
    free: &'a mut Receiver<DeviceBuffer<u8>>,
    filled: SyncSender<Filled>,
    current: Option<Filled>,
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
            let Some(filled) = self.piece(progress) else { return Ok(false) };
            let len = (size_bytes - start).min(PIECE_BYTES - filled.len);
            state.read(index, start, &mut filled.piece.host_mut()[filled.len..][..len])?;
            filled.len += len;
            start += len;
            if filled.len == PIECE_BYTES {
                self.flush();
            }
        }
        Ok(true)
    }

    /// Hands over the piece that is partly filled. Its receiver is there until all copying ends.
    fn flush(&mut self) {
        drop(self.current.take().map(|filled| self.filled.send(filled)));
    }

    /// The piece that is being filled.
    fn piece(&mut self, progress: &Progress) -> Option<&mut Filled> {
        if self.current.is_none() {
            let piece = loop {
                if progress.is_aborted() {
                    return None;
                }
                match self.free.recv_timeout(ABORT_POLL) {
                    Ok(piece) => break piece,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return None,
                }
            };
            self.current = Some(Filled { piece, len: 0 });
        }
        self.current.as_mut()
    }
}

impl Drop for Copier<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// The pieces in the order in which they were filled. Each is free again when its bytes were taken.
#[derive(Debug)]
pub(super) struct Staged<'a> {
    received: Receiver<Filled>,
    returned: &'a SyncSender<DeviceBuffer<u8>>,
    current: Option<Reading>,
}

#[derive(Debug)]
struct Reading {
    filled: Filled,
    position: usize,
}

impl ByteSource for Staged<'_> {
    fn take(&mut self, mut bytes: usize, write: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        while bytes > 0 {
            let mut reading = match self.current.take() {
                Some(reading) => reading,
                None => {
                    let filled = self.received.recv().map_err(|_| Error::SnapshotAborted)?;
                    Reading { filled, position: 0 }
                }
            };
            let Reading { filled: Filled { piece, len }, position } = &mut reading;
            let end = (*position + bytes).min(*len);
            let written = write(&piece.host()[*position..end]);
            bytes -= end - *position;
            *position = end;
            if end == *len || written.is_err() {
                self.give_back(reading.filled.piece);
            } else {
                self.current = Some(reading);
            }
            written?;
        }
        Ok(())
    }
}

impl Staged<'_> {
    /// Returns all pieces, when nothing more is read of them. Waits until the copier has ended.
    pub(super) fn recycle(mut self) {
        let current = self.current.take().map(|reading| reading.filled);
        for filled in current.into_iter().chain(self.received.iter()) {
            self.give_back(filled.piece);
        }
    }

    fn give_back(&self, piece: DeviceBuffer<u8>) {
        self.returned.try_send(piece).expect("the ring has room for all of its pieces");
    }
}
