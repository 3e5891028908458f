//! Points in the order of a stream.
#![allow(unsafe_code)] // calls the driver

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUevent_flags, CUevent_wait_flags, CUresult};

use super::context::Context;
use super::device::Cuda;
use super::driver::{Driver, Status};
use super::error::{DriverCall, DriverStatus};
use super::{Error, Stream};

/// A point in the order of a stream: everything that was started on it before. It can be recorded
/// again.
#[derive(Debug)]
pub struct Event {
    handle: CUevent,
    context: Arc<Context>,
}

// SAFETY: an event belongs to no thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver's functions may be called by several threads at a time.
unsafe impl Sync for Event {}

/// Status of a query for a point that the device has not passed.
const NOT_READY: Status = Status(CUresult::CUDA_ERROR_NOT_READY as c_int);

impl Event {
    /// An event that measures time, not recorded yet.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(device: &Cuda) -> Result<Self, Error> {
        let context = device.context();
        let flags = CUevent_flags::CU_EVENT_DEFAULT as u32;
        let mut handle = ptr::null_mut();
        // SAFETY: it writes one pointer.
        let made = context.call(|driver| unsafe { (driver.cuEventCreate)(&raw mut handle, flags) });
        made.during("making an event")?;
        Ok(Self { handle, context: Arc::clone(context) })
    }

    /// Moves the point to the end of what the stream was given so far.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn record(&self, stream: &Stream) -> Result<(), Error> {
        // SAFETY: both are alive.
        self.call(|driver| unsafe { (driver.cuEventRecord)(self.handle, stream.handle) })
            .during("recording an event")
    }

    /// Blocks the host until the device has passed the point; at once if it was never recorded.
    ///
    /// # Errors
    /// Those of the work before.
    pub fn wait(&self) -> Result<(), Error> {
        // SAFETY: this owns the event.
        self.call(|driver| unsafe { (driver.cuEventSynchronize)(self.handle) })
            .during("waiting for an event")
    }

    /// Returns whether the device has passed the point.
    ///
    /// # Errors
    /// Those of the work before.
    pub fn is_complete(&self) -> Result<bool, Error> {
        let mut is_complete = true;
        let queried = self.call(|driver| {
            // SAFETY: this owns the event.
            let status = unsafe { (driver.cuEventQuery)(self.handle) };
            // No error, whose texts would be allocated.
            is_complete = status != NOT_READY;
            if is_complete { status } else { Status::SUCCESS }
        });
        queried.during("looking at an event")?;
        Ok(is_complete)
    }

    /// Lets later work of a stream wait for the point.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn join(&self, stream: &Stream) -> Result<(), Error> {
        let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT as u32;
        // SAFETY: both are alive.
        self.call(|driver| unsafe { (driver.cuStreamWaitEvent)(stream.handle, self.handle, flags) })
            .during("ordering two streams")
    }

    /// Nanoseconds from this point to a later one; waits for both.
    ///
    /// # Errors
    /// Those of the work before.
    pub fn elapsed_ns(&self, later: &Self) -> Result<u64, Error> {
        self.wait()?;
        later.wait()?;
        let mut elapsed_ms = 0.0_f32;
        let elapsed_time = |driver: &Driver| {
            // SAFETY: both events are complete; it writes one number.
            unsafe { (driver.cuEventElapsedTime)(&raw mut elapsed_ms, self.handle, later.handle) }
        };
        self.call(elapsed_time).during("reading events")?;
        Ok((f64::from(elapsed_ms).max(0.0) * 1e6) as u64)
    }

    fn call(&self, call: impl FnOnce(&Driver) -> Status) -> Result<(), DriverStatus> {
        self.context.call(call)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: this owns the event, which the driver frees once the device has passed it.
        let _ = self.call(|driver| unsafe { (driver.cuEventDestroy_v2)(self.handle) });
    }
}
