//! NVRTC: compiles kernels for one architecture, on a machine without a GPU as well.
#![allow(unsafe_code)] // calls NVRTC

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use cudarc::nvrtc::sys::{nvrtcProgram, nvrtcResult};

use super::function_table::function_table;
use super::library::Opened;
use super::{ComputeCapability, Error, Fault, Libraries};

/// `nvrtcResult`. A later version may return a number that its header did not have before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
#[must_use]
pub(super) struct Status(c_int);

impl Status {
    const SUCCESS: Self = Self(0);
    const COMPILATION: Self = Self(nvrtcResult::NVRTC_ERROR_COMPILATION as c_int);
}

function_table! {
    /// The functions that are called.
    pub(super) struct Nvrtc {
        fn nvrtcCompileProgram(nvrtcProgram, c_int, *const *const c_char) -> Status;
        fn nvrtcCreateProgram(
            *mut nvrtcProgram,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> Status;
        fn nvrtcDestroyProgram(*mut nvrtcProgram) -> Status;
        fn nvrtcGetCUBIN(nvrtcProgram, *mut c_char) -> Status;
        fn nvrtcGetCUBINSize(nvrtcProgram, *mut usize) -> Status;
        fn nvrtcGetErrorString(Status) -> *const c_char;
        fn nvrtcGetNumSupportedArchs(*mut c_int) -> Status;
        fn nvrtcGetProgramLog(nvrtcProgram, *mut c_char) -> Status;
        fn nvrtcGetProgramLogSize(nvrtcProgram, *mut usize) -> Status;
        fn nvrtcGetSupportedArchs(*mut c_int) -> Status;
    }
}

impl Nvrtc {
    /// Fails with NVRTC's text for a status other than success.
    fn check(&self, source_name: &str, call: &'static str, status: Status) -> Result<(), Error> {
        if status == Status::SUCCESS {
            return Ok(());
        }
        let reason = self.text(status);
        Err(Error::Nvrtc { source_name: source_name.to_owned(), call, reason })
    }

    fn text(&self, Status(number): Status) -> String {
        // SAFETY: it accepts every number, and returns a text of its own.
        let text = unsafe { (self.nvrtcGetErrorString)(Status(number)) };
        if text.is_null() {
            return format!("NVRTC error {number}");
        }
        // SAFETY: it ends with a zero and is never changed.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

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

impl Compiled {
    /// Lines of the log about products by wgmma that are serialized, or whose fences and waits the
    /// compiler had to add: advice C7510 to C7520 in the versions that were seen.
    pub fn complaints(&self) -> impl Iterator<Item = &str> {
        let lines = self.log.lines();
        lines.filter(|line| line.contains("(C75") || line.contains("serializ"))
    }
}

/// Compiles a file as C++17 for an architecture, as in `sm_90a`. Warns where the compiler says that
/// the result is slow.
///
/// # Errors
/// Fails if NVRTC is missing, or if the file does not compile.
pub fn compile(source: &Source<'_>, architecture: &str) -> Result<Compiled, Error> {
    check_architecture(architecture)?;
    let program = Program::new(source)?;
    program.compile(architecture)?;
    let compiled = Compiled { cubin: program.cubin()?, log: program.log()? };
    if let Some(complaint) = compiled.complaints().next() {
        let version = Libraries::open_nvrtc()?.library.version_text();
        let name = source.name;
        tracing::warn!("{name} as compiled by NVRTC {version} may be slow: {complaint}");
    }
    Ok(compiled)
}

/// Checks that NVRTC knows the number in `sm_90a`: NVRTC itself only reports a wrong option.
fn check_architecture(architecture: &str) -> Result<(), Error> {
    let supported = supported_architectures()?;
    let number = architecture.trim_matches(|c: char| !c.is_ascii_digit()).parse();
    if number.is_ok_and(|number| supported.contains(&number)) {
        return Ok(());
    }
    let nvrtc = &Libraries::open_nvrtc()?.library;
    Err(Error::UnknownArchitecture {
        path: nvrtc.path().to_owned(),
        version: nvrtc.version_text(),
        architecture: architecture.to_owned(),
    })
}

/// The architectures that this NVRTC compiles for, ascending: 90 is `sm_90`.
///
/// # Errors
/// Fails if NVRTC is missing or fails.
pub fn supported_architectures() -> Result<Vec<u32>, Error> {
    Libraries::open_nvrtc()?.architectures()
}

impl Opened<Nvrtc> {
    /// Rejects a copy that compiles for none of these devices, if there are any: machine code is
    /// for one architecture, and the driver does not translate it.
    pub(super) fn knows_one_of(&self, devices: &[ComputeCapability]) -> Result<(), Fault> {
        let Ok(known) = self.architectures() else {
            return Ok(()); // a kernel's compilation says why
        };
        let is_known =
            |device: &ComputeCapability| known.contains(&(device.major * 10 + device.minor));
        if devices.is_empty() || devices.iter().any(is_known) {
            return Ok(());
        }
        let needed = devices.iter().map(|device| device.architecture()).collect();
        Err(Fault::OtherArchitectures { needed, version: self.library.version() })
    }

    /// The architectures that it compiles for, ascending.
    fn architectures(&self) -> Result<Vec<u32>, Error> {
        let Self { library, functions: nvrtc } = self;
        let file = library.path().display().to_string();
        let mut count: c_int = 0;
        // SAFETY: it writes one int.
        let status = unsafe { (nvrtc.nvrtcGetNumSupportedArchs)(&raw mut count) };
        nvrtc.check(&file, "nvrtcGetNumSupportedArchs", status)?;
        let mut found = vec![0 as c_int; count.unsigned_abs() as usize];
        // SAFETY: it writes as many ints as it reported before.
        let status = unsafe { (nvrtc.nvrtcGetSupportedArchs)(found.as_mut_ptr()) };
        nvrtc.check(&file, "nvrtcGetSupportedArchs", status)?;
        let mut found: Vec<_> = found.into_iter().map(c_int::unsigned_abs).collect();
        found.sort_unstable();
        Ok(found)
    }
}

/// One file in NVRTC.
struct Program<'a> {
    source: &'a Source<'a>,
    handle: nvrtcProgram,
    nvrtc: &'static Nvrtc,
}

impl<'a> Program<'a> {
    fn new(source: &'a Source<'_>) -> Result<Self, Error> {
        const CALL: &str = "nvrtcCreateProgram";
        let nvrtc = &Libraries::open_nvrtc()?.functions;
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
            (nvrtc.nvrtcCreateProgram)(
                &raw mut handle,
                text.as_ptr(),
                name.as_ptr(),
                source.headers.len() as c_int,
                pointers(&header_texts).as_ptr(),
                pointers(&header_names).as_ptr(),
            )
        };
        nvrtc.check(source.name, CALL, status)?;
        Ok(Self { source, handle, nvrtc })
    }

    fn compile(&self, architecture: &str) -> Result<(), Error> {
        const CALL: &str = "nvrtcCompileProgram";
        let target = format!("--gpu-architecture={architecture}");
        let options = COMMON_OPTIONS.iter().chain(self.source.options).copied().chain([&*target]);
        let options: Vec<_> =
            options.map(|option| c_string(self.source, CALL, option)).collect::<Result<_, _>>()?;
        let texts = pointers(&options);
        let count = texts.len() as c_int;
        // SAFETY: the program exists until this is dropped; so many strings that end with a zero.
        let status =
            unsafe { (self.nvrtc.nvrtcCompileProgram)(self.handle, count, texts.as_ptr()) };
        if status == Status::COMPILATION {
            return Err(Error::Compilation {
                source_name: self.source.name.to_owned(),
                architecture: architecture.to_owned(),
                log: self.log()?,
            });
        }
        self.check(CALL, status).map_err(|error| {
            let log = self.log().unwrap_or_default();
            with_log(error, log.trim())
        })
    }

    fn log(&self) -> Result<String, Error> {
        let mut bytes = 0;
        // SAFETY: the program exists until this is dropped; it writes one size.
        let status = unsafe { (self.nvrtc.nvrtcGetProgramLogSize)(self.handle, &raw mut bytes) };
        self.check("nvrtcGetProgramLogSize", status)?;
        let mut log = vec![0_u8; bytes];
        // SAFETY: it writes as many bytes as it reported before.
        let status =
            unsafe { (self.nvrtc.nvrtcGetProgramLog)(self.handle, log.as_mut_ptr().cast()) };
        self.check("nvrtcGetProgramLog", status)?;
        let text = CStr::from_bytes_until_nul(&log).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = 0;
        // SAFETY: the program exists until this is dropped; it writes one size.
        let status = unsafe { (self.nvrtc.nvrtcGetCUBINSize)(self.handle, &raw mut bytes) };
        self.check("nvrtcGetCUBINSize", status)?;
        let mut cubin = vec![0_u8; bytes];
        // SAFETY: it writes as many bytes as it reported before.
        let status = unsafe { (self.nvrtc.nvrtcGetCUBIN)(self.handle, cubin.as_mut_ptr().cast()) };
        self.check("nvrtcGetCUBIN", status)?;
        Ok(cubin)
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), Error> {
        self.nvrtc.check(self.source.name, call, status)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the program exists, and nobody has it any more. That it cannot be destroyed
        // leaks memory, no more.
        let _ = unsafe { (self.nvrtc.nvrtcDestroyProgram)(&raw mut self.handle) };
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

/// Adds the log, which names the wrong option or the missing file.
fn with_log(error: Error, log: &str) -> Error {
    match error {
        Error::Nvrtc { source_name, call, reason } if !log.is_empty() => {
            Error::Nvrtc { source_name, call, reason: format!("{reason}: {log}") }
        }
        error => error,
    }
}

#[test]
fn complaints_are_found_in_the_log() {
    let log = "\
ptxas info    : (C7517) warpgroup.wait is injected in around line 1385 by compiler to allow use of
ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async instructions are serialized due
ptxas info    : Compiling entry function 'wgmma_forward' for 'sm_90a'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 127 registers, used 1 barriers
";
    let compiled = Compiled { cubin: Vec::new(), log: log.to_owned() };
    let found: Vec<_> = compiled.complaints().collect();
    assert_eq!(found, log.lines().take(2).collect::<Vec<_>>());
}
