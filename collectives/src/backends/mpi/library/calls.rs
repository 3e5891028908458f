//! Non-blocking calls of MPI, its error codes and element types. Only the communication thread uses
//! them, except for [`library_version`].
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};

use mpi::ffi::{self, MPI_Comm, MPI_Datatype, MPI_Request, MPI_Status};

use crate::core::group::Membership;
use crate::{Dtype, Error, Operation};

unsafe extern "C" {
    static yardstick_mpi_in_place: *const c_void;
    static yardstick_mpi_err_proc_failed: c_int;
}

const SUCCESS: c_int = ffi::MPI_SUCCESS as c_int;

/// The code of a failed MPI call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ErrorCode(c_int);

pub(crate) fn check(code: c_int) -> Result<(), ErrorCode> {
    if code == SUCCESS { Ok(()) } else { Err(ErrorCode(code)) }
}

impl ErrorCode {
    /// MPI's message for the code.
    pub(crate) fn text(self) -> String {
        let mut text = [0u8; 4096]; // more than MPI_MAX_ERROR_STRING of any MPI
        let mut len = 0;
        // SAFETY: the buffer is longer than MPI_MAX_ERROR_STRING; MPI is initialised.
        let code = unsafe { ffi::MPI_Error_string(self.0, text.as_mut_ptr().cast(), &mut len) };
        if code != SUCCESS {
            return "an unknown error".to_owned();
        }
        text_of(&text)
    }

    /// Returns whether the code belongs to a class of the standard; codes are the library's own.
    fn is_of_class(self, wanted: c_int) -> bool {
        let mut class = SUCCESS;
        // SAFETY: plain values; MPI is initialised.
        let code = unsafe { ffi::MPI_Error_class(self.0, &mut class) };
        code == SUCCESS && class == wanted
    }

    /// Returns whether the statuses of the requests identify the failed ones.
    pub(crate) fn is_in_status(self) -> bool {
        self.is_of_class(ffi::MPI_ERR_IN_STATUS as c_int)
    }

    fn is_lost_peer(self) -> bool {
        // SAFETY: a constant of this crate's C file.
        self.is_of_class(unsafe { yardstick_mpi_err_proc_failed })
    }

    /// The number.
    pub(crate) fn raw(self) -> c_int {
        self.0
    }

    /// The error of an operation that failed with this code.
    pub(crate) fn error_of(self, operation: Operation, membership: &Membership) -> Error {
        let operation = operation.in_world(&membership.plan.ranks);
        let group = membership.named();
        let rank = membership.world_rank();
        let text = self.text();
        if self.is_lost_peer() {
            let peers = Vec::new();
            return Error::PeerLost { operation, group, position: None, rank, text, peers };
        }
        Error::Mpi { operation: operation.to_string(), group, rank, code: self.0, text }
    }
}

fn text_of(bytes: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(bytes).map(CStr::to_string_lossy);
    text.unwrap_or_default().trim().to_owned()
}

/// The library's own description of itself. MPI allows this call at any time on any thread.
pub(crate) fn library_version() -> String {
    let mut text = [0u8; 16384]; // more than MPI_MAX_LIBRARY_VERSION_STRING of any MPI
    let mut len = 0;
    // SAFETY: the buffer is longer than MPI_MAX_LIBRARY_VERSION_STRING.
    unsafe { ffi::MPI_Get_library_version(text.as_mut_ptr().cast::<c_char>(), &mut len) };
    text_of(&text)
}

/// MPI's handle of an element type.
pub(crate) fn datatype(dtype: Dtype) -> MPI_Datatype {
    // SAFETY: constants of mpi-sys's C file.
    unsafe {
        match dtype {
            Dtype::U8 => ffi::RSMPI_UINT8_T,
            Dtype::Bf16 => ffi::RSMPI_UINT16_T, // moved, never summed
            Dtype::F32 => ffi::RSMPI_FLOAT,
            Dtype::F64 => ffi::RSMPI_DOUBLE,
        }
    }
}

/// Elements for MPI: address, count and type.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub(crate) start: *mut c_void,
    pub(crate) count: c_int,
    pub(crate) datatype: MPI_Datatype,
}

impl Message {
    /// At most as many elements as a C int holds.
    pub(crate) fn new(start: *mut u8, count: usize, dtype: Dtype) -> Self {
        let count = c_int::try_from(count).unwrap_or(c_int::MAX);
        Self { start: start.cast(), count, datatype: datatype(dtype) }
    }
}

/// A non-blocking call of MPI. MPI moves data here and never sums.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call {
    /// The message is one rank's part; the memory is that of all parts.
    AllGather,
    Broadcast {
        root: usize,
    },
    Barrier,
    Send {
        to: usize,
        tag: u16,
    },
    Receive {
        from: usize,
        tag: u16,
    },
}

/// Starts a call on a communicator, in place, without blocking.
///
/// # Safety
/// The message's memory (for `AllGather`: all parts) is valid, and nobody else's, until the request
/// is complete.
pub(crate) unsafe fn start(
    call: Call,
    message: Message,
    communicator: MPI_Comm,
) -> Result<MPI_Request, ErrorCode> {
    let Message { start, count, datatype } = message;
    // SAFETY: the caller's promise; the rest are constants of the C files.
    let (request, code) = unsafe {
        let mut request = ffi::RSMPI_REQUEST_NULL;
        let out = &raw mut request;
        let comm = communicator;
        let code = match call {
            Call::AllGather => {
                // In place, what is sent is described by what is received.
                let in_place = yardstick_mpi_in_place;
                ffi::MPI_Iallgather(in_place, 0, datatype, start, count, datatype, comm, out)
            }
            Call::Broadcast { root } => {
                ffi::MPI_Ibcast(start, count, datatype, root as c_int, comm, out)
            }
            Call::Barrier => ffi::MPI_Ibarrier(comm, out),
            Call::Send { to, tag } => {
                ffi::MPI_Isend(start, count, datatype, to as c_int, tag.into(), comm, out)
            }
            Call::Receive { from, tag } => {
                ffi::MPI_Irecv(start, count, datatype, from as c_int, tag.into(), comm, out)
            }
        };
        (request, code)
    };
    check(code)?;
    Ok(request)
}

/// Number of elements that a receive has received.
pub(crate) fn received(status: &MPI_Status, datatype: MPI_Datatype) -> Result<c_int, ErrorCode> {
    let mut count = 0;
    // SAFETY: a status that MPI filled.
    check(unsafe { ffi::MPI_Get_count(status, datatype, &mut count) })?;
    Ok(count)
}
