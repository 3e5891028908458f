//! NVRTC: compiles kernels for one architecture, on a machine without a GPU as well.
#![allow(unsafe_code)] // calls NVRTC

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

use super::{Error, Libraries};

/// Compiler options of every kernel.
const COMMON_OPTIONS: [&str; 1] = ["--std=c++17"];

/// A file of kernels, and what it needs to be compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source<'a> {
    /// Its name, for messages of the compiler.
    pub name: &'a str,
    /// CUDA C++.
    pub text: &'a str,
    /// Name and text of what it includes.
    pub headers: &'a [(&'a str, &'a str)],
    /// Options of the compiler, such as `-DELEMENT_F32`.
    pub options: &'a [&'a str],
}

/// A compiled file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiled {
    /// Machine code for one architecture.
    pub cubin: Vec<u8>,
    /// Messages of the compiler, such as warnings.
    pub log: String,
}

/// Compiles a file as C++17 for an architecture, as in `sm_90a`.
///
/// # Errors
/// Fails if NVRTC is missing, or if the file does not compile.
pub fn compile(source: &Source<'_>, architecture: &str) -> Result<Compiled, Error> {
    check_architecture(architecture)?;
    let program = Program::new(source)?;
    program.compile(architecture)?;
    Ok(Compiled { cubin: program.cubin()?, log: program.log()? })
}

/// Checks that NVRTC knows the number in `sm_90a`: NVRTC itself only reports a wrong option.
fn check_architecture(architecture: &str) -> Result<(), Error> {
    let supported = supported_architectures()?;
    let number = architecture.trim_matches(|c: char| !c.is_ascii_digit()).parse();
    if number.is_ok_and(|number| supported.contains(&number)) {
        return Ok(());
    }
    let nvrtc = Libraries::open_nvrtc()?;
    Err(Error::UnknownArchitecture {
        path: nvrtc.path().to_owned(),
        version: nvrtc.version().unwrap_or("of unknown version").to_owned(),
        architecture: architecture.to_owned(),
    })
}

/// The architectures that this NVRTC compiles for, ascending: 90 is `sm_90`.
///
/// # Errors
/// Fails if NVRTC is missing or fails.
pub fn supported_architectures() -> Result<Vec<u32>, Error> {
    let nvrtc = Libraries::open_nvrtc()?;
    let failed = |call| {
        let source_name = nvrtc.path().display().to_string();
        move |error| nvrtc_error(&source_name, call, error)
    };
    let mut count: c_int = 0;
    // SAFETY: it writes one int.
    let status = unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) };
    status.result().map_err(failed("nvrtcGetNumSupportedArchs"))?;
    let mut architectures = vec![0 as c_int; count.unsigned_abs() as usize];
    // SAFETY: it writes as many ints as it reported before.
    let status = unsafe { sys::nvrtcGetSupportedArchs(architectures.as_mut_ptr()) };
    status.result().map_err(failed("nvrtcGetSupportedArchs"))?;
    let mut architectures: Vec<_> = architectures.into_iter().map(c_int::unsigned_abs).collect();
    architectures.sort_unstable();
    Ok(architectures)
}

/// One file in NVRTC.
struct Program<'a> {
    source: &'a Source<'a>,
    handle: nvrtcProgram,
}

impl<'a> Program<'a> {
    fn new(source: &'a Source<'_>) -> Result<Self, Error> {
        const CALL: &str = "nvrtcCreateProgram";
        let c_string = |text: &str| c_string(source, CALL, text);
        let text = c_string(source.text)?;
        let name = c_string(source.name)?;
        let headers = source.headers.iter();
        let header_names: Vec<_> =
            headers.clone().map(|(name, _)| c_string(name)).collect::<Result<_, _>>()?;
        let header_texts: Vec<_> =
            headers.map(|(_, text)| c_string(text)).collect::<Result<_, _>>()?;
        let mut handle = ptr::null_mut();
        // SAFETY: strings that end with a zero, and as many texts as names; NVRTC copies them.
        let status = unsafe {
            sys::nvrtcCreateProgram(
                &raw mut handle,
                text.as_ptr(),
                name.as_ptr(),
                source.headers.len() as c_int,
                pointers(&header_texts).as_ptr(),
                pointers(&header_names).as_ptr(),
            )
        };
        status.result().map_err(|error| nvrtc_error(source.name, CALL, error))?;
        Ok(Self { source, handle })
    }

    fn compile(&self, architecture: &str) -> Result<(), Error> {
        const CALL: &str = "nvrtcCompileProgram";
        let target = format!("--gpu-architecture={architecture}");
        let options = COMMON_OPTIONS.iter().chain(self.source.options).copied().chain([&*target]);
        // Bytes from a `CString`: cudarc panics at a zero byte.
        let options: Vec<_> = options
            .map(|option| c_string(self.source, CALL, option).map(CString::into_bytes))
            .collect::<Result<_, _>>()?;
        // SAFETY: the program exists until this is dropped.
        match unsafe { result::compile_program(self.handle, &options) } {
            Ok(()) => Ok(()),
            Err(NvrtcError(nvrtcResult::NVRTC_ERROR_COMPILATION)) => Err(Error::Compilation {
                source_name: self.source.name.to_owned(),
                architecture: architecture.to_owned(),
                log: self.log()?,
            }),
            Err(error) => {
                let log = self.log().unwrap_or_default();
                Err(with_log(self.failed(CALL, error), log.trim()))
            }
        }
    }

    fn log(&self) -> Result<String, Error> {
        // SAFETY: the program exists until this is dropped.
        let log = unsafe { result::get_program_log(self.handle) };
        let log = log.map_err(|error| self.failed("nvrtcGetProgramLog", error))?;
        let bytes: Vec<u8> = log.into_iter().map(c_char::cast_unsigned).collect();
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = 0;
        // SAFETY: the program exists until this is dropped; it writes one size.
        let status = unsafe { sys::nvrtcGetCUBINSize(self.handle, &raw mut bytes) };
        status.result().map_err(|error| self.failed("nvrtcGetCUBINSize", error))?;
        let mut cubin = vec![0_u8; bytes];
        // SAFETY: it writes as many bytes as it reported before.
        let status = unsafe { sys::nvrtcGetCUBIN(self.handle, cubin.as_mut_ptr().cast()) };
        status.result().map_err(|error| self.failed("nvrtcGetCUBIN", error))?;
        Ok(cubin)
    }

    fn failed(&self, call: &'static str, error: NvrtcError) -> Error {
        nvrtc_error(self.source.name, call, error)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the program exists, and nobody has it any more. That it cannot be destroyed
        // leaks memory, no more.
        let _ = unsafe { sys::nvrtcDestroyProgram(&raw mut self.handle) };
    }
}

fn c_string(source: &Source<'_>, call: &'static str, text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::Nvrtc {
        source_name: source.name.to_owned(),
        call,
        reason: format!("there is a zero byte in {text:?}"),
    })
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).collect()
}

fn nvrtc_error(source_name: &str, call: &'static str, NvrtcError(status): NvrtcError) -> Error {
    // SAFETY: NVRTC is open; it returns a text of its own for any status.
    let text = unsafe { sys::nvrtcGetErrorString(status) };
    let reason = if text.is_null() {
        format!("{status:?}")
    } else {
        // SAFETY: it ends with a zero and is never changed.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    Error::Nvrtc { source_name: source_name.to_owned(), call, reason }
}

/// Adds the log, which names the wrong option or the missing file.
fn with_log(error: Error, log: &str) -> Error {
    match error {
        Error::Nvrtc { source_name, call, reason } if !log.is_empty() => {
            Error::Nvrtc { source_name, call, reason: format!("{reason}: {log}") }
        }
        error => error,
    }
}
