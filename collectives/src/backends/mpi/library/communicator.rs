//! Communicators, and the blocking calls with which ranks set them up.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use mpi::ffi::{self, MPI_Comm};

use super::calls::{ErrorCode, check};

/// A communicator of the same ranks, for messages of its own. It inherits the error handler.
pub(crate) fn duplicate(communicator: MPI_Comm) -> Result<MPI_Comm, ErrorCode> {
    // SAFETY: MPI is initialised; a constant of mpi-sys's C file.
    unsafe {
        let mut copy = ffi::RSMPI_COMM_NULL;
        check(ffi::MPI_Comm_dup(communicator, &mut copy))?;
        Ok(copy)
    }
}

/// The ranks of a communicator that can share memory with this one, in the same order.
pub(crate) fn split_by_node(communicator: MPI_Comm, key: usize) -> Result<MPI_Comm, ErrorCode> {
    // SAFETY: MPI is initialised; the rest are constants of mpi-sys's C file.
    unsafe {
        let mut part = ffi::RSMPI_COMM_NULL;
        let info = ffi::RSMPI_INFO_NULL;
        let kind = ffi::RSMPI_COMM_TYPE_SHARED;
        check(ffi::MPI_Comm_split_type(communicator, kind, key as c_int, info, &mut part))?;
        Ok(part)
    }
}

/// The ranks of a communicator with the same color as this one, ordered by their keys.
pub(crate) fn split(
    communicator: MPI_Comm,
    color: usize,
    key: usize,
) -> Result<MPI_Comm, ErrorCode> {
    // SAFETY: MPI is initialised; plain values.
    unsafe {
        let mut part = ffi::RSMPI_COMM_NULL;
        check(ffi::MPI_Comm_split(communicator, color as c_int, key as c_int, &mut part))?;
        Ok(part)
    }
}

/// Frees a communicator without pending requests.
pub(crate) fn free(mut communicator: MPI_Comm) -> Result<(), ErrorCode> {
    // SAFETY: the caller's own communicator.
    check(unsafe { ffi::MPI_Comm_free(&mut communicator) })
}

/// Rank of this process in a communicator.
pub(crate) fn rank(communicator: MPI_Comm) -> Result<usize, ErrorCode> {
    let mut rank = 0;
    // SAFETY: MPI is initialised; the call writes a plain value.
    check(unsafe { ffi::MPI_Comm_rank(communicator, &mut rank) })?;
    Ok(rank as usize)
}

/// Number of ranks of a communicator.
pub(crate) fn size(communicator: MPI_Comm) -> Result<usize, ErrorCode> {
    let mut size = 0;
    // SAFETY: MPI is initialised; the call writes a plain value.
    check(unsafe { ffi::MPI_Comm_size(communicator, &mut size) })?;
    Ok(size as usize)
}

/// Every rank ends with the values of rank 0 of the communicator. Blocking.
pub(crate) fn broadcast(values: &mut [u64], communicator: MPI_Comm) -> Result<(), ErrorCode> {
    let count = values.len() as c_int;
    // SAFETY: a buffer of that many elements.
    check(unsafe {
        let start = values.as_mut_ptr().cast::<c_void>();
        ffi::MPI_Bcast(start, count, ffi::RSMPI_UINT64_T, 0, communicator)
    })
}

/// The values of all `size` ranks, in the order of the ranks. Blocking.
pub(crate) fn all_gather(
    values: &[u64],
    size: usize,
    communicator: MPI_Comm,
) -> Result<Vec<u64>, ErrorCode> {
    let mut all = vec![0_u64; size * values.len()];
    let count = values.len() as c_int;
    // SAFETY: buffers of that many elements for this rank and for all.
    check(unsafe {
        let sent = values.as_ptr().cast::<c_void>();
        let received = all.as_mut_ptr().cast::<c_void>();
        let kind = ffi::RSMPI_UINT64_T;
        ffi::MPI_Allgather(sent, count, kind, received, count, kind, communicator)
    })?;
    Ok(all)
}
