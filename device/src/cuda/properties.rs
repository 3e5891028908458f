//! The devices that the driver sees.
#![allow(unsafe_code)] // calls the driver

use std::ffi::{CStr, c_int};

use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute};
use record::machine::{ComputeCapability, DeviceProperties};

use super::driver::Driver;
use super::error::{DriverCall, DriverStatus};
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
    let opened = Libraries::open_driver()?;
    let driver = &opened.functions;
    let mut count = 0;
    // SAFETY: it writes one number.
    let counted = driver.check(unsafe { (driver.cuDeviceGetCount)(&raw mut count) });
    counted.during("counting devices")?;
    if count == 0 {
        return Err(Error::NoDevice { path: opened.library.path().to_owned() });
    }
    (0..count.unsigned_abs() as usize).map(|ordinal| properties(driver, ordinal)).collect()
}

/// One device.
pub(super) fn of(ordinal: usize) -> Result<DeviceProperties, Error> {
    properties(&Libraries::open_driver()?.functions, ordinal)
}

/// The driver's handle of a device.
pub(super) fn handle(driver: &Driver, ordinal: usize) -> Result<CUdevice, DriverStatus> {
    let mut device = 0;
    // SAFETY: it writes one handle.
    driver.check(unsafe { (driver.cuDeviceGet)(&raw mut device, ordinal as c_int) })?;
    Ok(device)
}

fn properties(driver: &Driver, ordinal: usize) -> Result<DeviceProperties, Error> {
    let device = handle(driver, ordinal).during("finding the device")?;
    let attribute = |attribute| {
        self::attribute(driver, device, attribute).during("reading the device's attributes")
    };
    let mut memory_bytes = 0;
    // SAFETY: it writes one size.
    let status = unsafe { (driver.cuDeviceTotalMem_v2)(&raw mut memory_bytes, device) };
    driver.check(status).during("reading the size of the device's memory")?;
    let compute_capability = ComputeCapability {
        major: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        minor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    };
    Ok(DeviceProperties {
        ordinal,
        name: name(driver, device).during("reading the device's name")?,
        memory_bytes: memory_bytes as u64,
        compute_capability,
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        pci_bus_id: pci_bus_id(driver, device).during("reading the device's PCI bus id")?,
    })
}

fn attribute(driver: &Driver, device: CUdevice, attribute: Attribute) -> Result<u32, DriverStatus> {
    let mut value: c_int = 0;
    let attribute = attribute as c_int;
    // SAFETY: it writes one number.
    let status = unsafe { (driver.cuDeviceGetAttribute)(&raw mut value, attribute, device) };
    driver.check(status)?;
    Ok(value.unsigned_abs())
}

fn name(driver: &Driver, device: CUdevice) -> Result<String, DriverStatus> {
    let mut text = [0_u8; 256];
    let length = text.len() as c_int;
    // SAFETY: the driver writes at most so many bytes.
    let status = unsafe { (driver.cuDeviceGetName)(text.as_mut_ptr().cast(), length, device) };
    driver.check(status)?;
    Ok(until_zero(&text))
}

fn pci_bus_id(driver: &Driver, device: CUdevice) -> Result<String, DriverStatus> {
    let mut text = [0_u8; 32]; // an id has 12 characters and a zero
    let length = text.len() as c_int;
    // SAFETY: the driver writes at most so many bytes.
    let status = unsafe { (driver.cuDeviceGetPCIBusId)(text.as_mut_ptr().cast(), length, device) };
    driver.check(status)?;
    Ok(until_zero(&text).to_lowercase())
}

fn until_zero(text: &[u8]) -> String {
    CStr::from_bytes_until_nul(text).unwrap_or_default().to_string_lossy().into_owned()
}
