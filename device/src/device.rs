//! The device that a rank computes on.

use crate::cuda::{Cuda, Error};
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
