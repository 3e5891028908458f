//! Requirements on each of CUDA's libraries, known before it is opened.
#![allow(unsafe_code)] // calls the functions that return versions

use std::ffi::c_int;
use std::path::PathBuf;

use super::library::Library;
use super::rejected::TooOld;
use super::{Error, Searched, Version};

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
    /// The oldest driver that is enough; other libraries are judged by their functions.
    pub(super) oldest: Option<Version>,
    /// Queries its version.
    pub(super) version: fn(&Library) -> Option<Version>,
    /// Files that the library opens by name, in an order in which each finds what it needs: the
    /// dynamic loader might find others of these names.
    pub(super) parts: fn(&Library) -> Vec<PathBuf>,
    /// Other libraries open it by its name: they would find a rejected copy that stays in the
    /// process after it was closed, so that no other can be used then.
    pub(super) is_opened_by_name: bool,
    /// Hint for installing another one.
    pub(super) install: &'static str,
}

/// Requirements that most libraries share.
const ORDINARY: Wanted = Wanted {
    name: "",
    stem: "",
    majors: &[],
    follows_cuda: false,
    oldest: None,
    version: |_| None,
    parts: |_| Vec::new(),
    is_opened_by_name: false,
    install: "",
};

/// The driver.
pub(super) const DRIVER: Wanted = Wanted {
    name: "CUDA driver",
    stem: "libcuda.so",
    majors: &[1],
    oldest: Some(Version::of_cuda(12, 0)),
    version: driver_version,
    is_opened_by_name: true,
    install: "install NVIDIA's driver, or start the container with access to GPUs",
    ..ORDINARY
};

/// The compiler of kernels.
pub(super) const NVRTC: Wanted = Wanted {
    name: "NVRTC",
    stem: "libnvrtc.so",
    majors: &[13, 12],
    follows_cuda: true,
    version: nvrtc_version,
    parts: nvrtc_builtins,
    install: "install a CUDA toolkit that is not newer than the driver, or the wheel \
              nvidia-cuda-nvrtc (for CUDA 12 nvidia-cuda-nvrtc-cu12)",
    ..ORDINARY
};

/// Matmuls.
pub(super) const CUBLASLT: Wanted = Wanted {
    name: "cuBLASLt",
    stem: "libcublasLt.so",
    majors: &[13, 12],
    follows_cuda: true,
    version: cublaslt_version,
    install: "install a CUDA toolkit that is not newer than the driver, or the wheel \
              nvidia-cublas (for CUDA 12 nvidia-cublas-cu12)",
    ..ORDINARY
};

/// Collectives.
pub(super) const NCCL: Wanted = Wanted {
    name: "NCCL",
    stem: "libnccl.so",
    majors: &[2],
    version: nccl_version,
    install: "install NVIDIA's package libnccl2, or the wheel nvidia-nccl-cu13 (for CUDA 12 \
              nvidia-nccl-cu12)",
    ..ORDINARY
};

impl Wanted {
    /// Names of its file that this driver can use, newest first.
    pub(super) fn file_names(&self, cuda_major: Option<u32>) -> Vec<String> {
        let can_run = |major: u32| !self.follows_cuda || cuda_major.is_none_or(|max| major <= max);
        let majors = self.majors.iter().filter(|&&major| can_run(major));
        majors.map(|major| format!("{}.{major}", self.stem)).collect()
    }

    /// The error of finding no copy that can be used.
    pub(super) fn not_found(&self, searched: Searched) -> Error {
        let is_driver = self.stem == DRIVER.stem;
        match searched.too_old() {
            Some(TooOld { needed, found }) => Error::DriverTooOld { needed, found },
            None if searched.has_not_starting() => Error::NoDriverStarts { searched },
            None if is_driver => Error::NoDriver { searched },
            None => Error::LibraryMissing { library: self.name, searched, install: self.install },
        }
    }
}

/// The newest CUDA that the driver can run.
fn driver_version(library: &Library) -> Option<Version> {
    type Get = unsafe extern "C" fn(*mut c_int) -> c_int;
    // SAFETY: this is its type.
    let get: Get = unsafe { library.function("cuDriverGetVersion") }.ok()?;
    let mut number = 0;
    // SAFETY: it writes one int; it needs no cuInit.
    let status = unsafe { get(&raw mut number) };
    (status == 0).then(|| Version::from_cuda_number(number.unsigned_abs()))
}

/// Version of the CUDA toolkit that NVRTC belongs to.
fn nvrtc_version(library: &Library) -> Option<Version> {
    type Get = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    // SAFETY: this is its type.
    let get: Get = unsafe { library.function("nvrtcVersion") }.ok()?;
    let [mut major, mut minor] = [0, 0];
    // SAFETY: it writes two ints.
    let status = unsafe { get(&raw mut major, &raw mut minor) };
    (status == 0).then(|| Version::of_cuda(major.unsigned_abs(), minor.unsigned_abs()))
}

fn nccl_version(library: &Library) -> Option<Version> {
    type Get = unsafe extern "C" fn(*mut c_int) -> c_int;
    // SAFETY: this is its type.
    let get: Get = unsafe { library.function("ncclGetVersion") }.ok()?;
    let mut number = 0;
    // SAFETY: it writes one int.
    let status = unsafe { get(&raw mut number) };
    (status == 0).then(|| Version::from_six_digits(number.unsigned_abs()))
}

fn cublaslt_version(library: &Library) -> Option<Version> {
    type Get = unsafe extern "C" fn() -> usize;
    // SAFETY: this is its type.
    let get: Get = unsafe { library.function("cublasLtGetVersion") }.ok()?;
    // SAFETY: it has no arguments and no conditions.
    Some(Version::from_six_digits(unsafe { get() } as u32))
}

/// A file beside NVRTC.
fn nvrtc_builtins(library: &Library) -> Vec<PathBuf> {
    let (Some(folder), Some(version)) = (library.path().parent(), nvrtc_version(library)) else {
        return Vec::new();
    };
    let builtins = folder.join(format!("libnvrtc-builtins.so.{version}"));
    builtins.is_file().then_some(builtins).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_libraries_of_cuda_itself_depend_on_the_driver_s_version() {
        assert_eq!(NVRTC.file_names(Some(12)), ["libnvrtc.so.12"]);
        assert_eq!(NVRTC.file_names(Some(11)), [] as [&str; 0]);
        assert_eq!(NCCL.file_names(Some(12)), ["libnccl.so.2"]);
    }
}
