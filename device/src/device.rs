//! The device that a rank computes on.

use std::time::{Duration, Instant};

use crate::cuda::{Cuda, Error, Event};
use crate::{Allocator, Element, View, ViewMut};

/// The device that a rank computes on. A handle: clones are the same device.
#[derive(Debug, Clone)]
pub enum Device {
    /// The processor, in the host's memory.
    Host,
    /// A CUDA device.
    Cuda(Cuda),
}

impl Device {
    /// An allocator of its memory.
    pub fn allocator(&self) -> Allocator {
        match self {
            Self::Host => Allocator::host(),
            Self::Cuda(device) => Allocator::cuda(device),
        }
    }

    /// Returns the time of work on the device: on CUDA that between two events around it, for which
    /// the host waits.
    ///
    /// # Errors
    /// Those of the work.
    pub fn time<E: From<Error>>(
        &self,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Duration, E> {
        match self {
            Self::Host => {
                let start = Instant::now();
                work()?;
                Ok(start.elapsed())
            }
            Self::Cuda(device) => {
                let start = Event::new(device)?;
                let end = Event::new(device)?;
                start.record(device.compute())?;
                work()?;
                end.record(device.compute())?;
                Ok(Duration::from_nanos(start.elapsed_ns(&end)?))
            }
        }
    }

    /// Waits until all work that was started on the device is done.
    ///
    /// # Errors
    /// Those of that work.
    pub fn synchronize(&self) -> Result<(), Error> {
        match self {
            Self::Host => Ok(()),
            Self::Cuda(device) => device.synchronize(),
        }
    }

    /// Copies elements of the device to the host, after all work that was started before, and
    /// waits for them.
    ///
    /// # Errors
    /// Those of that work.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn read<E: Element>(&self, elements: View<'_, E>, host: &mut [E]) -> Result<(), Error> {
        match self {
            Self::Host => {
                host.copy_from_slice(elements.host());
                Ok(())
            }
            Self::Cuda(device) => device.read(elements, host),
        }
    }

    /// Copies elements within the device's memory; on CUDA in the order of its compute stream.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn copy<E: Element>(&self, to: ViewMut<'_, E>, from: View<'_, E>) -> Result<(), Error> {
        match self {
            Self::Host => {
                to.host().copy_from_slice(from.host());
                Ok(())
            }
            Self::Cuda(device) => device.copy(to, from),
        }
    }

    /// Copies elements of the host to the device.
    ///
    /// # Errors
    /// Those of work that was started before.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn write<E: Element>(&self, elements: ViewMut<'_, E>, host: &[E]) -> Result<(), Error> {
        match self {
            Self::Host => {
                elements.host().copy_from_slice(host);
                Ok(())
            }
            Self::Cuda(device) => device.write(elements, host),
        }
    }
}
