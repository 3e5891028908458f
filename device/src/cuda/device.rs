//! One CUDA device as a rank uses it: its context, and the compute stream.

use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::context::Context;
use super::cublaslt::CublasLt;
use super::driver::Driver;
use super::dry;
use super::error::DriverCall;
use super::memory::{self, CudaMemory};
use super::stream::{Priority, Stream};
use super::{DeviceProperties, Error, Libraries, Required, properties};
use crate::{Element, View, ViewMut};

/// A CUDA device. A handle: clones are the same device and the same streams.
#[derive(Clone)]
pub struct Cuda {
    shared: Arc<Shared>,
}

struct Shared {
    compute: Arc<Stream>,
    context: Arc<Context>,
    properties: DeviceProperties,
    /// True if nothing is computed.
    is_dry: bool,
    launches: AtomicU64,
    moved_bytes: AtomicU64,
}

/// Work that a device was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Launched {
    /// Kernels, products, copies and fills.
    pub launches: u64,
    /// Size of what they read and write: every operand once a launch, and twice what is changed.
    pub moved_bytes: u64,
}

impl Launched {
    /// Work that was launched after an earlier moment.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            launches: self.launches - earlier.launches,
            moved_bytes: self.moved_bytes - earlier.moved_bytes,
        }
    }
}

impl AddAssign for Launched {
    fn add_assign(&mut self, other: Self) {
        self.launches += other.launches;
        self.moved_bytes += other.moved_bytes;
    }
}

impl Cuda {
    /// Opens a device, with what training needs of CUDA's libraries.
    ///
    /// # Errors
    /// Returns one sentence that names the missing component, for a person.
    pub fn open(ordinal: usize) -> Result<Self, Error> {
        Libraries::open(&Required::TRAINING)?;
        let properties = properties::of(ordinal)?;
        properties::require_new_enough(&properties)?;
        let driver = &Libraries::open_driver()?.functions;
        Self::with_driver(driver, properties, false)
    }

    /// Opens a device that computes nothing and has no memory, and needs no GPU: for
    /// [`launched`](Self::launched).
    ///
    /// # Errors
    /// None; its driver accepts everything.
    pub fn dry() -> Result<Self, Error> {
        Self::with_driver(&dry::DRIVER, dry::properties(), true)
    }

    fn with_driver(
        driver: &'static Driver,
        properties: DeviceProperties,
        is_dry: bool,
    ) -> Result<Self, Error> {
        let ordinal = properties.ordinal;
        let context = Arc::new(Context::retain(driver, ordinal).at_startup("opening the device")?);
        let compute = Stream::new(&context, Priority::Ordinary);
        let compute = Arc::new(compute.during("making the stream that computes")?);
        let [launches, moved_bytes] = [(); 2].map(|()| AtomicU64::new(0));
        let shared = Shared { compute, context, properties, is_dry, launches, moved_bytes };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns whether it computes nothing.
    pub(super) fn is_dry(&self) -> bool {
        self.shared.is_dry
    }

    /// The functions of cuBLASLt for this device.
    ///
    /// # Errors
    /// Fails if the library is missing.
    pub fn cublaslt(&self) -> Result<&'static CublasLt, Error> {
        if self.is_dry() { Ok(&dry::CUBLASLT) } else { CublasLt::open() }
    }

    /// Work that the device was given since it was opened.
    pub fn launched(&self) -> Launched {
        let Shared { launches, moved_bytes, .. } = &*self.shared;
        Launched {
            launches: launches.load(Ordering::Relaxed),
            moved_bytes: moved_bytes.load(Ordering::Relaxed),
        }
    }

    /// Counts one launch, of a library or of ours.
    pub fn count_launch(&self, moved_bytes: u64) {
        self.shared.launches.fetch_add(1, Ordering::Relaxed);
        self.shared.moved_bytes.fetch_add(moved_bytes, Ordering::Relaxed);
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
    pub fn compute(&self) -> &Arc<Stream> {
        &self.shared.compute
    }

    /// Makes this the current device of the calling thread, for calls of libraries.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn bind(&self) -> Result<(), Error> {
        self.shared.context.bind().during("choosing the device")
    }

    /// Creates a stream whose work runs before work that waits on the compute stream.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new_urgent_stream(&self) -> Result<Arc<Stream>, Error> {
        self.new_stream(Priority::Urgent)
    }

    pub(super) fn new_stream(&self, priority: Priority) -> Result<Arc<Stream>, Error> {
        Ok(Arc::new(Stream::new(self.context(), priority).during("making a stream")?))
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }

    /// Free bytes of its memory at the moment.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn free_bytes(&self) -> Result<u64, Error> {
        self.shared.context.free_bytes().during("reading the free memory")
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
        self.shared.compute.synchronize()
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
