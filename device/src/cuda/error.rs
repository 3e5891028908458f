//! The error type of everything that uses CUDA.

use std::fmt;
use std::path::PathBuf;

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::CUresult;

use super::search::PATH_VARIABLE;
use super::{ComputeCapability, CudaVersion};

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
    /// The driver does not know what this program uses.
    #[error(
        "{}: expected a driver for CUDA {needed} or newer, found one for CUDA {found}; install a \
         newer driver", path.display()
    )]
    DriverTooOld {
        /// The driver's library.
        path: PathBuf,
        /// The newest CUDA that it can run.
        found: CudaVersion,
        /// The oldest that is enough.
        needed: CudaVersion,
    },
    /// A library other than the driver is not installed, or cannot be loaded.
    #[error("{library} is missing: {searched}; {install}")]
    LibraryMissing {
        /// Its name, as in `NVRTC`.
        library: &'static str,
        /// Places that were searched.
        searched: Searched,
        /// Hint for installing it.
        install: &'static str,
    },
    /// A library lacks functions of a later version.
    #[error(
        "{}: expected {library} {needed} or newer, found {found}; {install}", path.display()
    )]
    LibraryTooOld {
        /// Its name, as in `cuDNN`.
        library: &'static str,
        /// Its file.
        path: PathBuf,
        /// Its version.
        found: String,
        /// The oldest that is enough.
        needed: String,
        /// Hint for installing another.
        install: &'static str,
    },
    /// A library is older or newer than what this program was written for, or is another one.
    #[error(
        "{}: expected a function {symbol}, which this {library} (version {}) does not have; \
         install another version", path.display(), version.as_deref().unwrap_or("unknown")
    )]
    SymbolMissing {
        /// Name of the library.
        library: &'static str,
        /// Its file.
        path: PathBuf,
        /// Its version, if it reports one.
        version: Option<String>,
        /// The first function that is missing.
        symbol: String,
    },
    /// The dynamic loader would call another copy of a library than the one that was chosen.
    #[error(
        "{}: this {library} was chosen, but the dynamic loader finds {} first; put a folder with a \
         link `{link}` to the chosen one at the front of LD_LIBRARY_PATH, or remove the other one \
         from the loader's folders",
        path.display(),
        other.as_ref().map_or("another one".into(), |other| other.display().to_string())
    )]
    Shadowed {
        /// Name of the library.
        library: &'static str,
        /// The file that was chosen.
        path: PathBuf,
        /// The file that the loader finds, if it reports one.
        other: Option<PathBuf>,
        /// The name that the loader looks for first.
        link: &'static str,
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
    #[error("{library} has no plan for {what}: {reason}; use {instead}")]
    NoPlan {
        /// Its name and version, as in `cuDNN 9.28.1`.
        library: String,
        /// The requested computation.
        what: String,
        /// The library's reason.
        reason: String,
        /// The alternative that computes it.
        instead: &'static str,
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
    pub(super) fn kernel(kernel: &str, doing: &'static str, error: DriverError) -> Self {
        Self::Kernel { kernel: kernel.to_owned(), doing, status: error.into() }
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
    pub(super) fn out_of_memory(bytes: usize, free: Option<u64>, error: DriverError) -> Self {
        match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Self::OutOfMemory { bytes, free },
            _ => Self::Driver { doing: "allocating memory", status: error.into() },
        }
    }
}

/// Adds the attempted action to an error of the driver.
pub(super) trait DriverCall<T> {
    /// Adds the attempted action, as in `.during("counting devices")`.
    fn during(self, doing: &'static str) -> Result<T, Error>;
    /// Adds the action of the startup, as in `.at_startup("opening the device")`.
    fn at_startup(self, doing: &'static str) -> Result<T, Error>;
}

impl<T> DriverCall<T> for Result<T, DriverError> {
    fn during(self, doing: &'static str) -> Result<T, Error> {
        self.map_err(|error| Error::Driver { doing, status: error.into() })
    }

    fn at_startup(self, doing: &'static str) -> Result<T, Error> {
        self.map_err(|error| Error::Startup { doing, status: error.into() })
    }
}

/// An error of the driver, as it describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverStatus {
    /// Its name, as in `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub name: String,
    /// Its description.
    pub meaning: String,
}

/// Errors of the driver that name a fault of the machine.
const OF_MACHINE: [&str; 14] = [
    "CUDA_ERROR_CONTAINED",
    "CUDA_ERROR_DEVICE_NOT_LICENSED",
    "CUDA_ERROR_DEVICE_UNAVAILABLE",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_EXTERNAL_DEVICE",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_NO_DEVICE",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "CUDA_ERROR_OPERATING_SYSTEM",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    "CUDA_ERROR_SYSTEM_NOT_READY",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
];

impl DriverStatus {
    fn is_of_machine(&self) -> bool {
        OF_MACHINE.contains(&self.name.as_str())
    }
}

impl From<DriverError> for DriverStatus {
    /// The driver's library is open: the error came from it.
    fn from(error: DriverError) -> Self {
        let meaning = error.error_string().map(|text| text.to_string_lossy().into_owned());
        Self {
            name: format!("{:?}", error.0),
            meaning: meaning.unwrap_or_else(|_| "unknown to the driver".to_owned()),
        }
    }
}

impl fmt::Display for DriverStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.name, self.meaning)
    }
}

/// Places where a library was not found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Searched {
    /// The names of its file, best first.
    pub file_names: Vec<String>,
    /// The dynamic loader was asked for these names.
    pub asked_loader: bool,
    /// The folders.
    pub folders: Vec<PathBuf>,
    /// Files of these names that could not be loaded.
    pub rejected: Vec<Rejected>,
}

/// A file that could not be loaded as a library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The file; only its name where the dynamic loader found it.
    pub path: PathBuf,
    /// The dynamic loader's message.
    pub reason: String,
}

impl fmt::Display for Searched {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.file_names.join(" or ");
        let folders: Vec<_> = self.folders.iter().map(|f| f.display().to_string()).collect();
        let folders = if folders.is_empty() { "no folder".into() } else { folders.join(", ") };
        if self.asked_loader {
            write!(formatter, "looked for {names} by the dynamic loader and in {folders}")?;
        } else {
            write!(formatter, "looked for {names} in {folders} ({PATH_VARIABLE}) only")?;
        }
        for Rejected { path, reason } in &self.rejected {
            write!(formatter, ", where {} cannot be loaded ({reason})", path.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn searched(asked_loader: bool) -> Searched {
        Searched {
            file_names: vec!["libx.so.2".into(), "libx.so.1".into()],
            asked_loader,
            folders: vec!["/a".into(), "/b".into()],
            rejected: vec![Rejected { path: "/a/libx.so.1".into(), reason: "too short".into() }],
        }
    }

    #[test]
    fn a_search_is_told_in_one_sentence() {
        assert_eq!(
            searched(true).to_string(),
            "looked for libx.so.2 or libx.so.1 by the dynamic loader and in /a, /b, \
             where /a/libx.so.1 cannot be loaded (too short)"
        );
        let only = searched(false).to_string();
        assert!(only.contains("in /a, /b (YARDSTICK_CUDA_PATH) only"), "{only}");
    }
}
