//! One CUDA device as a rank uses it: its context, and the compute stream.
#![allow(unsafe_code)] // switches off cudarc's tracking of events

use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

use super::error::DriverCall;
use super::event::{self, ElapsedTime};
use super::memory::{self, CudaMemory};
use super::{DeviceProperties, Error, Libraries, Required, properties};
use crate::{Element, View, ViewMut};

/// A CUDA device. A handle: clones are the same device and the same streams.
#[derive(Clone)]
pub struct Cuda {
    shared: Arc<Shared>,
}

struct Shared {
    compute: Arc<CudaStream>,
    context: Arc<CudaContext>,
    properties: DeviceProperties,
    /// A function of the driver, looked up once.
    elapsed_time: ElapsedTime,
}

impl Cuda {
    /// Opens a device, with what training needs of CUDA's libraries.
    ///
    /// # Errors
    /// Returns one sentence that names the missing component, for a person.
    pub fn open(ordinal: usize) -> Result<Self, Error> {
        let libraries = Libraries::open(&Required::TRAINING)?;
        let properties = properties::of(ordinal)?;
        properties::require_new_enough(&properties)?;
        let context = CudaContext::new(ordinal).at_startup("opening the device")?;
        // SAFETY: the tracking orders the streams of `CudaSlice`s, which are not used here: buffers
        // are used on one stream, and marks order that with other streams.
        unsafe { context.disable_event_tracking() };
        let compute = context.new_stream().during("making the stream that computes")?;
        let elapsed_time = event::elapsed_time(libraries)?;
        Ok(Self { shared: Arc::new(Shared { compute, context, properties, elapsed_time }) })
    }

    /// Properties of the device.
    pub fn properties(&self) -> &DeviceProperties {
        &self.shared.properties
    }

    /// Number of its streaming multiprocessors.
    pub fn multiprocessors(&self) -> usize {
        self.shared.properties.multiprocessors as usize
    }

    /// The number of the device.
    pub fn ordinal(&self) -> usize {
        self.shared.properties.ordinal
    }

    /// The stream of all kernels.
    pub fn compute(&self) -> &Arc<CudaStream> {
        &self.shared.compute
    }

    /// Makes this the current device of the calling thread, for calls of libraries.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn bind(&self) -> Result<(), Error> {
        self.shared.context.bind_to_thread().during("choosing the device")
    }

    pub(super) fn elapsed_time(&self) -> ElapsedTime {
        self.shared.elapsed_time
    }

    /// Creates a stream whose work runs before work that waits on the compute stream.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new_urgent_stream(&self) -> Result<Arc<CudaStream>, Error> {
        // The driver moves a number outside of its range to the nearest; the lowest goes first.
        self.context().new_stream_with_priority(i32::MIN).during("making a stream")
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.shared.context
    }

    /// Free bytes of its memory at the moment.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn free_bytes(&self) -> Result<u64, Error> {
        let (free, _) = self.shared.context.mem_get_info().during("reading the free memory")?;
        Ok(free as u64)
    }

    /// Memory of zeros, in the order of the compute stream.
    pub(crate) fn zeroed(&self, bytes: usize) -> Result<CudaMemory, Error> {
        CudaMemory::zeroed(self, bytes)
    }

    /// Waits until all work of the compute stream is done.
    ///
    /// # Errors
    /// Those of that work.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.shared.compute.synchronize().during("waiting for the device")
    }

    /// Copies elements to the host and waits for them, and so for all work before.
    ///
    /// # Errors
    /// Those of that work.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn read<E: Element>(&self, elements: View<'_, E>, host: &mut [E]) -> Result<(), Error> {
        memory::copy_to_host(self, elements, host)?;
        self.synchronize()
    }

    /// Copies elements of the host to the device and waits until they have been read.
    ///
    /// # Errors
    /// Those of work before.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn write<E: Element>(&self, elements: ViewMut<'_, E>, host: &[E]) -> Result<(), Error> {
        memory::copy_from_host(self, elements, host)?;
        self.synchronize()
    }

    /// Fills elements with bytes of zero.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn clear<E: Element>(&self, elements: ViewMut<'_, E>) -> Result<(), Error> {
        self.fill(elements, 0)
    }

    /// Fills elements with a byte.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn fill<E: Element>(&self, elements: ViewMut<'_, E>, byte: u8) -> Result<(), Error> {
        memory::fill(self, elements, byte)
    }

    /// Copies elements on the device.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn copy<E: Element>(&self, to: ViewMut<'_, E>, from: View<'_, E>) -> Result<(), Error> {
        memory::copy(self, to, from)
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Cuda({}, {})", self.ordinal(), self.shared.properties.name)
    }
}
