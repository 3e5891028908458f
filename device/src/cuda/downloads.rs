//! Copies from a device to the host, concurrent with the compute stream.

use std::fmt;
use std::sync::Arc;

use super::Error;
use super::device::Cuda;
use super::event::Event;
use super::memory;
use super::page_locked::PageLocked;
use super::stream::{Priority, Stream};
use crate::{Element, View};

/// Size of a piece: so large that its start does not count; the host copies one piece on while the
/// device sends the next.
const PIECE_BYTES: usize = 1 << 20;

/// Copies to the host on a stream of their own. Neither the compute stream nor the thread that
/// gives it work waits for them, so their source must not be changed before they have ended.
pub struct Downloads {
    stream: Arc<Stream>,
    /// Position of the compute stream when the copies began.
    begun: Event,
    pieces: [Piece; 2],
    device: Cuda,
}

struct Piece {
    host: PageLocked<u8>,
    /// Recorded behind the last copy to it.
    arrived: Event,
}

impl Downloads {
    /// Size of the page-locked memory for staging.
    pub const STAGING_BYTES: u64 = 2 * PIECE_BYTES as u64;

    /// Creates a stream and page-locked memory for the copies.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(device: &Cuda) -> Result<Self, Error> {
        let stream = device.new_stream(Priority::Ordinary)?;
        let piece = || {
            let host = PageLocked::zeros(device, PIECE_BYTES)?;
            Ok::<_, Error>(Piece { host, arrived: Event::new(device)? })
        };
        let pieces = [piece()?, piece()?];
        Ok(Self { stream, begun: Event::new(device)?, pieces, device: device.clone() })
    }

    /// Orders later reads behind all work that the compute stream has been given so far.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn begin(&self) -> Result<(), Error> {
        self.begun.record(self.device.compute())?;
        self.begun.join(&self.stream)
    }

    /// Copies the bytes of elements to the host, and waits for them.
    ///
    /// # Errors
    /// Those of the work before.
    ///
    /// # Panics
    /// Panics if `to` has another size.
    pub fn read<E: Element>(&mut self, from: View<'_, E>, to: &mut [u8]) -> Result<(), Error> {
        assert_eq!(to.len(), from.len() * size_of::<E>(), "as many bytes in both");
        let elements_max = PIECE_BYTES / size_of::<E>();
        let mut arriving: Option<Arriving> = None;
        for (number, first) in (0..from.len()).step_by(elements_max).enumerate() {
            let elements = first..from.len().min(first + elements_max);
            let next = Arriving {
                piece: number % self.pieces.len(),
                start: first * size_of::<E>(),
                len: elements.len() * size_of::<E>(),
            };
            self.start(next.piece, from.slice(elements))?;
            if let Some(before) = arriving.replace(next) {
                self.take(&before, to)?;
            }
        }
        arriving.map_or(Ok(()), |last| self.take(&last, to))
    }

    fn start<E: Element>(&mut self, piece: usize, from: View<'_, E>) -> Result<(), Error> {
        let Piece { host, arrived } = &mut self.pieces[piece];
        let bytes = from.len() * size_of::<E>();
        let host = &mut host.elements()[..bytes];
        memory::copy_bytes_to_host(&self.device, &self.stream, from, host)?;
        arrived.record(&self.stream)
    }

    fn take(&mut self, arriving: &Arriving, to: &mut [u8]) -> Result<(), Error> {
        let Arriving { piece, start, len } = *arriving;
        let Piece { host, arrived } = &mut self.pieces[piece];
        arrived.wait()?;
        to[start..start + len].copy_from_slice(&host.elements()[..len]);
        Ok(())
    }
}

/// Bytes that the device is sending to a piece.
#[derive(Debug, Clone, Copy)]
struct Arriving {
    piece: usize,
    /// Their place in what is read.
    start: usize,
    len: usize,
}

impl Drop for Downloads {
    fn drop(&mut self) {
        let _ = self.stream.synchronize(); // after an error a copy may still be in flight
    }
}

impl fmt::Debug for Downloads {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Downloads({:?})", self.device)
    }
}

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use crate::Allocator;

    /// More than the pieces, and no multiple of one.
    const LEN: usize = 3 * PIECE_BYTES + 1234;

    #[test]
    fn what_is_read_is_as_all_work_before_leaves_it() {
        let device = Cuda::open(0).unwrap();
        let mut buffer = Allocator::cuda(&device).zeros::<u8>(LEN);
        let mut downloads = Downloads::new(&device).unwrap();
        let written: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
        device.write(buffer.view_mut(), &written).unwrap();
        let mut read = vec![0; LEN];
        downloads.read(buffer.view(), &mut read).unwrap();
        assert!(read == written);
        for byte in 1..20 {
            device.fill(buffer.view_mut(), byte).unwrap();
            downloads.begin().unwrap();
            downloads.read(buffer.view(), &mut read).unwrap();
            assert!(read.iter().all(|read| *read == byte), "{byte}");
        }
    }

    /// The host may lose its core for longer than the work takes: some of many tries have to do.
    #[test]
    fn work_that_follows_is_not_waited_for() {
        let device = Cuda::open(0).unwrap();
        let allocator = Allocator::cuda(&device);
        let saved = allocator.zeros::<f32>(1000);
        let mut other = allocator.zeros::<u8>(64 << 20);
        let mut downloads = Downloads::new(&device).unwrap();
        let filled = Event::new(&device).unwrap();
        let mut read_beside_work = || {
            downloads.begin().unwrap();
            for byte in 0..100 {
                device.fill(other.view_mut(), byte).unwrap();
            }
            filled.record(device.compute()).unwrap();
            let mut read = vec![1; 4000];
            downloads.read(saved.view(), &mut read).unwrap();
            assert!(read.iter().all(|byte| *byte == 0));
            !filled.is_complete().unwrap()
        };
        assert!((0..10).any(|_| read_beside_work()));
    }
}
