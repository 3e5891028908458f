//! CUDA's libraries in this process, each opened once, when it is first required.
#![allow(unsafe_code)] // calls cuInit

use std::ffi::c_uint;
use std::path::PathBuf;
use std::sync::OnceLock;

use cudarc::driver::sys::{CUresult, cuInit};

use super::error::DriverCall;
use super::library::{Library, file_of, open_file};
use super::search::Search;
use super::versions::kernel_module;
use super::wanted::{self, Wanted};
use super::{Error, Rejected, Searched, Versions};

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
    /// Attention.
    pub cudnn: bool,
}

impl Required {
    /// No library.
    pub const NONE: Self =
        Self { driver: false, nvrtc: false, cublaslt: false, nccl: false, cudnn: false };
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
    driver: Slot,
    initialization: OnceLock<Result<(), Error>>,
    nvrtc: Slot,
    cublaslt: Slot,
    nccl: Slot,
    cudnn: Slot,
}

type Slot = OnceLock<Result<Library, Error>>;

static LIBRARIES: Libraries = Libraries {
    search: OnceLock::new(),
    driver: OnceLock::new(),
    initialization: OnceLock::new(),
    nvrtc: OnceLock::new(),
    cublaslt: OnceLock::new(),
    nccl: OnceLock::new(),
    cudnn: OnceLock::new(),
};

impl Libraries {
    /// Finds and opens what is required, unless it is open; checks that every function is there
    /// and that cudarc will call the same copy; initializes the driver.
    ///
    /// The result of the first search stays, and so does an error.
    ///
    /// # Errors
    /// Returns a sentence on what is missing, where it was looked for, and what to do.
    pub fn open(required: &Required) -> Result<&'static Self, Error> {
        let libraries = &LIBRARIES;
        if required.driver {
            libraries.initialize()?;
        }
        if required.nvrtc {
            libraries.require_nvrtc()?;
        }
        if required.cublaslt {
            libraries.require(&libraries.cublaslt, &wanted::CUBLASLT)?;
        }
        if required.nccl {
            libraries.require(&libraries.nccl, &wanted::NCCL)?;
        }
        if required.cudnn {
            libraries.require(&libraries.cudnn, &wanted::CUDNN)?;
        }
        Ok(libraries)
    }

    /// Libraries of this process, some of which may be open.
    pub fn of_process() -> &'static Self {
        &LIBRARIES
    }

    /// Candidates for another library of this file name, in this order: a name without a slash is
    /// for the dynamic loader.
    pub fn candidates(&self, file_name: &str) -> Vec<PathBuf> {
        self.search().candidates(file_name)
    }

    /// The driver, if it was opened.
    pub fn driver(&self) -> Option<&Library> {
        opened(&self.driver)
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

    /// cuDNN, if it was opened.
    pub fn cudnn(&self) -> Option<&Library> {
        opened(&self.cudnn)
    }

    /// Versions of what is open by now.
    pub fn versions(&self) -> Versions {
        let version = |slot| opened(slot).and_then(Library::version).map(str::to_owned);
        Versions {
            cuda_driver: version(&self.driver),
            kernel_module: kernel_module(),
            nvrtc: version(&self.nvrtc),
            cublaslt: version(&self.cublaslt),
            nccl: version(&self.nccl),
            cudnn: version(&self.cudnn),
        }
    }

    /// The driver, initialized.
    pub(super) fn open_driver() -> Result<&'static Library, Error> {
        LIBRARIES.initialize()?;
        LIBRARIES.require_driver()
    }

    /// NVRTC.
    pub(super) fn open_nvrtc() -> Result<&'static Library, Error> {
        LIBRARIES.require_nvrtc()
    }

    fn search(&self) -> &Search {
        self.search.get_or_init(Search::of_process)
    }

    /// Needs no device.
    fn require_driver(&self) -> Result<&Library, Error> {
        let open = || open_checked(&wanted::DRIVER, self.search(), None);
        self.driver.get_or_init(open).as_ref().map_err(Error::clone)
    }

    fn require_nvrtc(&self) -> Result<&Library, Error> {
        let open = || {
            let library = self.open_one(&wanted::NVRTC)?;
            open_builtins(&library)?;
            Ok(library)
        };
        self.nvrtc.get_or_init(open).as_ref().map_err(Error::clone)
    }

    fn require<'a>(&'a self, slot: &'a Slot, wanted: &Wanted) -> Result<&'a Library, Error> {
        slot.get_or_init(|| self.open_one(wanted)).as_ref().map_err(Error::clone)
    }

    /// A library other than the driver: one that the driver can run, if there is a driver.
    fn open_one(&self, wanted: &Wanted) -> Result<Library, Error> {
        let driver = self.require_driver().ok();
        let cuda = driver.and_then(wanted::driver_version).map(|version| version.major);
        open_checked(wanted, self.search(), cuda)
    }

    fn initialize(&self) -> Result<(), Error> {
        let initialize = || {
            let driver = self.require_driver()?;
            let no_flags: c_uint = 0;
            // SAFETY: it has no conditions.
            match unsafe { cuInit(no_flags) } {
                CUresult::CUDA_ERROR_NO_DEVICE => {
                    Err(Error::NoDevice { path: driver.path().to_owned() })
                }
                status => status.result().at_startup("initializing the CUDA driver"),
            }
        };
        self.initialization.get_or_init(initialize).clone()
    }
}

fn opened(slot: &Slot) -> Option<&Library> {
    slot.get()?.as_ref().ok()
}

/// Opens a library and makes sure that cudarc, which opens it again by its name, gets the same one.
fn open_checked(wanted: &Wanted, search: &Search, cuda: Option<u32>) -> Result<Library, Error> {
    let library = Library::open(wanted, search, cuda)?;
    let Some(cudarc_address) = wanted.cudarc_address else {
        return Ok(library);
    };
    let symbol = wanted.symbols[0];
    let cudarc = cudarc_address(symbol);
    if cudarc == library.address(symbol) {
        return Ok(library);
    }
    Err(Error::Shadowed {
        library: wanted.name,
        path: library.path().to_owned(),
        other: cudarc.and_then(file_of),
        link: wanted.stem,
    })
}

/// NVRTC opens a second library by its name, which the dynamic loader finds if it is open already
/// or in its folders: it is not where NVRTC was found by path.
fn open_builtins(nvrtc: &Library) -> Result<(), Error> {
    let (Some(folder), Some(version)) = (nvrtc.path().parent(), nvrtc.version()) else {
        return Ok(());
    };
    let file_name = format!("libnvrtc-builtins.so.{version}");
    let path = folder.join(&file_name);
    if !path.is_file() {
        return Ok(());
    }
    match open_file(&path) {
        Ok(handle) => {
            let _open_for_the_life_of_the_process = handle.into_raw();
            Ok(())
        }
        Err(reason) => Err(wanted::NVRTC.missing(Searched {
            file_names: vec![file_name],
            asked_loader: true,
            folders: vec![folder.to_owned()],
            rejected: vec![Rejected { path, reason }],
        })),
    }
}
