//! One of CUDA's libraries, opened and checked.
#![allow(unsafe_code)] // opens libraries and looks functions up

use std::ffi::{CStr, OsStr, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Handle, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};

use super::function_table::FunctionTable;
use super::search::Places;
use super::wanted::Wanted;
use super::{Error, Fault, Rejected, Searched, Version};

/// An open library.
pub struct Library {
    name: &'static str,
    handle: Handle,
    path: PathBuf,
    version: Option<Version>,
    /// Open for as long as the library.
    parts: Vec<Handle>,
    /// Copies that were tried before.
    rejected: Vec<Rejected>,
}

/// An open library that can be used, and its functions.
#[derive(Debug)]
pub(super) struct Opened<F> {
    pub(super) library: Library,
    pub(super) functions: F,
}

impl<F: FunctionTable> Opened<F> {
    /// Opens the first copy that can be used, of the newest that there is. `cuda_major` is what the
    /// driver can run, if there is one; `suits` rejects copies by what their functions return.
    pub(super) fn find(
        wanted: &Wanted,
        places: &Places,
        cuda_major: Option<u32>,
        mut suits: impl FnMut(&Self) -> Result<(), Fault>,
    ) -> Result<Self, Error> {
        let file_names = wanted.file_names(cuda_major);
        let mut rejected: Vec<Rejected> = Vec::new();
        let mut called: Option<Library> = None;
        for candidate in file_names.iter().flat_map(|name| places.candidates(name)) {
            if rejected.iter().any(|before| is_same_file(&before.path, &candidate)) {
                continue;
            }
            if called.take().is_some_and(|library| library.stays_after_close(wanted)) {
                break;
            }
            let mut library = match Library::load(wanted, F::NAMES, &candidate) {
                Ok(library) => library,
                Err(reason) if is_absence(&reason, &candidate) => continue,
                Err(reason) => {
                    let fault = Fault::NotLoadable(reason);
                    rejected.push(Rejected { path: candidate, fault });
                    continue;
                }
            };
            match library.check(wanted) {
                Ok(functions) => {
                    let mut opened = Self { library, functions };
                    if let Err(fault) = suits(&opened) {
                        rejected.push(opened.library.rejected_for(fault));
                        called = Some(opened.library);
                        continue;
                    }
                    opened.library.rejected = rejected;
                    return Ok(opened);
                }
                Err(reason) => {
                    rejected.push(reason);
                    called = Some(library);
                }
            }
        }
        // Closed only for the sake of another copy: processes crashed as they closed a driver that
        // had not started (JuliaGPU/CUDA.jl#1848).
        std::mem::forget(called);
        let Places { asks_loader: asked_loader, folders } = places.clone();
        Err(wanted.not_found(Searched { file_names, asked_loader, folders, rejected }))
    }
}

impl Library {
    /// Opens a file, and calls nothing of it.
    fn load(wanted: &Wanted, names: &[&str], candidate: &Path) -> Result<Self, String> {
        let mut library = Self {
            name: wanted.name,
            handle: open_file(candidate)?,
            path: candidate.to_owned(),
            version: None,
            parts: Vec::new(),
            rejected: Vec::new(),
        };
        let known = names.iter().find_map(|name| library.address(name));
        // The dynamic loader knows what it opened for a name, and by which of several links.
        if let Some(path) = known.and_then(file_of) {
            library.path = path;
        }
        Ok(library)
    }

    /// Opens its parts, and looks the functions up if it is new enough.
    fn check<F: FunctionTable>(&mut self, wanted: &Wanted) -> Result<F, Rejected> {
        for path in (wanted.parts)(self) {
            let part = open_file(&path);
            let part =
                part.map_err(|reason| Rejected { path, fault: Fault::NotLoadable(reason) })?;
            self.parts.push(part);
        }
        self.version = (wanted.version)(self);
        self.require_new_enough(wanted)?;
        F::find(self).map_err(|fault| self.rejected_for(fault))
    }

    /// Closes it, and returns whether it stays in the process.
    fn stays_after_close(self, wanted: &Wanted) -> bool {
        let path = self.path.clone();
        drop(self);
        wanted.is_opened_by_name && is_loaded(&path)
    }

    fn require_new_enough(&self, wanted: &Wanted) -> Result<(), Rejected> {
        match (self.version, wanted.oldest) {
            (Some(found), Some(needed)) if found < needed => {
                Err(self.rejected_for(Fault::TooOld { found, needed }))
            }
            _ => Ok(()),
        }
    }

    fn rejected_for(&self, fault: Fault) -> Rejected {
        Rejected { path: self.path.clone(), fault }
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
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// Its version for a sentence, as in `12.4` or `of unknown version`.
    pub fn version_text(&self) -> String {
        self.version.map_or("of unknown version".to_owned(), |version| version.to_string())
    }

    /// Copies of it that were found before, and cannot be used.
    pub fn rejected(&self) -> &[Rejected] {
        &self.rejected
    }

    /// The function of this name.
    ///
    /// # Safety
    /// `F` is the type of a pointer to this function, which is valid for as long as this.
    pub(super) unsafe fn function<F: Copy>(&self, name: &'static str) -> Result<F, Fault> {
        // SAFETY: that the type is the function's is the caller's promise.
        match unsafe { self.handle.get::<F>(name) } {
            Ok(function) => Ok(*function),
            Err(_) => Err(Fault::FunctionMissing { function: name, version: self.version }),
        }
    }

    /// Address of a function.
    fn address(&self, name: &str) -> Option<*const c_void> {
        // SAFETY: nothing is called or read through this pointer.
        let address = unsafe { self.handle.get::<*const c_void>(name) }.ok()?;
        Some(address.as_raw_ptr().cast_const())
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, path, .. } = self;
        write!(formatter, "Library({name} {}, {})", self.version_text(), path.display())
    }
}

/// Opens a library for itself: one that is rejected must not lend its functions to the next. The
/// reason as text where that fails.
fn open_file(path: &Path) -> Result<Handle, String> {
    // SAFETY: it runs the library's initialization, which for NVIDIA's has no conditions.
    let opened = unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    opened.map_err(|error| {
        let reason = std::error::Error::source(&error).map(ToString::to_string);
        reason.unwrap_or_else(|| error.to_string())
    })
}

/// Returns whether a file is in the process.
fn is_loaded(path: &Path) -> bool {
    // SAFETY: it loads nothing.
    unsafe { Handle::open(Some(path), RTLD_LAZY | libc::RTLD_NOLOAD) }.is_ok()
}

/// Returns whether the dynamic loader found no file of this name, rather than a fault in the file
/// or in one of its dependencies.
fn is_absence(reason: &str, candidate: &Path) -> bool {
    let behind = candidate.to_str().and_then(|name| reason.strip_prefix(name));
    let is_absent = |behind: &str| behind.starts_with(": cannot open shared object file");
    candidate.is_relative() && behind.is_some_and(is_absent)
}

/// Returns whether two paths lead to one file.
fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// The file from which this address was loaded.
fn file_of(address: *const c_void) -> Option<PathBuf> {
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
    use crate::cuda::ComputeCapability;
    use crate::cuda::cublaslt::CublasLt;
    use crate::cuda::driver::Driver;
    use crate::cuda::function_table::function_table;
    use crate::cuda::nvrtc::Nvrtc;
    use crate::cuda::wanted;
    use std::process::Command;

    /// A folder with a library that has the functions of this C text.
    fn planted(file_name: &str, text: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        plant(folder.path(), file_name, text, &[]);
        folder
    }

    fn plant(folder: &Path, file_name: &str, text: &str, linker: &[&str]) {
        let source = folder.join("source.c");
        std::fs::write(&source, text).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(folder.join(file_name)).arg(source).args(linker);
        assert!(cc.status().unwrap().success());
    }

    fn only_in(folders: &[&Path]) -> Places {
        let folders = folders.iter().map(|folder| folder.to_path_buf()).collect();
        Places { asks_loader: false, folders }
    }

    fn nvrtc_in(folders: &[&Path], cuda_major: Option<u32>) -> Result<Library, Error> {
        let opened =
            Opened::<Nvrtc>::find(&wanted::NVRTC, &only_in(folders), cuda_major, |_| Ok(()));
        opened.map(|opened| opened.library)
    }

    /// C source of every function that NVRTC must have, with version 12.4.
    fn nvrtc_text() -> String {
        let functions = Nvrtc::NAMES.iter();
        let others: String = functions.map(|name| format!("void {name}(void) {{}}\n")).collect();
        others + "int nvrtcVersion(int *major, int *minor) { *major = 12; *minor = 4; return 0; }\n"
    }

    #[test]
    fn a_library_that_has_all_functions_is_opened_and_tells_its_version() {
        let folder = planted("libnvrtc.so.12", &nvrtc_text());
        let library = nvrtc_in(&[folder.path()], Some(13)).unwrap();
        assert_eq!(library.version().unwrap().to_string(), "12.4");
        assert_eq!(library.path(), folder.path().join("libnvrtc.so.12"));
    }

    #[test]
    fn a_file_that_is_no_library_is_named_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libcuda.so.1");
        std::fs::write(&file, "").unwrap();
        let places = only_in(&[folder.path()]);
        let found = Opened::<Driver>::find(&wanted::DRIVER, &places, None, |_| Ok(()));
        let error = found.unwrap_err();
        let Error::NoDriver { searched } = &error else { panic!("{error}") };
        assert_eq!(searched.rejected[0].path, file);
        assert!(error.to_string().contains("file too short"), "{error}");
    }

    #[test]
    fn copies_that_cannot_be_used_are_passed_over_for_a_good_one_in_a_later_folder() {
        let broken = tempfile::tempdir().unwrap();
        std::fs::write(broken.path().join("libnvrtc.so.12"), "not ELF at all").unwrap();
        let text = nvrtc_text().replace("nvrtcGetCUBINSize", "nvrtcGetSomethingElse");
        let lacking = planted("libnvrtc.so.12", &text);
        let good = planted("libnvrtc.so.12", &nvrtc_text());
        let library = nvrtc_in(&[broken.path(), lacking.path(), good.path()], None).unwrap();
        assert_eq!(library.path(), good.path().join("libnvrtc.so.12"));
        let rejected = library.rejected();
        assert!(matches!(rejected[0].fault, Fault::NotLoadable(_)), "{rejected:?}");
        assert_eq!(rejected[1].path, lacking.path().join("libnvrtc.so.12"));
        let said = rejected[1].to_string();
        assert!(said.ends_with("lacks the function nvrtcGetCUBINSize (version 12.4)"), "{said}");
        let error = nvrtc_in(&[lacking.path()], None).unwrap_err().to_string();
        assert!(error.contains(&said), "{error}");
    }

    function_table! {
        /// A library with one function.
        #[expect(dead_code, reason = "it is only looked up")]
        struct Planted {
            fn planted() -> usize;
        }
    }

    /// NVRTC that compiles for one architecture.
    fn nvrtc_for(architecture: u32) -> tempfile::TempDir {
        let functions = format!(
            "int nvrtcGetNumSupportedArchs(int *count) {{ *count = 1; return 0; }}\n\
             int nvrtcGetSupportedArchs(int *list) {{ *list = {architecture}; return 0; }}\n"
        );
        let text = nvrtc_text();
        let others = text.lines().filter(|line| !line.contains("SupportedArchs"));
        let others: String = others.map(|line| format!("{line}\n")).collect();
        planted("libnvrtc.so.12", &(others + &functions))
    }

    #[test]
    fn a_compiler_that_knows_none_of_the_devices_is_passed_over() {
        let [old, good] = [nvrtc_for(90), nvrtc_for(120)];
        let places = only_in(&[old.path(), good.path()]);
        let find = |devices: &[ComputeCapability]| {
            let knows_one = |nvrtc: &Opened<Nvrtc>| nvrtc.knows_one_of(devices);
            let opened = Opened::find(&wanted::NVRTC, &places, None, knows_one);
            opened.map(|opened| opened.library).map_err(|error| error.to_string())
        };
        let device = |major| ComputeCapability { major, minor: 0 };
        let library = find(&[device(12)]).unwrap();
        assert_eq!(library.path(), good.path().join("libnvrtc.so.12"));
        let said = library.rejected()[0].to_string();
        assert!(said.ends_with("does not compile for sm_120a (version 12.4)"), "{said}");
        for devices in [&[][..], &[device(9), device(12)]] {
            let first = find(devices).unwrap();
            assert_eq!(first.path(), old.path().join("libnvrtc.so.12"), "{devices:?}");
        }
        let none = find(&[device(10), device(8)]).unwrap_err();
        assert!(none.contains("does not compile for sm_100a or sm_80 (version 12.4)"), "{none}");
    }

    /// A library of one function that is rejected by its path, and is or is not unloaded by then.
    fn behind_a_rejected_one(linker: &[&str]) -> Result<Library, Error> {
        let text = "unsigned long planted(void) { return 1; }\n";
        let [bad, good] = [tempfile::tempdir().unwrap(), planted("libx.so.1", text)];
        plant(bad.path(), "libx.so.1", text, linker);
        let wanted = Wanted { stem: "libx.so", ..wanted::DRIVER };
        let suits = |opened: &Opened<Planted>| {
            let is_bad = opened.library.path().starts_with(bad.path());
            if is_bad { Err(Fault::NotLoadable("bad".into())) } else { Ok(()) }
        };
        let opened = Opened::find(&wanted, &only_in(&[bad.path(), good.path()]), None, suits);
        opened.map(|opened| opened.library)
    }

    #[test]
    fn behind_a_rejected_copy_that_cannot_be_unloaded_no_other_is_tried() {
        assert_eq!(behind_a_rejected_one(&[]).unwrap().rejected().len(), 1);
        behind_a_rejected_one(&["-Wl,-z,nodelete"]).unwrap_err();
    }

    #[test]
    fn the_newest_is_opened_that_the_driver_can_run() {
        let folder = planted("libnvrtc.so.12", &nvrtc_text());
        let newer = nvrtc_text().replace("*major = 12", "*major = 13");
        let other = planted("libnvrtc.so.13", &newer);
        let version = |cuda_major| {
            let library = nvrtc_in(&[folder.path(), other.path()], cuda_major).unwrap();
            library.version().unwrap().to_string()
        };
        assert_eq!(version(Some(12)), "12.4");
        assert_eq!(version(Some(13)), "13.4");
        assert_eq!(version(Some(14)), "13.4");
        assert_eq!(version(None), "13.4");
    }

    #[test]
    fn a_missing_library_says_which_names_were_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        let places = only_in(&[folder.path()]);
        let found = Opened::<CublasLt>::find(&wanted::CUBLASLT, &places, Some(12), |_| Ok(()));
        let error = found.unwrap_err();
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
        let name = Path::new("libcuda.so.1");
        assert!(is_absence(absent, name));
        assert!(!is_absence(dependency, name));
        assert!(!is_absence("/lib/libcuda.so.1: file too short", name));
    }
}
