//! CUDA: discovery of NVIDIA's libraries on this machine and of the devices that they see, and
//! kernels compiled for these devices.
//!
//! Building this crate needs nothing of CUDA. [`Libraries::open`] finds and opens the libraries at
//! run time and checks them, before anything of cudarc is called: cudarc looks symbols up at their
//! first call, and panics where one is missing.

pub mod cubin_cache;
pub mod cudnn;
mod device;
mod downloads;
mod error;
mod event;
mod kernel;
mod libraries;
mod library;
mod memory;
pub mod nvrtc;
mod page_locked;
mod properties;
mod python;
mod search;
mod staging;
mod symbols;
mod versions;
mod wanted;

pub use device::Cuda;
pub use downloads::Downloads;
pub use error::{DriverStatus, Error, Rejected, Searched};
pub use event::Event;
pub use kernel::{Grid, Kernel, Launch, Module};
pub use libraries::{Libraries, Required};
pub use library::Library;
pub use properties::{devices, require_new_enough};
pub use record::machine::{ComputeCapability, DeviceProperties, Versions};
pub use staging::Staging;
pub use versions::CudaVersion;

/// An order of work on a device.
pub use cudarc::driver::CudaStream;

pub(crate) use memory::CudaMemory;

/// The header of all kernels: what differs between a device and the emulation of one.
pub const INTRINSICS: &str = include_str!("intrinsics.cuh");
