//! Memory of a device, and copies to and from it, in the order of the compute stream.
#![allow(unsafe_code)] // calls of the driver with addresses

use cudarc::driver::{CudaStream, result};

use super::Error;
use super::device::Cuda;
use super::error::DriverCall;
use crate::view::CudaRange;
use crate::{Element, View, ViewMut};

/// A block of memory that this owns.
#[derive(Debug)]
pub(crate) struct CudaMemory {
    address: u64,
    device: Cuda,
}

impl CudaMemory {
    /// Allocates so many bytes of zeros. The start is aligned to 256 bytes, as all memory of CUDA.
    pub(super) fn zeroed(device: &Cuda, bytes: usize) -> Result<Self, Error> {
        device.bind()?;
        if bytes == 0 {
            return Ok(Self { address: 0, device: device.clone() });
        }
        // SAFETY: a new block, owned from here on.
        let address = unsafe { result::malloc_sync(bytes) }
            .map_err(|error| Error::out_of_memory(bytes, device.free_bytes().ok(), error))?;
        let memory = Self { address, device: device.clone() };
        // SAFETY: the block has so many bytes.
        unsafe { result::memset_d8_async(address, 0, bytes, device.compute().cu_stream()) }
            .during("clearing memory")?;
        Ok(memory)
    }

    /// `len` elements of it.
    pub(crate) fn range(&self, len: usize) -> CudaRange {
        CudaRange { address: self.address, len, ordinal: self.device.ordinal() }
    }

    /// The device whose memory it is.
    pub(crate) fn device(&self) -> &Cuda {
        &self.device
    }
}

impl Drop for CudaMemory {
    /// Waits for the work that uses the memory, as `cuMemFree` does. An error stems from earlier
    /// work, and was reported to the caller that waited for that work.
    fn drop(&mut self) {
        if self.address != 0 && self.device.bind().is_ok() {
            // SAFETY: this owns the block, and nobody has a view of it any more.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Copies elements of the host to the device. The host's must stay as they are until the copy is
/// done, if they are page-locked; else the driver has read them when this returns.
pub(super) fn copy_from_host<E: Element>(
    device: &Cuda,
    to: ViewMut<'_, E>,
    from: &[E],
) -> Result<(), Error> {
    assert_eq!(to.len(), from.len(), "as many elements on the device as on the host");
    if from.is_empty() {
        return Ok(());
    }
    device.bind()?;
    let stream = device.compute().cu_stream();
    // SAFETY: both have so many elements.
    unsafe { result::memcpy_htod_async(to.cuda_address(), from, stream) }
        .during("copying to the device")
}

/// Copies elements to the host, which arrive once the stream has reached this copy.
pub(super) fn copy_to_host<E: Element>(
    device: &Cuda,
    from: View<'_, E>,
    to: &mut [E],
) -> Result<(), Error> {
    assert_eq!(to.len(), from.len(), "as many elements on the device as on the host");
    if to.is_empty() {
        return Ok(());
    }
    device.bind()?;
    let stream = device.compute().cu_stream();
    // SAFETY: both have so many elements.
    unsafe { result::memcpy_dtoh_async(to, from.cuda_address(), stream) }
        .during("copying to the host")
}

/// Copies the bytes of elements to page-locked memory, on any stream of the device that is bound.
pub(super) fn copy_bytes_to_host<E: Element>(
    stream: &CudaStream,
    from: View<'_, E>,
    to: &mut [u8],
) -> Result<(), Error> {
    assert_eq!(to.len(), from.len() * size_of::<E>(), "as many bytes in both");
    // SAFETY: both have so many bytes.
    unsafe { result::memcpy_dtoh_async(to, from.cuda_address(), stream.cu_stream()) }
        .during("copying to the host")
}

/// Copies elements on the device.
pub(super) fn copy<E: Element>(
    device: &Cuda,
    to: ViewMut<'_, E>,
    from: View<'_, E>,
) -> Result<(), Error> {
    assert_eq!(to.len(), from.len(), "as many elements in both");
    if to.is_empty() {
        return Ok(());
    }
    let bytes = from.len() * size_of::<E>();
    device.bind()?;
    let stream = device.compute().cu_stream();
    // SAFETY: both have so many bytes, and do not overlap: one is borrowed exclusively.
    unsafe { result::memcpy_dtod_async(to.cuda_address(), from.cuda_address(), bytes, stream) }
        .during("copying on the device")
}

/// Fills elements with a byte.
pub(super) fn fill<E: Element>(
    device: &Cuda,
    elements: ViewMut<'_, E>,
    byte: u8,
) -> Result<(), Error> {
    if elements.is_empty() {
        return Ok(());
    }
    let bytes = elements.len() * size_of::<E>();
    device.bind()?;
    let stream = device.compute().cu_stream();
    // SAFETY: the elements have so many bytes and are borrowed exclusively.
    unsafe { result::memset_d8_async(elements.cuda_address(), byte, bytes, stream) }
        .during("filling memory")
}
