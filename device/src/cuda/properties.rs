//! The devices that the driver sees.
#![allow(unsafe_code)] // calls the driver

use std::ffi::{CStr, c_char, c_int};

use cudarc::driver::result::device;
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute as Attribute};
use record::machine::{ComputeCapability, DeviceProperties};

use super::error::DriverCall;
use super::{Error, Libraries};

/// Minimum for the kernels: bf16, `cp.async` and `mma.sync` of bf16, introduced with Ampere.
const COMPUTE_CAPABILITY_MIN: ComputeCapability = ComputeCapability { major: 8, minor: 0 };

/// Checks that a device has the instructions that kernels use.
///
/// # Errors
/// [`Error::DeviceTooOld`].
pub fn require_new_enough(device: &DeviceProperties) -> Result<(), Error> {
    let found = device.compute_capability;
    if found >= COMPUTE_CAPABILITY_MIN {
        return Ok(());
    }
    let name = device.name.clone();
    Err(Error::DeviceTooOld { name, found, needed: COMPUTE_CAPABILITY_MIN })
}

/// The devices that this process may use, by ordinal; at least one.
///
/// # Errors
/// Fails if there is no usable driver, or no device.
pub fn devices() -> Result<Vec<DeviceProperties>, Error> {
    let driver = Libraries::open_driver()?;
    let count = device::get_count().during("counting devices")?;
    if count == 0 {
        return Err(Error::NoDevice { path: driver.path().to_owned() });
    }
    (0..count).map(properties).collect()
}

/// One device.
pub(super) fn of(ordinal: usize) -> Result<DeviceProperties, Error> {
    properties(ordinal as c_int)
}

fn properties(ordinal: c_int) -> Result<DeviceProperties, Error> {
    let device = device::get(ordinal).during("finding the device")?;
    // SAFETY: the driver returned this device.
    let memory = unsafe { device::total_mem(device) };
    let compute_capability = ComputeCapability {
        major: attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        minor: attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    };
    Ok(DeviceProperties {
        ordinal: ordinal.unsigned_abs() as usize,
        name: device::get_name(device).during("reading the device's name")?,
        memory_bytes: memory.during("reading the size of the device's memory")? as u64,
        compute_capability,
        multiprocessors: attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        pci_bus_id: pci_bus_id(device)?,
    })
}

fn attribute(device: CUdevice, attribute: Attribute) -> Result<u32, Error> {
    // SAFETY: the driver returned this device.
    let value = unsafe { device::get_attribute(device, attribute) };
    value.map(i32::unsigned_abs).during("reading the device's attributes")
}

fn pci_bus_id(device: CUdevice) -> Result<String, Error> {
    let mut text = [0_u8; 32]; // an id has 12 characters and a zero
    let length = text.len() as c_int;
    // SAFETY: the driver writes at most so many bytes.
    let status =
        unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast::<c_char>(), length, device) };
    status.result().during("reading the device's PCI bus id")?;
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    Ok(text.to_string_lossy().to_lowercase())
}
