//! One of CUDA's libraries, opened and checked.
#![allow(unsafe_code)] // opens libraries and looks functions up

use std::ffi::{CStr, OsStr, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Handle, RTLD_GLOBAL, RTLD_NOW};

use super::search::Search;
use super::wanted::Wanted;
use super::{Error, Rejected, Searched};

/// An open library that has every function that is needed.
pub struct Library {
    name: &'static str,
    handle: Handle,
    path: PathBuf,
    version: Option<String>,
}

impl Library {
    /// Opens the newest that there is. `cuda_major` is what the driver can run, if there is one.
    pub(super) fn open(
        wanted: &Wanted,
        search: &Search,
        cuda_major: Option<u32>,
    ) -> Result<Self, Error> {
        let file_names = wanted.file_names(cuda_major);
        let mut rejected = Vec::new();
        for file_name in &file_names {
            for candidate in search.candidates(file_name) {
                match open_file(&candidate) {
                    Ok(handle) => return Self::check(wanted, handle, &candidate),
                    Err(reason) if is_absence(&reason, file_name) => {}
                    Err(reason) => rejected.push(Rejected { path: candidate, reason }),
                }
            }
        }
        let Search { asks_loader: asked_loader, folders } = search.clone();
        Err(wanted.missing(Searched { file_names, asked_loader, folders, rejected }))
    }

    fn check(wanted: &Wanted, handle: Handle, candidate: &Path) -> Result<Self, Error> {
        let mut library =
            Self { name: wanted.name, handle, path: candidate.to_owned(), version: None };
        let known = wanted.symbols.iter().find_map(|symbol| library.address(symbol));
        // The dynamic loader knows what it opened for a name, and by which of several links.
        if let Some(path) = known.and_then(file_of) {
            library.path = path;
        }
        library.version = (wanted.version)(&library);
        (wanted.accept)(&library)?;
        match wanted.symbols.iter().find(|symbol| library.address(symbol).is_none()) {
            Some(symbol) => Err(library.lacks(symbol)),
            None => Ok(library),
        }
    }

    /// Its name, as in `cuBLASLt`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version that the library reports.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// The function of this name.
    ///
    /// # Errors
    /// Fails if the library does not have it.
    ///
    /// # Safety
    /// `F` is the type of a pointer to this function. What it returns is valid for the life of the
    /// process where the library is one of [`Libraries`](super::Libraries).
    pub unsafe fn function<F: Copy>(&self, name: &str) -> Result<F, Error> {
        // SAFETY: that the type is the function's is the caller's promise.
        match unsafe { self.handle.get::<F>(name) } {
            Ok(function) => Ok(*function),
            Err(_) => Err(self.lacks(name)),
        }
    }

    /// Address of a function.
    pub(super) fn address(&self, name: &str) -> Option<*const c_void> {
        // SAFETY: nothing is called or read through this pointer.
        let address = unsafe { self.handle.get::<*const c_void>(name) }.ok()?;
        Some(address.as_raw_ptr().cast_const())
    }

    fn lacks(&self, symbol: &str) -> Error {
        Error::SymbolMissing {
            library: self.name,
            path: self.path.clone(),
            version: self.version.clone(),
            symbol: symbol.to_owned(),
        }
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version.as_deref().unwrap_or("unknown version");
        write!(formatter, "Library({} {version}, {})", self.name, self.path.display())
    }
}

/// Opens a library for the whole process; the reason as text where that fails.
pub(super) fn open_file(path: &Path) -> Result<Handle, String> {
    // SAFETY: it runs the library's initialization, which for NVIDIA's has no conditions.
    let opened = unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    opened.map_err(|error| {
        let reason = std::error::Error::source(&error).map(ToString::to_string);
        reason.unwrap_or_else(|| error.to_string())
    })
}

/// Returns whether the dynamic loader found no file of this name, rather than a fault in the file
/// or in one of its dependencies.
fn is_absence(reason: &str, file_name: &str) -> bool {
    let behind = reason.strip_prefix(file_name);
    behind.is_some_and(|behind| behind.starts_with(": cannot open shared object file"))
}

/// The file from which this address was loaded.
pub(super) fn file_of(address: *const c_void) -> Option<PathBuf> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr accepts any address, and writes to `found` only.
    let success = unsafe { libc::dladdr(address, found.as_mut_ptr()) } != 0;
    // SAFETY: all zeros are a valid `Dl_info`.
    let name = unsafe { found.assume_init() }.dli_fname;
    if !success || name.is_null() {
        return None;
    }
    // SAFETY: it is the loader's own name of the file, which ends with a zero.
    let name = unsafe { CStr::from_ptr(name) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::wanted;
    use std::process::Command;

    /// A folder with a library that has the functions of this C text.
    fn planted(file_name: &str, text: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source.c");
        std::fs::write(&source, text).unwrap();
        let library = folder.path().join(file_name);
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(library).arg(source);
        assert!(cc.status().unwrap().success());
        folder
    }

    fn only_in(folders: &[&Path]) -> Search {
        let folders = folders.iter().map(|folder| folder.to_path_buf()).collect();
        Search { asks_loader: false, folders }
    }

    /// C source of every function that NVRTC must have, with version 12.4.
    fn nvrtc_text() -> String {
        let functions = wanted::NVRTC.symbols.iter().filter(|name| **name != "nvrtcVersion");
        let others: String = functions.map(|name| format!("void {name}(void) {{}}\n")).collect();
        others + "int nvrtcVersion(int *major, int *minor) { *major = 12; *minor = 4; return 0; }\n"
    }

    #[test]
    fn a_library_that_has_all_functions_is_opened_and_tells_its_version() {
        let folder = planted("libnvrtc.so.12", &nvrtc_text());
        let library = Library::open(&wanted::NVRTC, &only_in(&[folder.path()]), Some(13)).unwrap();
        assert_eq!(library.version(), Some("12.4"));
        assert_eq!(library.path(), folder.path().join("libnvrtc.so.12"));
    }

    #[test]
    fn a_file_that_is_no_library_is_named_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libcuda.so.1");
        std::fs::write(&file, "").unwrap();
        let error = Library::open(&wanted::DRIVER, &only_in(&[folder.path()]), None).unwrap_err();
        let Error::NoDriver { searched } = &error else { panic!("{error}") };
        assert_eq!(searched.rejected[0].path, file);
        assert!(error.to_string().contains("file too short"), "{error}");
    }

    #[test]
    fn a_broken_library_is_passed_over_for_a_good_one_in_a_later_folder() {
        let broken = tempfile::tempdir().unwrap();
        std::fs::write(broken.path().join("libnvrtc.so.12"), "not ELF at all").unwrap();
        let good = planted("libnvrtc.so.12", &nvrtc_text());
        let search = only_in(&[broken.path(), good.path()]);
        let library = Library::open(&wanted::NVRTC, &search, None).unwrap();
        assert_eq!(library.path(), good.path().join("libnvrtc.so.12"));
    }

    #[test]
    fn a_missing_function_is_named_with_the_version_of_the_library() {
        let text = nvrtc_text().replace("nvrtcGetCUBINSize", "nvrtcGetSomethingElse");
        let folder = planted("libnvrtc.so.12", &text);
        let error = Library::open(&wanted::NVRTC, &only_in(&[folder.path()]), None).unwrap_err();
        let expected = Error::SymbolMissing {
            library: "NVRTC",
            path: folder.path().join("libnvrtc.so.12"),
            version: Some("12.4".to_owned()),
            symbol: "nvrtcGetCUBINSize".to_owned(),
        };
        assert_eq!(error, expected);
    }

    #[test]
    fn the_newest_is_opened_that_the_driver_can_run() {
        let folder = planted("libnvrtc.so.12", &nvrtc_text());
        let newer = nvrtc_text().replace("*major = 12", "*major = 13");
        let other = planted("libnvrtc.so.13", &newer);
        let search = only_in(&[folder.path(), other.path()]);
        let version = |cuda_major| {
            let library = Library::open(&wanted::NVRTC, &search, cuda_major).unwrap();
            library.version().unwrap().to_owned()
        };
        assert_eq!(version(Some(12)), "12.4");
        assert_eq!(version(Some(13)), "13.4");
        assert_eq!(version(Some(14)), "13.4");
        assert_eq!(version(None), "13.4");
    }

    #[test]
    fn a_missing_library_says_which_names_were_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        let search = only_in(&[folder.path()]);
        let error = Library::open(&wanted::CUBLASLT, &search, Some(12)).unwrap_err();
        let Error::LibraryMissing { library: "cuBLASLt", searched, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(searched.file_names, ["libcublasLt.so.12"]);
        assert!(error.to_string().contains("nvidia-cublas"), "{error}");
    }

    #[test]
    fn only_an_absent_file_is_no_reason_to_tell() {
        let absent = "libcuda.so.1: cannot open shared object file: No such file or directory";
        let dependency = "libdl.so.9: cannot open shared object file: No such file or directory";
        assert!(is_absence(absent, "libcuda.so.1"));
        assert!(!is_absence(dependency, "libcuda.so.1"));
        assert!(!is_absence("/lib/libcuda.so.1: file too short", "libcuda.so.1"));
    }
}
