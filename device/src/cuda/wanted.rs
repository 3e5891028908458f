//! Requirements on each of CUDA's libraries, known before it is opened.
#![allow(unsafe_code)] // calls the functions that tell versions, and cudarc's loaders

use std::ffi::{c_int, c_void};

use super::library::Library;
use super::versions::from_six_digits;
use super::{CudaVersion, Error, Searched, symbols};

/// A library that is to be opened.
pub(super) struct Wanted {
    /// Its usual name.
    pub(super) name: &'static str,
    /// Its file without the version, as in `libnvrtc.so`.
    pub(super) stem: &'static str,
    /// Versions at the end of the file's name that this program can use, newest first.
    pub(super) majors: &'static [u32],
    /// The version of the file's name is CUDA's, which must not be newer than the driver's.
    pub(super) follows_cuda: bool,
    /// Checks the version, and describes one that is too old for a check of its functions.
    pub(super) accept: fn(&Library) -> Result<(), Error>,
    /// Functions that it must have.
    pub(super) symbols: &'static [&'static str],
    /// Queries its version.
    pub(super) version: fn(&Library) -> Option<String>,
    /// Address that cudarc finds for a function; `None` where cudarc is not used for the library.
    pub(super) cudarc_address: Option<fn(&str) -> Option<*const c_void>>,
    /// Hint for installing a missing library.
    pub(super) install: &'static str,
}

/// The driver.
pub(super) const DRIVER: Wanted = Wanted {
    name: "CUDA driver",
    stem: "libcuda.so",
    majors: &[1],
    follows_cuda: false,
    accept: accept_driver,
    symbols: symbols::DRIVER,
    version: |library| Some(driver_version(library)?.to_string()),
    cudarc_address: Some(cudarc_driver),
    install: "install NVIDIA's driver, or start the container with access to GPUs",
};

/// The compiler of kernels.
pub(super) const NVRTC: Wanted = Wanted {
    name: "NVRTC",
    stem: "libnvrtc.so",
    majors: &[13, 12],
    follows_cuda: true,
    accept: |_| Ok(()),
    symbols: symbols::NVRTC,
    version: |library| Some(nvrtc_version(library)?.to_string()),
    cudarc_address: Some(cudarc_nvrtc),
    install: "install a CUDA toolkit that is not newer than the driver, or the wheel \
              nvidia-cuda-nvrtc (for CUDA 12 nvidia-cuda-nvrtc-cu12)",
};

/// Matmuls.
pub(super) const CUBLASLT: Wanted = Wanted {
    name: "cuBLASLt",
    stem: "libcublasLt.so",
    majors: &[13, 12],
    follows_cuda: true,
    accept: |_| Ok(()),
    symbols: symbols::CUBLASLT,
    version: cublaslt_version,
    cudarc_address: Some(cudarc_cublaslt),
    install: "install a CUDA toolkit that is not newer than the driver, or the wheel \
              nvidia-cublas (for CUDA 12 nvidia-cublas-cu12)",
};

/// Collectives. Its functions are called through a table of our own.
pub(super) const NCCL: Wanted = Wanted {
    name: "NCCL",
    stem: "libnccl.so",
    majors: &[2],
    follows_cuda: false,
    accept: |_| Ok(()),
    symbols: symbols::NCCL,
    version: nccl_version,
    cudarc_address: None,
    install: "install NVIDIA's package libnccl2, or the wheel nvidia-nccl-cu13 (for CUDA 12 \
              nvidia-nccl-cu12)",
};

/// Attention. Its functions are called through a table of our own.
pub(super) const CUDNN: Wanted = Wanted {
    name: "cuDNN",
    stem: "libcudnn.so",
    majors: &[9],
    follows_cuda: false,
    accept: accept_cudnn,
    symbols: symbols::CUDNN,
    version: cudnn_version,
    cudarc_address: None,
    install: "install NVIDIA's cuDNN 9, or the wheel nvidia-cudnn-cu13 (for CUDA 12 \
              nvidia-cudnn-cu12)",
};

impl Wanted {
    /// Names of its file that this driver can use, newest first.
    pub(super) fn file_names(&self, cuda_major: Option<u32>) -> Vec<String> {
        let can_run = |major: u32| !self.follows_cuda || cuda_major.is_none_or(|max| major <= max);
        let majors = self.majors.iter().filter(|&&major| can_run(major));
        majors.map(|major| format!("{}.{major}", self.stem)).collect()
    }

    /// The error of not finding it.
    pub(super) fn missing(&self, searched: Searched) -> Error {
        if self.stem == DRIVER.stem {
            return Error::NoDriver { searched };
        }
        Error::LibraryMissing { library: self.name, searched, install: self.install }
    }
}

/// The newest CUDA that the driver can run.
pub(super) fn driver_version(library: &Library) -> Option<CudaVersion> {
    type Get = unsafe extern "C" fn(*mut c_int) -> c_int;
    // SAFETY: this is its type.
    let get: Get = unsafe { library.function("cuDriverGetVersion") }.ok()?;
    let mut number = 0;
    // SAFETY: it writes one int; it needs no cuInit.
    let status = unsafe { get(&raw mut number) };
    (status == 0).then(|| CudaVersion::from_number(number.unsigned_abs()))
}

/// The oldest CUDA whose drivers have all the functions that are called.
const DRIVER_MIN: CudaVersion = CudaVersion { major: 12, minor: 0 };

fn accept_driver(library: &Library) -> Result<(), Error> {
    match driver_version(library) {
        Some(found) if found < DRIVER_MIN => {
            let path = library.path().to_owned();
            Err(Error::DriverTooOld { path, found, needed: DRIVER_MIN })
        }
        _ => Ok(()),
    }
}

/// Version of the CUDA toolkit that NVRTC belongs to.
pub(super) fn nvrtc_version(library: &Library) -> Option<CudaVersion> {
    type Get = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    // SAFETY: this is its type.
    let get: Get = unsafe { library.function("nvrtcVersion") }.ok()?;
    let [mut major, mut minor] = [0, 0];
    // SAFETY: it writes two ints.
    let status = unsafe { get(&raw mut major, &raw mut minor) };
    let version = CudaVersion { major: major.unsigned_abs(), minor: minor.unsigned_abs() };
    (status == 0).then_some(version)
}

fn cublaslt_version(library: &Library) -> Option<String> {
    // SAFETY: this is its type.
    let get: unsafe extern "C" fn() -> usize =
        unsafe { library.function("cublasLtGetVersion") }.ok()?;
    // SAFETY: it has no arguments and no conditions.
    Some(from_six_digits(unsafe { get() } as u64))
}

fn nccl_version(library: &Library) -> Option<String> {
    type Get = unsafe extern "C" fn(*mut c_int) -> c_int;
    // SAFETY: this is its type.
    let get: Get = unsafe { library.function("ncclGetVersion") }.ok()?;
    let mut number = 0;
    // SAFETY: it writes one int.
    let status = unsafe { get(&raw mut number) };
    (status == 0).then(|| from_six_digits(number.unsigned_abs().into()))
}

/// The oldest cuDNN, 9.25.0, with everything that attention uses: 9.18 added a deterministic
/// backward for Blackwell, 9.21 causal attention as one operation and its backward, and 9.25 a
/// backward for Hopper whose workspace does not grow with T squared.
const CUDNN_MIN: u64 = 92_500;

fn accept_cudnn(library: &Library) -> Result<(), Error> {
    match cudnn_number(library) {
        Some(found) if found < CUDNN_MIN => Err(Error::LibraryTooOld {
            library: CUDNN.name,
            path: library.path().to_owned(),
            found: from_six_digits(found),
            needed: from_six_digits(CUDNN_MIN),
            install: CUDNN.install,
        }),
        _ => Ok(()),
    }
}

fn cudnn_version(library: &Library) -> Option<String> {
    Some(from_six_digits(cudnn_number(library)?))
}

fn cudnn_number(library: &Library) -> Option<u64> {
    // SAFETY: this is its type.
    let get: unsafe extern "C" fn() -> usize =
        unsafe { library.function("cudnnGetVersion") }.ok()?;
    // SAFETY: it has no arguments and no conditions.
    Some(unsafe { get() } as u64)
}

/// Defines the look-up of a function by a module of cudarc. `culib` panics where it finds no
/// library, so that is checked first.
macro_rules! cudarc_address {
    ($function:ident, $module:ident) => {
        fn $function(symbol: &str) -> Option<*const c_void> {
            use cudarc::$module::sys;
            // SAFETY: it opens what it finds, which runs the initialization of NVIDIA's library.
            if !unsafe { sys::is_culib_present() } {
                return None;
            }
            // SAFETY: as above.
            let library = unsafe { sys::culib() };
            // SAFETY: nothing is called or read through this pointer.
            let address = unsafe { library.get::<*const c_void>(symbol) }.ok()?;
            // SAFETY: cudarc keeps its libraries open.
            let address = unsafe { address.into_raw() };
            Some(address.as_raw_ptr().cast_const())
        }
    };
}
cudarc_address!(cudarc_driver, driver);
cudarc_address!(cudarc_nvrtc, nvrtc);
cudarc_address!(cudarc_cublaslt, cublaslt);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_functions_are_sorted_and_have_no_doubles() {
        for wanted in [DRIVER, NVRTC, CUBLASLT, NCCL, CUDNN] {
            let is_sorted = wanted.symbols.is_sorted_by(|a, b| a < b);
            assert!(is_sorted && !wanted.symbols.is_empty(), "{}", wanted.name);
        }
    }

    #[test]
    fn only_libraries_of_cuda_itself_depend_on_the_driver_s_version() {
        assert_eq!(NVRTC.file_names(Some(12)), ["libnvrtc.so.12"]);
        assert_eq!(NVRTC.file_names(Some(11)), [] as [&str; 0]);
        assert_eq!(NCCL.file_names(Some(12)), ["libnccl.so.2"]);
    }
}
