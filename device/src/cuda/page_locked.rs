//! Page-locked memory of the host, which a device copies to and from on its own.
#![allow(unsafe_code)] // memory of the driver as slices

use std::ptr::{self, NonNull};
use std::slice;

use super::Error;
use super::device::Cuda;
use super::error::DriverCall;
use crate::Element;

/// Elements in page-locked memory. Who gives them to a copy waits for its end before touching them.
#[derive(Debug)]
pub(super) struct PageLocked<E: Element> {
    start: NonNull<E>,
    len: usize,
    device: Cuda,
}

// SAFETY: it owns its memory like a `Vec<E>`.
unsafe impl<E: Element> Send for PageLocked<E> {}

impl<E: Element> PageLocked<E> {
    /// `len` zeros.
    pub(super) fn zeros(device: &Cuda, len: usize) -> Result<Self, Error> {
        let bytes = (len * size_of::<E>()).max(1);
        let no_flags = 0;
        let mut start = ptr::null_mut();
        let allocated = device.context().call(|driver| {
            // SAFETY: it writes the address of a new block, owned from here on.
            unsafe { (driver.cuMemHostAlloc)(&raw mut start, bytes, no_flags) }
        });
        allocated.during("page-locking memory")?;
        let start = NonNull::new(start.cast::<E>()).expect("the driver's memory has an address");
        // SAFETY: the block has so many bytes; all zeros are a value of every element.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { start, len, device: device.clone() })
    }

    /// The elements.
    pub(super) fn elements(&mut self) -> &mut [E] {
        // SAFETY: owned and initialized memory of this length.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<E: Element> Drop for PageLocked<E> {
    fn drop(&mut self) {
        let start = self.start.as_ptr().cast();
        // SAFETY: this owns the block, and its owner has waited for copies.
        let _ = self.device.context().call(|driver| unsafe { (driver.cuMemFreeHost)(start) });
    }
}
