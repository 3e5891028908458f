//! The error type of everything that uses CUDA.

use std::ffi::c_int;
use std::fmt;
use std::path::PathBuf;

use cudarc::driver::sys::CUresult;

use super::{ComputeCapability, Searched, Version};

/// Missing or failed component, by what the user can do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no driver: this machine has no GPU, or a container was not given any.
    #[error(
        "no CUDA driver: {searched}; install NVIDIA's driver, or start the container with access \
         to GPUs"
    )]
    NoDriver {
        /// Places that were searched.
        searched: Searched,
    },
    /// There is a driver, which does not fit the kernel module or the GPU, or is a stub.
    #[error(
        "no CUDA driver starts: {searched}; restart the machine if its driver was updated, or \
         leave out the folder of a stub or of a forward-compatible driver"
    )]
    NoDriverStarts {
        /// Places that were searched.
        searched: Searched,
    },
    /// The driver does not know what this program uses.
    #[error(
        "expected a driver for CUDA {needed} or newer, found one for CUDA {found}; install a newer \
         driver"
    )]
    DriverTooOld {
        /// The oldest CUDA that is enough.
        needed: Version,
        /// The newest CUDA that each copy can run, and its file.
        found: String,
    },
    /// A library other than the driver is not installed, or no copy of it can be used.
    #[error("{library} is missing: {searched}; {install}")]
    LibraryMissing {
        /// Its name, as in `NVRTC`.
        library: &'static str,
        /// Places that were searched.
        searched: Searched,
        /// Hint for installing it.
        install: &'static str,
    },
    /// There is a driver, but no device that it may use.
    #[error(
        "the CUDA driver {} sees no device; check `nvidia-smi` and CUDA_VISIBLE_DEVICES, and that \
         the container has access to GPUs", path.display()
    )]
    NoDevice {
        /// The driver's library.
        path: PathBuf,
    },
    /// A device lacks instructions that kernels use.
    #[error(
        "{name} has compute capability {found}, expected {needed} or higher; use a newer GPU or \
         --device cpu"
    )]
    DeviceTooOld {
        /// Its product name.
        name: String,
        /// The device's compute capability.
        found: ComputeCapability,
        /// The least that is enough.
        needed: ComputeCapability,
    },
    /// Kernels are for another kind of device.
    #[error(
        "{name} has compute capability {found}, and {what} is for {needed} alone; use {instead}"
    )]
    OtherArchitecture {
        /// Its product name.
        name: String,
        /// The device's compute capability.
        found: ComputeCapability,
        /// The requested computation.
        what: &'static str,
        /// The only compute capability that has its instructions.
        needed: ComputeCapability,
        /// The alternative that computes it.
        instead: &'static str,
    },
    /// The memory of a device is used up.
    #[error(
        "expected {bytes} bytes of free memory on the device, found {}; use a smaller \
         micro-batch, or end what else uses the device",
        free.map_or("less".into(), |free| free.to_string())
    )]
    OutOfMemory {
        /// Size of the allocation.
        bytes: usize,
        /// Free memory, if the driver reports it.
        free: Option<u64>,
    },
    /// The driver refused a call, or reports an error in earlier work.
    #[error("{doing} failed: {status}")]
    Driver {
        /// The attempted action, as in `opening the device`.
        doing: &'static str,
        /// The driver's status.
        status: DriverStatus,
    },
    /// The driver does not start, or does not open a device: something of its installation is
    /// broken, such as a container that lacks one of its device files.
    #[error(
        "{doing} failed: {status}; check `nvidia-smi`, and that the container has all of the \
         driver's device files, /dev/nvidia-uvm too"
    )]
    Startup {
        /// The attempted action, as in `opening the device`.
        doing: &'static str,
        /// The driver's status.
        status: DriverStatus,
    },
    /// The driver refused a kernel.
    #[error("{doing} {kernel} failed: {status}")]
    Kernel {
        /// Name of the kernel, or of its file.
        kernel: String,
        /// The attempted action, as in `launching`.
        doing: &'static str,
        /// The driver's status.
        status: DriverStatus,
    },
    /// A library refused a call.
    #[error("{library}: {what} failed: {text}")]
    Library {
        /// Its name.
        library: &'static str,
        /// The attempted action.
        what: String,
        /// The library's message.
        text: String,
    },
    /// A library cannot compute this on this device.
    #[error("{library} has no plan for {what}: {reason}; {hint}")]
    NoPlan {
        /// Its name and version, as in `cuBLASLt 12.9.1`.
        library: String,
        /// The requested computation.
        what: String,
        /// The library's reason.
        reason: String,
        /// Hint for the user.
        hint: &'static str,
    },
    /// A library does not start: something of its installation is broken, such as a missing part of
    /// it, or the memory does not suffice.
    #[error("{library} does not start: {text}; install it again, or another version")]
    LibraryStartup {
        /// Its name.
        library: &'static str,
        /// The library's message.
        text: String,
    },
    /// The compiler does not know the device: mostly it is older than that.
    #[error(
        "{}: NVRTC {version} does not compile for {architecture}; install one that does",
        path.display()
    )]
    UnknownArchitecture {
        /// NVRTC's library.
        path: PathBuf,
        /// Its version.
        version: String,
        /// The requested architecture, as in `sm_120a`.
        architecture: String,
    },
    /// A kernel does not compile.
    #[error("{source_name} does not compile for {architecture}: {}", log.trim())]
    Compilation {
        /// Name of its file.
        source_name: String,
        /// The target architecture, as in `sm_90`.
        architecture: String,
        /// The compiler's log.
        log: String,
    },
    /// NVRTC refused a call.
    #[error("{source_name}: {call} failed: {reason}")]
    Nvrtc {
        /// Name of the file that was compiled.
        source_name: String,
        /// Name of the function.
        call: &'static str,
        /// NVRTC's message.
        reason: String,
    },
}

impl Error {
    /// Error of the driver about a kernel.
    pub(super) fn kernel(kernel: &str, doing: &'static str, status: DriverStatus) -> Self {
        Self::Kernel { kernel: kernel.to_owned(), doing, status }
    }

    /// Returns whether the machine is at fault, such as a missing library, too little memory or a
    /// broken device; otherwise a call or a kernel of this program is wrong.
    pub fn is_of_machine(&self) -> bool {
        match self {
            Self::Driver { status, .. } | Self::Kernel { status, .. } => status.is_of_machine(),
            Self::Library { .. } | Self::Compilation { .. } | Self::Nvrtc { .. } => false,
            _ => true,
        }
    }

    /// Error of the driver about an allocation.
    pub(super) fn out_of_memory(bytes: usize, free: Option<u64>, status: DriverStatus) -> Self {
        if status.number == CUresult::CUDA_ERROR_OUT_OF_MEMORY as c_int {
            return Self::OutOfMemory { bytes, free };
        }
        Self::Driver { doing: "allocating memory", status }
    }
}

/// Adds the attempted action to an error of the driver.
pub(super) trait DriverCall<T> {
    /// Adds the attempted action, as in `.during("counting devices")`.
    fn during(self, doing: &'static str) -> Result<T, Error>;
    /// Adds the action of the startup, as in `.at_startup("opening the device")`.
    fn at_startup(self, doing: &'static str) -> Result<T, Error>;
}

impl<T> DriverCall<T> for Result<T, DriverStatus> {
    fn during(self, doing: &'static str) -> Result<T, Error> {
        self.map_err(|status| Error::Driver { doing, status })
    }

    fn at_startup(self, doing: &'static str) -> Result<T, Error> {
        self.map_err(|status| Error::Startup { doing, status })
    }
}

/// An error of the driver, as it describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverStatus {
    /// `CUresult`.
    pub number: c_int,
    /// Its name, as in `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub name: String,
    /// Its description.
    pub meaning: String,
}

/// Errors of the driver that name a fault of the machine.
const OF_MACHINE: [CUresult; 14] = [
    CUresult::CUDA_ERROR_CONTAINED,
    CUresult::CUDA_ERROR_DEVICE_NOT_LICENSED,
    CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
    CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
    CUresult::CUDA_ERROR_EXTERNAL_DEVICE,
    CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
    CUresult::CUDA_ERROR_NO_DEVICE,
    CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUresult::CUDA_ERROR_OPERATING_SYSTEM,
    CUresult::CUDA_ERROR_OUT_OF_MEMORY,
    CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
    CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
    CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
];

/// Errors of `cuInit` that name a fault of this copy of the driver: it is the stub that programs
/// are linked with, belongs to another version of the kernel's module, or is of a package for
/// forward compatibility, which not every GPU supports.
const OF_COPY: [CUresult; 3] = [
    CUresult::CUDA_ERROR_STUB_LIBRARY,
    CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
    CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
];

impl DriverStatus {
    /// Returns whether another copy of the driver may start.
    pub(super) fn is_of_copy(&self) -> bool {
        OF_COPY.iter().any(|known| *known as c_int == self.number)
    }

    fn is_of_machine(&self) -> bool {
        OF_MACHINE.iter().any(|known| *known as c_int == self.number)
    }
}

impl fmt::Display for DriverStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.name, self.meaning)
    }
}
