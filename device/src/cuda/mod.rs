//! CUDA: discovery of NVIDIA's libraries on this machine and of the devices that they see, and
//! kernels compiled for these devices.
//!
//! Building this crate needs nothing of CUDA. [`Libraries::open`] finds and opens the libraries at
//! run time, and looks every function that is called up in the file that was opened: of cudarc only
//! types and constants are used.

mod context;
pub mod cubin_cache;
pub mod cublaslt;
mod device;
mod downloads;
mod driver;
mod dry;
mod error;
mod event;
mod function_table;
mod kernel;
mod libraries;
mod library;
mod memory;
pub mod nccl;
pub mod nvrtc;
mod page_locked;
mod properties;
mod python;
mod rejected;
pub mod sealed_file;
mod search;
mod staging;
mod stream;
mod versions;
mod wanted;

pub use device::{Cuda, Launched};
pub use downloads::Downloads;
pub use error::{DriverStatus, Error};
pub use event::Event;
pub use kernel::{Grid, Kernel, Launch, Module};
pub use libraries::{Libraries, Required};
pub use library::Library;
pub use properties::{devices, require_new_enough};
pub use record::machine::{ComputeCapability, DeviceProperties, Versions};
pub use rejected::{Fault, Rejected, Searched};
pub use staging::Staging;
pub use stream::Stream;
pub use versions::Version;

pub(crate) use memory::CudaMemory;

/// The header of all kernels: what differs between a device and the emulation of one.
pub const INTRINSICS: &str = include_str!("intrinsics.cuh");
