//! Memory of a device, and copies to and from it, in the order of the compute stream.
#![allow(unsafe_code)] // calls of the driver with addresses

use super::device::Cuda;
use super::driver::{Driver, Status};
use super::error::DriverCall;
use super::{Error, Stream};
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
        let mut address = 0;
        if bytes == 0 {
            return Ok(Self { address, device: device.clone() });
        }
        let allocated = device.context().call(|driver| {
            // SAFETY: it writes the address of a new block, owned from here on.
            unsafe { (driver.cuMemAlloc_v2)(&raw mut address, bytes) }
        });
        allocated
            .map_err(|status| Error::out_of_memory(bytes, device.free_bytes().ok(), status))?;
        let memory = Self { address, device: device.clone() };
        let stream = device.compute().handle;
        // SAFETY: the block has so many bytes.
        start(device, "clearing memory", bytes, |driver| unsafe {
            (driver.cuMemsetD8Async)(address, 0, bytes, stream)
        })?;
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
        if self.address != 0 {
            // SAFETY: this owns the block, and nobody has a view of it any more.
            let free = |driver: &Driver| unsafe { (driver.cuMemFree_v2)(self.address) };
            let _ = self.device.context().call(free);
        }
    }
}

/// A call of the driver that puts work on a stream of the device, and moves so many bytes there.
fn start(
    device: &Cuda,
    doing: &'static str,
    moved_bytes: usize,
    call: impl FnOnce(&Driver) -> Status,
) -> Result<(), Error> {
    device.count_launch(moved_bytes as u64);
    device.context().call(call).during(doing)
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
    let bytes = size_of_val(from);
    let stream = device.compute().handle;
    // SAFETY: both have so many bytes.
    start(device, "copying to the device", bytes, |driver| unsafe {
        (driver.cuMemcpyHtoDAsync_v2)(to.cuda_address(), from.as_ptr().cast(), bytes, stream)
    })
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
    let bytes = size_of_val(to);
    let stream = device.compute().handle;
    // SAFETY: both have so many bytes.
    start(device, "copying to the host", bytes, |driver| unsafe {
        (driver.cuMemcpyDtoHAsync_v2)(to.as_mut_ptr().cast(), from.cuda_address(), bytes, stream)
    })
}

/// Copies the bytes of elements to page-locked memory, on any stream of the device.
pub(super) fn copy_bytes_to_host<E: Element>(
    device: &Cuda,
    stream: &Stream,
    from: View<'_, E>,
    to: &mut [u8],
) -> Result<(), Error> {
    assert_eq!(to.len(), from.len() * size_of::<E>(), "as many bytes in both");
    let bytes = to.len();
    // SAFETY: both have so many bytes.
    start(device, "copying to the host", bytes, |driver| unsafe {
        (driver.cuMemcpyDtoHAsync_v2)(
            to.as_mut_ptr().cast(),
            from.cuda_address(),
            bytes,
            stream.handle,
        )
    })
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
    let stream = device.compute().handle;
    // SAFETY: both have so many bytes, and do not overlap: one is borrowed exclusively.
    start(device, "copying on the device", 2 * bytes, |driver| unsafe {
        (driver.cuMemcpyDtoDAsync_v2)(to.cuda_address(), from.cuda_address(), bytes, stream)
    })
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
    let stream = device.compute().handle;
    // SAFETY: the elements have so many bytes and are borrowed exclusively.
    start(device, "filling memory", bytes, |driver| unsafe {
        (driver.cuMemsetD8Async)(elements.cuda_address(), byte, bytes, stream)
    })
}
