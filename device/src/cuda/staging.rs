//! Page-locked memory of the host, which a device copies to and from on its own.
#![allow(unsafe_code)] // memory of the driver as slices

use std::ptr::NonNull;
use std::slice;

use cudarc::driver::result;

use super::Error;
use super::device::Cuda;
use super::error::DriverCall;
use super::event::Event;
use super::memory;
use crate::{Element, ViewMut};

/// Elements of the host that are copied to a device while the host goes on: they are not touched
/// again before they have been read.
#[derive(Debug)]
pub struct Staging<E: Element> {
    start: NonNull<E>,
    len: usize,
    /// Recorded behind the last copy.
    read: Event,
    device: Cuda,
}

// SAFETY: it owns its memory like a `Vec<E>`.
unsafe impl<E: Element> Send for Staging<E> {}

impl<E: Element> Staging<E> {
    /// `len` zeros.
    ///
    /// # Errors
    /// Those of the driver, which may find no memory.
    ///
    /// # Panics
    /// Never: the driver's memory has an address.
    pub fn new(device: &Cuda, len: usize) -> Result<Self, Error> {
        device.bind()?;
        let bytes = (len * size_of::<E>()).max(1);
        // SAFETY: a new block, owned from here on.
        let start = unsafe { result::malloc_host(bytes, 0) }.during("page-locking memory")?;
        let start = NonNull::new(start.cast::<E>()).expect("the driver's memory has an address");
        // SAFETY: the block has so many bytes; all zeros are a value of every element.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { start, len, read: Event::new(device)?, device: device.clone() })
    }

    /// Waits until the last copy has been read, lets `fill` write new elements, and starts to copy
    /// the first of them to `to`.
    ///
    /// # Errors
    /// Those of earlier work on the device.
    ///
    /// # Panics
    /// When `to` is longer.
    pub fn send(&mut self, to: ViewMut<'_, E>, fill: impl FnOnce(&mut [E])) -> Result<(), Error> {
        self.read.wait()?;
        // SAFETY: initialized memory of this length that no copy reads any more.
        let elements = unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) };
        fill(elements);
        let sent = &elements[..to.len()];
        memory::copy_from_host(&self.device, to, sent)?;
        self.read.record(self.device.compute())
    }
}

impl<E: Element> Drop for Staging<E> {
    fn drop(&mut self) {
        let _ = self.read.wait();
        if self.device.bind().is_ok() {
            // SAFETY: this owns the block, and no copy reads it any more.
            let _ = unsafe { result::free_host(self.start.as_ptr().cast()) };
        }
    }
}
