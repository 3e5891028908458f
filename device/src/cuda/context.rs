//! The context of a device: what every call of the driver that uses the device needs.
#![allow(unsafe_code)] // calls the driver

use std::ptr;

use cudarc::driver::sys::{CUcontext, CUdevice};

use super::driver::{Driver, Status};
use super::error::DriverStatus;
use super::properties;

/// The primary context of a device, which it shares with other libraries of the process, retained
/// until this is dropped.
#[derive(Debug)]
pub(super) struct Context {
    handle: CUcontext,
    device: CUdevice,
    driver: &'static Driver,
}

// SAFETY: a context belongs to no thread; each makes it its current one.
unsafe impl Send for Context {}
// SAFETY: as above; the driver's functions may be called by several threads at a time.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the context of a device, and makes it current.
    pub(super) fn retain(driver: &'static Driver, ordinal: usize) -> Result<Self, DriverStatus> {
        let device = properties::handle(driver, ordinal)?;
        let mut handle = ptr::null_mut();
        // SAFETY: it writes one pointer.
        driver.check(unsafe { (driver.cuDevicePrimaryCtxRetain)(&raw mut handle, device) })?;
        let context = Self { handle, device, driver };
        context.bind()?;
        Ok(context)
    }

    /// A call of the driver with this as the current context.
    pub(super) fn call(&self, call: impl FnOnce(&Driver) -> Status) -> Result<(), DriverStatus> {
        self.bind()?;
        self.driver.check(call(self.driver))
    }

    /// Makes this the current context of the calling thread.
    pub(super) fn bind(&self) -> Result<(), DriverStatus> {
        let Self { handle, driver, .. } = self;
        let mut current = ptr::null_mut();
        // SAFETY: it writes one pointer.
        driver.check(unsafe { (driver.cuCtxGetCurrent)(&raw mut current) })?;
        if current == *handle {
            return Ok(());
        }
        // SAFETY: a context that is retained until this is dropped.
        driver.check(unsafe { (driver.cuCtxSetCurrent)(*handle) })
    }

    /// Free bytes of the device's memory.
    pub(super) fn free_bytes(&self) -> Result<u64, DriverStatus> {
        let [mut free, mut total] = [0; 2];
        // SAFETY: it writes two sizes.
        self.call(|driver| unsafe { (driver.cuMemGetInfo_v2)(&raw mut free, &raw mut total) })?;
        Ok(free as u64)
    }
}

impl Drop for Context {
    /// An error stems from earlier work, and was reported to the caller that waited for that work.
    fn drop(&mut self) {
        // SAFETY: this retained it, and all that uses the context keeps this.
        let _ = unsafe { (self.driver.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}
