//! Points in the order of a stream.
#![allow(unsafe_code)] // calls the driver

use cudarc::driver::sys::{CUevent, CUevent_flags, CUresult};
use cudarc::driver::{CudaEvent, CudaStream};

use super::Error;
use super::Libraries;
use super::device::Cuda;
use super::error::DriverCall;

/// cudarc calls the function that replaced it in CUDA 12.8, which older drivers lack.
pub(super) type ElapsedTime = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;

/// The function of the driver, which is open.
pub(super) fn elapsed_time(libraries: &Libraries) -> Result<ElapsedTime, Error> {
    let driver = libraries.driver().expect("it was opened");
    // SAFETY: the type is that of this name.
    unsafe { driver.function("cuEventElapsedTime") }
}

/// A point in the order of a stream: everything that was started on it before. It can be recorded
/// again.
#[derive(Debug)]
pub struct Event {
    event: CudaEvent,
    device: Cuda,
}

impl Event {
    /// An event that measures time, not recorded yet.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(device: &Cuda) -> Result<Self, Error> {
        let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let event = device.context().new_event(flags).during("making an event")?;
        Ok(Self { event, device: device.clone() })
    }

    /// Moves the point to the end of what the stream was given so far.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn record(&self, stream: &CudaStream) -> Result<(), Error> {
        self.event.record(stream).during("recording an event")
    }

    /// Blocks the host until the device has passed the point; at once if it was never recorded.
    ///
    /// # Errors
    /// Those of the work before.
    pub fn wait(&self) -> Result<(), Error> {
        self.event.synchronize().during("waiting for an event")
    }

    /// Returns whether the device has passed the point.
    ///
    /// # Errors
    /// Those of the work before.
    pub fn is_complete(&self) -> Result<bool, Error> {
        self.event.try_is_complete().during("looking at an event")
    }

    /// Lets later work of a stream wait for the point.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn join(&self, stream: &CudaStream) -> Result<(), Error> {
        stream.wait(&self.event).during("ordering two streams")
    }

    /// Nanoseconds from this point to a later one; waits for both.
    ///
    /// # Errors
    /// Those of the work before.
    pub fn elapsed_ns(&self, later: &Self) -> Result<u64, Error> {
        self.wait()?;
        later.wait()?;
        let mut elapsed_ms = 0.0_f32;
        // SAFETY: both events are complete.
        let status = unsafe {
            let elapsed_time = self.device.elapsed_time();
            elapsed_time(&raw mut elapsed_ms, self.event.cu_event(), later.event.cu_event())
        };
        status.result().during("reading events")?;
        Ok((f64::from(elapsed_ms).max(0.0) * 1e6) as u64)
    }
}
