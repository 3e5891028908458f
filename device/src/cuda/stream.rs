//! Streams: orders of work on a device.
#![allow(unsafe_code)] // calls the driver

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUstream, CUstream_flags};

use super::Error;
use super::context::Context;
use super::error::{DriverCall, DriverStatus};

/// An order of work on a device, without regard to other streams.
#[derive(Debug)]
pub struct Stream {
    pub(super) handle: CUstream,
    context: Arc<Context>,
}

// SAFETY: a stream belongs to no thread.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver's functions may be called by several threads at a time.
unsafe impl Sync for Stream {}

/// Order in which the device takes work of several streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    Ordinary,
    /// Before that of other streams.
    Urgent,
}

impl Stream {
    pub(super) fn new(context: &Arc<Context>, priority: Priority) -> Result<Self, DriverStatus> {
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // The driver moves a number outside of its range to the nearest; the lowest goes first.
        let priority: c_int = match priority {
            Priority::Ordinary => 0,
            Priority::Urgent => c_int::MIN,
        };
        let mut handle = ptr::null_mut();
        context.call(|driver| {
            // SAFETY: it writes one pointer.
            unsafe { (driver.cuStreamCreateWithPriority)(&raw mut handle, flags, priority) }
        })?;
        Ok(Self { handle, context: Arc::clone(context) })
    }

    /// The driver's handle, for calls of libraries.
    pub fn handle(&self) -> *mut c_void {
        self.handle.cast()
    }

    /// Waits until all work of the stream is done.
    ///
    /// # Errors
    /// Those of that work.
    pub fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: this owns the stream.
        let waited =
            self.context.call(|driver| unsafe { (driver.cuStreamSynchronize)(self.handle) });
        waited.during("waiting for the device")
    }
}

impl Drop for Stream {
    /// The driver frees the stream once its work is done.
    fn drop(&mut self) {
        // SAFETY: this owns the stream.
        let _ = self.context.call(|driver| unsafe { (driver.cuStreamDestroy_v2)(self.handle) });
    }
}
