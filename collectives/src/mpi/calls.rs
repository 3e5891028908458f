//! MPI's C interface, with return codes as results. Only the communication thread comes here,
//! except for [`library_version`].

use std::ffi::{CStr, c_char, c_int, c_void};

use mpi::ffi::{self, MPI_Comm, MPI_Datatype, MPI_Request, MPI_Status};

use crate::{Dtype, Error};

unsafe extern "C" {
    static yardstick_mpi_in_place: *const c_void;
    static yardstick_mpi_err_proc_failed: c_int;
}

const SUCCESS: c_int = ffi::MPI_SUCCESS as c_int;

/// A failed call: MPI's code.
#[derive(Debug, Clone, Copy)]
pub(super) struct Code(c_int);

pub(super) fn check(code: c_int) -> Result<(), Code> {
    if code == SUCCESS { Ok(()) } else { Err(Code(code)) }
}

impl Code {
    /// MPI's words for the code.
    pub(super) fn text(self) -> String {
        let mut text = [0u8; 4096]; // more than MPI_MAX_ERROR_STRING of any MPI
        let mut len = 0;
        // SAFETY: the buffer is longer than MPI_MAX_ERROR_STRING; MPI is initialised.
        let code = unsafe { ffi::MPI_Error_string(self.0, text.as_mut_ptr().cast(), &mut len) };
        if code != SUCCESS {
            return "an unknown error".to_owned();
        }
        text_of(&text)
    }

    /// The standard's class of the code: codes are each library's own.
    fn is_of(self, wanted: c_int) -> bool {
        let mut class = SUCCESS;
        // SAFETY: plain values; MPI is initialised.
        let code = unsafe { ffi::MPI_Error_class(self.0, &mut class) };
        code == SUCCESS && class == wanted
    }

    /// Whether the requests' statuses say which of them failed.
    pub(super) fn is_in_status(self) -> bool {
        self.is_of(ffi::MPI_ERR_IN_STATUS as c_int)
    }

    fn peer_lost(self) -> bool {
        // SAFETY: a constant of this crate's C file.
        self.is_of(unsafe { yardstick_mpi_err_proc_failed })
    }

    /// The code itself.
    pub(super) fn raw(self) -> c_int {
        self.0
    }

    /// The error of an operation.
    pub(super) fn of(self, operation: crate::Operation, rank: usize) -> Error {
        if self.peer_lost() {
            return Error::PeerLost { operation, rank, text: self.text() };
        }
        Error::Mpi { operation: operation.to_string(), rank, code: self.0, text: self.text() }
    }
}

fn text_of(bytes: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(bytes).map(CStr::to_string_lossy);
    text.unwrap_or_default().trim().to_owned()
}

/// The library's own description of itself. MPI allows this call at any time on any thread.
pub(super) fn library_version() -> String {
    let mut text = [0u8; 16384]; // more than MPI_MAX_LIBRARY_VERSION_STRING of any MPI
    let mut len = 0;
    // SAFETY: the buffer is longer than MPI_MAX_LIBRARY_VERSION_STRING.
    unsafe { ffi::MPI_Get_library_version(text.as_mut_ptr().cast::<c_char>(), &mut len) };
    text_of(&text)
}

/// MPI's name of an element type.
pub(super) fn datatype(dtype: Dtype) -> MPI_Datatype {
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

/// A slice for MPI: address, count and type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) pointer: *mut c_void,
    pub(super) count: c_int,
    pub(super) datatype: MPI_Datatype,
}

impl Piece {
    /// Elements of a type: at most as many as a C int holds.
    pub(super) fn new(pointer: *mut u8, count: usize, dtype: Dtype) -> Self {
        let count = c_int::try_from(count).unwrap_or(c_int::MAX);
        Self { pointer: pointer.cast(), count, datatype: datatype(dtype) }
    }
}

/// One non-blocking call of MPI, which moves data and never sums.
#[derive(Debug, Clone, Copy)]
pub(super) enum Call {
    /// The piece is one rank's part; the memory is all parts.
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

/// Starts a call on a communicator, in place. Local: returns at once.
///
/// # Safety
/// The piece's memory (for `AllGather`: all parts) is valid, and nobody else's,
/// until the request is complete.
pub(super) unsafe fn start(
    call: Call,
    piece: Piece,
    communicator: MPI_Comm,
) -> Result<MPI_Request, Code> {
    let Piece { pointer, count, datatype } = piece;
    // SAFETY: the caller's promise; the rest are constants of the C files.
    let (request, code) = unsafe {
        let mut request = ffi::RSMPI_REQUEST_NULL;
        let (out, comm) = (&raw mut request, communicator);
        let code = match call {
            Call::AllGather => {
                // In place, what is sent is described by what is received.
                let in_place = yardstick_mpi_in_place;
                ffi::MPI_Iallgather(in_place, 0, datatype, pointer, count, datatype, comm, out)
            }
            Call::Broadcast { root } => {
                ffi::MPI_Ibcast(pointer, count, datatype, root as c_int, comm, out)
            }
            Call::Barrier => ffi::MPI_Ibarrier(comm, out),
            Call::Send { to, tag } => {
                ffi::MPI_Isend(pointer, count, datatype, to as c_int, tag.into(), comm, out)
            }
            Call::Receive { from, tag } => {
                ffi::MPI_Irecv(pointer, count, datatype, from as c_int, tag.into(), comm, out)
            }
        };
        (request, code)
    };
    check(code)?;
    Ok(request)
}

/// How many elements a receive got.
pub(super) fn received(status: &MPI_Status, datatype: MPI_Datatype) -> Result<c_int, Code> {
    let mut count = 0;
    // SAFETY: a status that MPI filled.
    check(unsafe { ffi::MPI_Get_count(status, datatype, &mut count) })?;
    Ok(count)
}

/// The ranks of a communicator that can share memory with this one, in the same order.
pub(super) fn split_by_node(communicator: MPI_Comm, key: usize) -> Result<MPI_Comm, Code> {
    // SAFETY: MPI is initialised; the rest are constants of mpi-sys's C file.
    unsafe {
        let (mut part, info) = (ffi::RSMPI_COMM_NULL, ffi::RSMPI_INFO_NULL);
        let kind = ffi::RSMPI_COMM_TYPE_SHARED;
        check(ffi::MPI_Comm_split_type(communicator, kind, key as c_int, info, &mut part))?;
        Ok(part)
    }
}

/// The ranks of a communicator with the same colour as this one, ordered by their keys.
pub(super) fn split(communicator: MPI_Comm, colour: usize, key: usize) -> Result<MPI_Comm, Code> {
    // SAFETY: MPI is initialised; plain values.
    unsafe {
        let mut part = ffi::RSMPI_COMM_NULL;
        check(ffi::MPI_Comm_split(communicator, colour as c_int, key as c_int, &mut part))?;
        Ok(part)
    }
}

/// Ends a communicator with which nothing is under way.
pub(super) fn free(mut communicator: MPI_Comm) -> Result<(), Code> {
    // SAFETY: the caller's own communicator.
    check(unsafe { ffi::MPI_Comm_free(&mut communicator) })
}

/// This rank's number in a communicator, and how many there are.
pub(super) fn rank_and_size(communicator: MPI_Comm) -> Result<(usize, usize), Code> {
    let (mut rank, mut size) = (0, 0);
    // SAFETY: MPI is initialised; the calls write plain values.
    unsafe {
        check(ffi::MPI_Comm_rank(communicator, &mut rank))?;
        check(ffi::MPI_Comm_size(communicator, &mut size))?;
    }
    Ok((rank as usize, size as usize))
}

/// The first rank's values, everywhere. Blocking.
pub(super) fn broadcast(values: &mut [u64], communicator: MPI_Comm) -> Result<(), Code> {
    let count = values.len() as c_int;
    // SAFETY: a buffer of that many elements.
    check(unsafe {
        let pointer = values.as_mut_ptr().cast::<c_void>();
        ffi::MPI_Bcast(pointer, count, ffi::RSMPI_UINT64_T, 0, communicator)
    })
}

/// All of `size` ranks' values, in the order of the ranks. Blocking.
pub(super) fn all_gather(
    values: &[u64],
    size: usize,
    communicator: MPI_Comm,
) -> Result<Vec<u64>, Code> {
    let (mut all, count) = (vec![0u64; size * values.len()], values.len() as c_int);
    // SAFETY: buffers of that many elements for this rank and for all.
    check(unsafe {
        let (give, take) = (values.as_ptr().cast::<c_void>(), all.as_mut_ptr().cast::<c_void>());
        let kind = ffi::RSMPI_UINT64_T;
        ffi::MPI_Allgather(give, count, kind, take, count, kind, communicator)
    })?;
    Ok(all)
}
