//! Elements on their way from the host to a device.

use super::Error;
use super::device::Cuda;
use super::event::Event;
use super::memory;
use super::page_locked::PageLocked;
use crate::{Element, ViewMut};

/// Elements of the host that are copied to a device while the host continues: they are not touched
/// again before they have been read.
#[derive(Debug)]
pub struct Staging<E: Element> {
    host: PageLocked<E>,
    /// Recorded behind the last copy.
    read: Event,
    device: Cuda,
}

impl<E: Element> Staging<E> {
    /// `len` zeros.
    ///
    /// # Errors
    /// Those of the driver, which may find no memory.
    pub fn new(device: &Cuda, len: usize) -> Result<Self, Error> {
        let host = PageLocked::zeros(device, len)?;
        Ok(Self { host, read: Event::new(device)?, device: device.clone() })
    }

    /// Waits until the last copy has been read, lets `fill` write new elements, and starts to copy
    /// the first of them to `to`.
    ///
    /// # Errors
    /// Those of earlier work on the device.
    ///
    /// # Panics
    /// Panics if `to` is longer.
    pub fn send(&mut self, to: ViewMut<'_, E>, fill: impl FnOnce(&mut [E])) -> Result<(), Error> {
        self.read.wait()?;
        let elements = self.host.elements();
        fill(elements);
        let sent = &elements[..to.len()];
        memory::copy_from_host(&self.device, to, sent)?;
        self.read.record(self.device.compute())
    }
}

impl<E: Element> Drop for Staging<E> {
    fn drop(&mut self) {
        let _ = self.read.wait();
    }
}
