//! CUDA's libraries in this process, each opened once, when it is first required.
#![allow(unsafe_code)] // calls cuInit

use std::ffi::{c_int, c_uint};
use std::path::PathBuf;
use std::sync::OnceLock;

use cudarc::driver::sys::CUresult;

use super::cublaslt::CublasLt;
use super::driver::Driver;
use super::error::DriverCall;
use super::function_table::FunctionTable;
use super::library::{Library, Opened};
use super::nccl::Nccl;
use super::nvrtc::Nvrtc;
use super::properties;
use super::search::{Places, Search};
use super::versions::kernel_module;
use super::wanted::{self, Wanted};
use super::{ComputeCapability, Error, Fault, Version, Versions};

/// The libraries that something needs, as in `Required { nccl: true, ..Required::TRAINING }`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Required {
    /// The driver, initialized.
    pub driver: bool,
    /// The compiler of kernels, which needs no driver.
    pub nvrtc: bool,
    /// Matmuls.
    pub cublaslt: bool,
    /// Collectives.
    pub nccl: bool,
}

impl Required {
    /// No library.
    pub const NONE: Self = Self { driver: false, nvrtc: false, cublaslt: false, nccl: false };
    /// Requirements for listing devices.
    pub const DEVICES: Self = Self { driver: true, ..Self::NONE };
    /// Requirements for compiling kernels, also on a machine without a GPU.
    pub const COMPILER: Self = Self { nvrtc: true, ..Self::NONE };
    /// Requirements for training on one device.
    pub const TRAINING: Self = Self { driver: true, nvrtc: true, cublaslt: true, ..Self::NONE };
}

/// The libraries of this process. They are never closed.
#[derive(Debug)]
pub struct Libraries {
    search: OnceLock<Search>,
    driver: OnceLock<Result<StartedDriver, Error>>,
    nvrtc: Slot<Nvrtc>,
    cublaslt: Slot<CublasLt>,
    nccl: Slot<Nccl>,
}

type Slot<F> = OnceLock<Result<Opened<F>, Error>>;

/// The driver, open, and the result of its initialization: it has a version without a device too.
#[derive(Debug)]
struct StartedDriver {
    opened: Opened<Driver>,
    initialized: Result<(), Error>,
}

static LIBRARIES: Libraries = Libraries {
    search: OnceLock::new(),
    driver: OnceLock::new(),
    nvrtc: OnceLock::new(),
    cublaslt: OnceLock::new(),
    nccl: OnceLock::new(),
};

impl Libraries {
    /// Finds and opens what is required, unless it is open; looks every function up; initializes
    /// the driver.
    ///
    /// The result of the first search stays, and so does an error.
    ///
    /// # Errors
    /// Returns a sentence on what is missing, where it was looked for, and what to do.
    pub fn open(required: &Required) -> Result<&'static Self, Error> {
        if required.driver {
            Self::open_driver()?;
        }
        if required.nvrtc {
            Self::open_nvrtc()?;
        }
        if required.cublaslt {
            Self::open_cublaslt()?;
        }
        if required.nccl {
            Self::open_nccl()?;
        }
        Ok(&LIBRARIES)
    }

    /// Libraries of this process, some of which may be open.
    pub fn of_process() -> &'static Self {
        &LIBRARIES
    }

    /// Candidates for another library of the driver, of this file name, in this order: a name
    /// without a slash is for the dynamic loader.
    pub fn candidates_of_driver(&self, file_name: &str) -> Vec<PathBuf> {
        self.search().driver.candidates(file_name)
    }

    /// The driver, if it was opened.
    pub fn driver(&self) -> Option<&Library> {
        Some(&self.driver.get()?.as_ref().ok()?.opened.library)
    }

    /// NVRTC, if it was opened.
    pub fn nvrtc(&self) -> Option<&Library> {
        opened(&self.nvrtc)
    }

    /// cuBLASLt, if it was opened.
    pub fn cublaslt(&self) -> Option<&Library> {
        opened(&self.cublaslt)
    }

    /// NCCL, if it was opened.
    pub fn nccl(&self) -> Option<&Library> {
        opened(&self.nccl)
    }

    /// Versions and files of what is open by now.
    pub fn versions(&self) -> Versions {
        let text = |library: &Library| Some(library.version()?.to_string());
        let libraries = [self.driver(), self.nvrtc(), self.cublaslt(), self.nccl()];
        let file = |library: &Library| library.path().display().to_string();
        Versions {
            cuda_driver: self.driver().and_then(text),
            kernel_module: kernel_module(),
            nvrtc: self.nvrtc().and_then(text),
            cublaslt: self.cublaslt().and_then(text),
            nccl: self.nccl().and_then(text),
            files: libraries.into_iter().flatten().map(file).collect(),
        }
    }

    /// The driver, initialized.
    pub(super) fn open_driver() -> Result<&'static Opened<Driver>, Error> {
        let start = || StartedDriver::find(&LIBRARIES.search().driver);
        let driver = LIBRARIES.driver.get_or_init(start).as_ref().map_err(Error::clone)?;
        driver.initialized.clone()?;
        Ok(&driver.opened)
    }

    /// NVRTC, which knows one of the devices, if the driver is open and sees any.
    pub(super) fn open_nvrtc() -> Result<&'static Opened<Nvrtc>, Error> {
        let knows_one = |nvrtc: &Opened<Nvrtc>| nvrtc.knows_one_of(&LIBRARIES.capabilities());
        LIBRARIES.require(&LIBRARIES.nvrtc, &wanted::NVRTC, knows_one)
    }

    /// cuBLASLt.
    pub(super) fn open_cublaslt() -> Result<&'static Opened<CublasLt>, Error> {
        LIBRARIES.require(&LIBRARIES.cublaslt, &wanted::CUBLASLT, |_| Ok(()))
    }

    /// NCCL.
    pub(super) fn open_nccl() -> Result<&'static Opened<Nccl>, Error> {
        LIBRARIES.require(&LIBRARIES.nccl, &wanted::NCCL, |_| Ok(()))
    }

    fn search(&self) -> &Search {
        self.search.get_or_init(Search::of_process)
    }

    /// Compute capabilities of the devices that kernels can run on, if the driver is open.
    fn capabilities(&self) -> Vec<ComputeCapability> {
        if self.driver().is_none() {
            return Vec::new();
        }
        let devices = properties::devices().unwrap_or_default();
        let usable = devices.iter().filter(|device| properties::require_new_enough(device).is_ok());
        usable.map(|device| device.compute_capability).collect()
    }

    /// A library other than the driver: one that the driver can run, if that is open.
    fn require<'a, F: FunctionTable>(
        &'a self,
        slot: &'a Slot<F>,
        wanted: &Wanted,
        suits: impl FnMut(&Opened<F>) -> Result<(), Fault>,
    ) -> Result<&'a Opened<F>, Error> {
        let open = || {
            let cuda = self.driver().and_then(Library::version);
            let cuda_major = cuda.map(|Version { major, .. }| major);
            Opened::find(wanted, &self.search().others, cuda_major, suits)
        };
        slot.get_or_init(open).as_ref().map_err(Error::clone)
    }
}

fn opened<F>(slot: &Slot<F>) -> Option<&Library> {
    Some(&slot.get()?.as_ref().ok()?.library)
}

impl StartedDriver {
    /// Finds the first driver that starts, or that fails for a reason that any other has as well,
    /// such as a missing device.
    fn find(places: &Places) -> Result<Self, Error> {
        let mut initialized = Ok(());
        let starts = |driver: &Opened<Driver>| {
            initialized = initialize(driver);
            match &initialized {
                Err(Error::Startup { status, .. }) if status.is_of_copy() => {
                    Err(Fault::NotStarting(status.clone()))
                }
                _ => Ok(()),
            }
        };
        let opened = Opened::find(&wanted::DRIVER, places, None, starts)?;
        Ok(Self { opened, initialized })
    }
}

fn initialize(driver: &Opened<Driver>) -> Result<(), Error> {
    let Opened { library, functions } = driver;
    let no_flags: c_uint = 0;
    // SAFETY: it has no conditions.
    match functions.check(unsafe { (functions.cuInit)(no_flags) }) {
        Err(status) if status.number == CUresult::CUDA_ERROR_NO_DEVICE as c_int => {
            Err(Error::NoDevice { path: library.path().to_owned() })
        }
        initialized => initialized.at_startup("initializing the CUDA driver"),
    }
}
